// A run directory with the operators' socket of a conductor that only answers, and the environment that names it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "host/conductor_process.h"
#include "http/server.h"
#include "test.h"

namespace mc::test {

class OperatorsSocket {
 public:
  /// `answer` makes the body of a 200. It is called on the server's thread.
  explicit OperatorsSocket(std::function<std::string(const http::Request& request)> answer) {
    std::string pattern = binary_dir() + "/verbs-XXXXXX";
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    directory_ = pattern;
    if (const char* before = std::getenv("MCT_RUN_DIR")) before_ = before;
    ::setenv("MCT_RUN_DIR", directory_.c_str(), 1);
    http::ServerOptions options;
    options.socket_path = directory_ + "/" + std::string(host::kOperatorsSocket);
    auto opened = http::Server::open(
        options, [answer = std::move(answer)](const http::Request& request, const http::Responder& out) {
          out.respond({.status = 200, .headers = {}, .body = answer(request)});
        });
    REQUIRE_OK(opened);
    server_ = std::move(*opened);
  }
  ~OperatorsSocket() {
    stop();
    before_ ? ::setenv("MCT_RUN_DIR", before_->c_str(), 1) : ::unsetenv("MCT_RUN_DIR");
    std::error_code error;
    std::filesystem::remove_all(directory_, error);
  }
  void stop() { server_.reset(); }
  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
  std::optional<std::string> before_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace mc::test

// Where a verb finds a node, and which addresses get a key.

#include "verbs/node_place.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/errors.h"
#include "host/conductor_process.h"
#include "http/server.h"
#include "test.h"

namespace node_place_test {

using namespace mc;
using namespace mc::verbs;

namespace {

/// A run directory with a conductor that lists one node, and the environment that names the directory.
struct Cluster {
  Cluster() {
    std::string pattern = test::binary_dir() + "/place-XXXXXX";
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    directory = pattern;
    if (const char* before = std::getenv("MCT_RUN_DIR")) before_ = before;
    ::setenv("MCT_RUN_DIR", directory.c_str(), 1);
    http::ServerOptions options;
    options.socket_path = directory + "/" + std::string(host::kOperatorsSocket);
    auto opened = http::Server::open(options, [](const http::Request&, const http::Responder& out) {
      out.respond({.status = 200,
                   .headers = {},
                   .body = R"({"nodes":[{"id":"c0","instance":"0123456789abcdef","url":"http://192.0.2.7:8003"}]})"});
    });
    REQUIRE_OK(opened);
    conductor = std::move(*opened);
  }
  ~Cluster() {
    conductor.reset();
    before_ ? ::setenv("MCT_RUN_DIR", before_->c_str(), 1) : ::unsetenv("MCT_RUN_DIR");
    std::error_code error;
    std::filesystem::remove_all(directory, error);
  }

  std::string directory;
  std::unique_ptr<http::Server> conductor;

 private:
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("verbs/node_place: an address that only the node announced gets no key") {
  Cluster cluster;
  const auto refused = place_of("c0", true);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().mc == err::kKeyNotSent);
  CHECK(refused.error().what.find("the node announced http://192.0.2.7:8003, ") != std::string::npos);
  CHECK(refused.error().next.find("name the node by its address") != std::string::npos);
  const auto without = place_of("c0", false);
  REQUIRE_OK(without);
  CHECK(*without == "http://192.0.2.7:8003");
}

TEST_CASE("verbs/node_place: sockets and addresses that the operator named get the key") {
  Cluster cluster;
  for (const std::string named : {"http://192.0.2.7:8003", "unix:/run/x.http"})
    CHECK(place_of(named, true).value() == named);
  CHECK(place_of("/run/x.http", true).value() == "unix:/run/x.http");
  const std::string socket = cluster.directory + "/node-0123456789ab.http";
  std::ofstream(socket) << "";
  const auto place = place_of("c0", true);
  REQUIRE_OK(place);
  CHECK(*place == "unix:" + socket);
}

}  // namespace node_place_test

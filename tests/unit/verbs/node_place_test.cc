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

TEST_CASE("verbs/node_place: a relative path and an address without a scheme are completed") {
  const std::string here = std::filesystem::current_path().string();
  for (const auto& [named, place] : {std::pair<std::string, std::string>{"./x.http", "unix:" + here + "/x.http"},
                                     {"run/x.http", "unix:" + here + "/run/x.http"},
                                     {"unix:x.http", "unix:" + here + "/x.http"},
                                     {"./a:1/x.http", "unix:" + here + "/a:1/x.http"},
                                     {"127.0.0.1:8300", "http://127.0.0.1:8300"},
                                     {"localhost:8300/", "http://localhost:8300/"},
                                     {"[::1]:8300", "http://[::1]:8300"}}) {
    CAPTURE(named);
    const auto found = place_of(named, true);
    REQUIRE_OK(found);
    CHECK(*found == place);
  }
}

TEST_CASE("verbs/node_place: a name that is no place says which forms there are") {
  for (const std::string& named : {std::string(), std::string("https://h:1"), std::string("h:99999"),
                                   std::string("a b:1"), "/" + std::string(200, 'x')}) {
    CAPTURE(named);
    const auto found = place_of(named, true);
    REQUIRE_FALSE(found.has_value());
    CHECK(found.error().mc == err::kBadValue);
    CHECK(found.error().next.find("http://ADDR:PORT") != std::string::npos);
  }
}

TEST_CASE("verbs/node_place: a socket that is named without its folder is told to be named with it") {
  Cluster cluster;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(cluster.directory);
  const auto found = place_of(std::string(host::kOperatorsSocket), true);
  std::filesystem::current_path(before);
  REQUIRE_FALSE(found.has_value());
  CHECK(found.error().mc == err::kNotFound);
  CHECK(found.error().next == "for the socket of that name write ./" + std::string(host::kOperatorsSocket));
}

}  // namespace node_place_test

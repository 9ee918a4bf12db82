// Where a verb finds a node, and which addresses get a key.

#include "verbs/node_place.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "operators_socket.h"
#include "test.h"

namespace node_place_test {

using namespace mc;
using namespace mc::verbs;

namespace {

/// A conductor that lists one node.
struct Cluster {
  test::OperatorsSocket conductor{[](const http::Request&) {
    return R"({"nodes":[{"id":"c0","instance":"0123456789abcdef","url":"http://192.0.2.7:8003"}]})";
  }};
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
  const std::string socket = cluster.conductor.directory() + "/node-0123456789ab.http";
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
  std::filesystem::current_path(cluster.conductor.directory());
  const auto found = place_of(std::string(host::kOperatorsSocket), true);
  std::filesystem::current_path(before);
  REQUIRE_FALSE(found.has_value());
  CHECK(found.error().mc == err::kNotFound);
  CHECK(found.error().next == "for the socket of that name write ./" + std::string(host::kOperatorsSocket));
}

}  // namespace node_place_test

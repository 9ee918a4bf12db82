// Where a verb finds a node, and which addresses get a key.

#include "verbs/node_place.h"

#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/errors.h"
#include "host/worker_process.h"
#include "http/server.h"
#include "operators_socket.h"
#include "test.h"

namespace node_place_test {

using namespace mc;
using namespace mc::verbs;

namespace {

constexpr const char* kSocket = "node-0123456789ab.http";

/// A conductor that lists one node.
struct Cluster {
  std::string url = "http://192.0.2.7:8003", control = "ipc:///run/mc/node";
  test::OperatorsSocket conductor{[this](const http::Request&) {
    return R"({"nodes":[{"id":"c0","role":"cache","instance":"0123456789abcdef","url":")" + url + R"(","control":")" +
           control + R"("}]})";
  }};
};

/// The pages of a node whose /livez names this socket; other paths count.
struct Pages {
  explicit Pages(std::string socket) {
    auto opened = http::Server::open({}, [this, socket](const http::Request& request, const http::Responder& out) {
      if (request.path != "/livez") ++others;
      out.respond({.status = 503, .headers = {{std::string(host::kPagesSocketHeader), socket}}, .body = ""});
    });
    REQUIRE_OK(opened);
    server = std::move(*opened);
  }
  std::string url(const std::string& host = "127.0.0.1") const {
    return "http://" + host + ":" + std::to_string(server->port());
  }
  std::atomic<int> others = 0;
  std::unique_ptr<http::Server> server;
};

}  // namespace

TEST_CASE("verbs/node_place: an address that only the node announced gets no key") {
  Cluster cluster;
  const auto refused = place_of("c0", true);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().mc == err::kKeyNotSent);
  CHECK(refused.error().what.find("the node announced http://192.0.2.7:8003, ") != std::string::npos);
  CHECK(refused.error().next.find("name the node by its address") != std::string::npos);
}

TEST_CASE("verbs/node_place: an announced address is used when the node itself answers there") {
  const Pages pages(kSocket);
  Cluster cluster{.url = pages.url()};
  for (const char* control : {"ipc:///run/mc/node", "tcp://192.0.2.7:7700"}) {  // this host has 192.0.2.7 as well
    cluster.control = control;
    const auto place = place_of("c0", false);
    REQUIRE_OK(place);
    CHECK(*place == pages.url());
    CHECK(other_caches("c1", false) == std::vector{pages.url()});
  }
  CHECK(place_of("c0", true).error().mc == err::kKeyNotSent);
}

TEST_CASE("verbs/node_place: without a conductor a node is found by the sockets of the run directory") {
  Cluster cluster;
  const std::string socket = cluster.conductor.directory() + "/" + kSocket;
  const auto node = http::Server::open({.socket_path = socket}, [](const http::Request& request, const auto& out) {
    out.respond({.status = 200, .headers = {}, .body = request.path == "/version" ? R"({"node":"c1"})" : "{}"});
  });
  REQUIRE_OK(node);
  std::ofstream(cluster.conductor.directory() + "/node-dead.http") << "";
  CHECK_FALSE(place_of("c1", false).has_value());  // the conductor does not list it
  cluster.conductor.stop();
  for (const bool has_key : {false, true}) CHECK(place_of("c1", has_key).value() == "unix:" + socket);
  const auto unknown = place_of("c0", false);
  REQUIRE_FALSE(unknown.has_value());
  CHECK(unknown.error().mc == err::kPeerUnreachable);
  CHECK(unknown.error().next.ends_with("; nodes that answer without a conductor: c1"));
}

TEST_CASE("verbs/node_place: a node on the loopback of another host is not looked for on this one") {
  const Pages own("node-ffffffffffff.http");  // a node of this host, at the port of the other
  Cluster cluster{.url = own.url(), .control = "tcp://192.0.2.7:7700"};
  for (const bool has_key : {false, true}) {
    const auto place = place_of("c0", has_key);
    REQUIRE_FALSE(place.has_value());
    CHECK(place.error().mc == err::kPeerUnreachable);
    CHECK(place.error().what.find("the pages of c0 are on the loopback of 192.0.2.7 (127.0.0.1:") == 0);
    CHECK(place.error().next.find("run the verb on 192.0.2.7 with " + own.url()) == 0);
    const std::string flags = "--http 192.0.2.7:" + std::to_string(own.server->port()) + " --admin-key-file FILE";
    CHECK(place.error().next.find(flags) != std::string::npos);
  }
  CHECK(other_caches("c1", false).empty());
  CHECK(own.others == 0);
}

TEST_CASE("verbs/node_place: a node of this host whose port has another owner is refused") {
  const Pages other("node-ffffffffffff.http");
  Cluster cluster{.url = other.url()};
  const auto place = place_of("c0", false);
  REQUIRE_FALSE(place.has_value());
  CHECK(place.error().mc == err::kPeerUnreachable);
  CHECK(place.error().what.find("another program answers at the address that c0 announced") == 0);
  CHECK(other_caches("c1", false).empty());
  CHECK(other.others == 0);
}

TEST_CASE("verbs/node_place: pages on every address of a node are asked at its control address") {
  const Pages pages(kSocket);
  // The address of another host that this host happens to have, as the test has no second host.
  Cluster cluster{.url = pages.url("0.0.0.0"), .control = "tcp://192.0.2.7:7700"};
  CHECK(place_of("c0", true).error().what.find("announced http://192.0.2.7:") != std::string::npos);
  cluster.control = "tcp://127.0.0.1:7700";
  REQUIRE_OK(place_of("c0", false));
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

// The doors of a conductor: endpoints for nodes, and HTTP servers for clients and operators.

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/errors.h"
#include "host/control_door.h"
#include "host/http_doors.h"
#include "http/client.h"
#include "product/flags.h"
#include "test.h"

namespace doors_test {

using namespace mc;
using namespace mc::host;

namespace {

constexpr const Flag* kFlags[] = {&flags::kListen, &flags::kHttp,        &flags::kAuth,         &flags::kInsecure,
                                  &flags::kSeed,   &flags::kAllowedHost, &flags::kAllowedOrigin};
constexpr cli::Program kProgram{.name = "mc-try", .summary = "a program with doors", .flags = kFlags};

struct Bench {
  std::string folder;
  std::vector<std::string> words{"mc-try"};
  cli::Invocation invocation;
  DescriptorPlan descriptors{.limit = 256, .http = 64, .control = 64};
  InstanceId conductor;

  explicit Bench(std::vector<std::string> more) {
    std::string name = std::filesystem::temp_directory_path() / "mct-doors-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder = name;
    words.insert(words.end(), more.begin(), more.end());
    std::vector<const char*> raw;
    for (const auto& word : words) raw.push_back(word.c_str());
    auto parsed = cli::parse(kProgram, static_cast<int>(raw.size()), raw.data(),
                             [](const char*) -> const char* { return nullptr; });
    REQUIRE_OK(parsed);
    invocation = std::move(*parsed);
    conductor.bytes[0] = 7;
  }
  ~Bench() { std::filesystem::remove_all(folder); }

  Result<ControlDoor> control() { return ControlDoor::open(invocation.args, folder, conductor, 1, descriptors); }
  Result<std::unique_ptr<HttpDoors>> http(bool has_keys) {
    HttpDoors::Options options;
    options.socket_path = folder + "/operators";
    options.has_keys = has_keys;
    options.handler = [](const http::Request& request, const http::Responder& out) {
      out.respond({.status = 200, .headers = {}, .body = "you asked for " + request.path});
    };
    return HttpDoors::open(invocation.args, options, descriptors);
  }
};

TimePoint soon() {
  return SystemClock::instance().now() + 60s;
}

}  // namespace

TEST_CASE("host/doors: the control door names the port that it was given, and takes the keys of the run directory") {
  Bench b({"--listen", "tcp://127.0.0.1:0"});
  auto door = b.control();
  REQUIRE_OK(door);
  CHECK(door->uri().starts_with("tcp://127.0.0.1:"));
  CHECK_FALSE(door->uri().ends_with(":0"));
  CHECK(std::filesystem::exists(b.folder + "/local.key"));
  door->reload_keys();
  door->offer_keys();
}

TEST_CASE("host/doors: an endpoint off loopback needs keys of the cluster, or consent by name") {
  Bench closed({"--listen", "tcp://0.0.0.0:0"});
  const auto refused = closed.control();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().mc == err::kAuthRequired);
  Bench open({"--listen", "tcp://0.0.0.0:0", "--insecure", "control"});
  REQUIRE_OK(open.control());
}

TEST_CASE("host/doors: clients and operators reach one handler by two ways") {
  Bench b({"--http", "127.0.0.1:0"});
  auto doors = b.http(false);
  REQUIRE_OK(doors);
  CHECK((*doors)->url() == "http://" + (*doors)->address());
  for (const std::string& base : {(*doors)->url(), "unix:" + b.folder + "/operators"}) {
    const auto answer = http::fetch(http::Method::get, base, "/models", {}, "", soon());
    REQUIRE_OK(answer);
    CHECK(answer->body == "you asked for /models");
  }
  CHECK((*doors)->stats().requests == 1);  // the operators' are not counted among the clients'
  (*doors)->stop();
  CHECK_FALSE(http::fetch(http::Method::get, (*doors)->url(), "/models", {}, "", soon()));
}

TEST_CASE("host/doors: the HTTP door off loopback needs API keys, or consent by name") {
  Bench closed({"--http", "0.0.0.0:0"});
  const auto refused = closed.http(false);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().mc == err::kAuthRequired);
  const auto keyed = closed.http(true);
  REQUIRE_OK(keyed);
  CHECK((*keyed)->url().starts_with("http://127.0.0.1:"));
  CHECK((*keyed)->address().starts_with("0.0.0.0:"));
  Bench open({"--http", "0.0.0.0:0", "--insecure", "http"});
  REQUIRE_OK(open.http(false));
}

}  // namespace doors_test

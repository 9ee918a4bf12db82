#include "host/heartbeat.h"

#include <thread>

#include "base/fd.h"
#include "host/limits.h"
#include "host/loop.h"
#include "http/client.h"
#include "test.h"

using namespace mc;
using namespace mc::host;

TEST_CASE("host/heartbeat: a loop is alive until its last round is too long ago, and again after the next round") {
  VirtualClock clock;
  Heartbeat heart(clock.now());
  CHECK(heart.trouble(clock.now()).empty());
  clock.advance(Heartbeat::kAgeMax);
  CHECK(heart.trouble(clock.now()).empty());
  clock.advance(2s);
  CHECK(heart.trouble(clock.now()) == "the control loop has not run for 7.0 s");
  heart.beat(clock.now());
  CHECK(heart.trouble(clock.now()).empty());
}

namespace {

struct IdleMachine final : node::Machine {
  void handle(const node::Event&, TimePoint, node::Actions&) override {}
  TimePoint next_wakeup() const override { return kNever; }
  void check() const override {}
  bool idle() const override { return true; }
};

/// The status of /livez once it is `wanted`, or the last one seen within half a minute.
int livez_until(const std::string& url, int wanted, std::string& body) {
  const TimePoint end = after(SystemClock::instance().now(), 30s);
  int status = 0;
  while (status != wanted && SystemClock::instance().now() < end) {
    const auto answer = http::fetch(http::Method::get, url + "/livez", {}, "", end);
    REQUIRE_OK(answer);
    status = answer->status;
    body = answer->body;
    if (status != wanted) (void)EventFd::open()->wait(after(SystemClock::instance().now(), 20ms));
  }
  return status;
}

}  // namespace

TEST_CASE("host/heartbeat: /livez says 503 while a real loop is stuck, and 200 before and after") {
  ctl::HubOptions hub;
  hub.name = "n";
  hub.instance.bytes.fill(1);
  auto links = Links::open(hub, std::nullopt);
  REQUIRE_OK(links);
  IdleMachine machine;
  Heartbeat heart;
  auto loop = Loop::open({.machine = &machine, .links = links->get(), .heartbeat = &heart});
  REQUIRE_OK(loop);
  auto server = http::Server::open({}, [&](http::Request, http::Responder out) { out.respond(livez_response(heart)); });
  REQUIRE_OK(server);
  const std::string url = (*server)->url();
  std::thread thread([&] { (*loop)->run(); });
  std::string body;
  CHECK(livez_until(url, 200, body) == 200);
  const auto release = EventFd::open();
  REQUIRE_OK(release);
  (*loop)->post([&](TimePoint, node::Actions&) { (void)release->wait(after(SystemClock::instance().now(), 60s)); });
  CHECK(livez_until(url, 503, body) == 503);
  CHECK(body.find("the control loop has not run for") != std::string::npos);
  release->signal();
  CHECK(livez_until(url, 200, body) == 200);
  (*loop)->stop();
  thread.join();
}

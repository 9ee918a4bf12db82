#include "host/shutdown.h"

#include <csignal>

#include "base/cli.h"
#include "base/exit.h"
#include "test.h"

namespace shutdown_test {

using namespace mc;
using namespace mc::host;

namespace {
const TimePoint kStart = TimePoint{} + 10s;
}

TEST_CASE("host/shutdown: the first signal drains for a bounded time, and the second one stops at once") {
  Shutdown s;
  CHECK_FALSE(s.asked());
  CHECK_FALSE(s.is_due(true, kStart));
  CHECK(s.ask(SIGTERM, kStart, 30s));
  CHECK(s.asked());
  CHECK_FALSE(s.is_urgent());
  CHECK_FALSE(s.is_due(false, kStart + 30s - 1ns));
  CHECK(s.is_due(false, kStart + 30s));
  CHECK(s.is_due(true, kStart));
  CHECK_FALSE(s.ask(SIGTERM, kStart + 1s, 30s));
  CHECK(s.is_urgent());
  CHECK(s.is_due(false, kStart + 30s));  // the second signal gives no more time
  CHECK(s.outcome().value() == 0);
}

TEST_CASE("host/shutdown: the last signal gives the exit status, and a failure replaces it") {
  Shutdown s;
  s.ask(SIGINT, kStart, 1s);
  CHECK(s.outcome().value() == kExitInterrupted);
  s.ask(SIGTERM, kStart, 1s);
  CHECK(s.outcome().value() == 0);
  s.fail({Code::peer_lost, "the conductor refused this node"});
  s.fail({Code::io, "a later failure"});
  REQUIRE_FALSE(s.outcome());
  CHECK(s.outcome().error().what == "the conductor refused this node");
}

}  // namespace shutdown_test

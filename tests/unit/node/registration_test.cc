// A node's registration alone: what is due when, and which conductor counts.

#include "node/registration.h"

#include <set>

#include "bench.h"

namespace registration_test {

using namespace mc;
using namespace mc::node;
using mc::node::bench::instance;

namespace {

constexpr Duration kRetry = 500ms;
const TimePoint kStart = TimePoint{} + 10s;

Registration member(TimePoint now = kStart) {
  Registration r("me", kRetry, 1);
  REQUIRE(r.welcomed(instance(98), {"me", 200, 1000}, now));
  r.heard(now);
  return r;
}

}  // namespace

TEST_CASE("node/registration: the first Hello is due at once, and the next after the retry time and up to half of it") {
  std::set<TimePoint> times;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Registration r("me", kRetry, seed);
    REQUIRE(r.hello_due(kStart));
    r.asked(kStart);
    CHECK_FALSE(r.hello_due(kStart));
    const TimePoint next = r.next_wakeup();
    CHECK((next >= kStart + kRetry && next <= kStart + kRetry + kRetry / 2));
    CHECK_FALSE(r.hello_due(next - 1ns));
    CHECK(r.hello_due(next));
    times.insert(next);
  }
  CHECK(times.size() > 10);  // nodes that lost their conductor together do not ask together
}

TEST_CASE("node/registration: a Welcome names the node and sets its times, of at least 1 ms") {
  Registration r("", kRetry, 1);
  CHECK(r.welcomed(instance(98), {"p7", 0, 0, true}, kStart));
  r.heard(kStart);
  CHECK(r.name() == "p7");
  CHECK(r.has_tenants());
  CHECK(r.conductor() == instance(98));
  CHECK(r.dead_after() == 1ms);
  REQUIRE(r.beat_due(kStart));
  r.beaten(kStart);
  CHECK(r.next_wakeup() == kStart + 1ms);
  CHECK_FALSE(r.welcomed(instance(98), {"p7", 200, 1000}, kStart));  // the same conductor repeats its Welcome
  CHECK_FALSE(r.has_tenants());
}

TEST_CASE("node/registration: heartbeats follow at their interval, and one comes early when its content has changed") {
  Registration r = member();
  REQUIRE(r.beat_due(kStart));
  r.beaten(kStart);
  CHECK_FALSE(r.beat_due(kStart + 199ms));
  CHECK(r.beat_due(kStart + 200ms));
  r.beat_soon(kStart + 50ms);
  CHECK(r.beat_due(kStart + 50ms));
  r.lost(kStart + 60ms);
  CHECK_FALSE(r.beat_due(kStart + 10s));
}

TEST_CASE("node/registration: a conductor that is silent for its bound is lost, and any message puts the bound off") {
  Registration r = member();
  r.beaten(kStart);
  CHECK_FALSE(r.is_silent(kStart + 1s));
  CHECK(r.is_silent(kStart + 1s + 1ns));
  r.heard(kStart + 900ms);
  CHECK_FALSE(r.is_silent(kStart + 1900ms));
  r.lost(kStart + 2s);
  CHECK_FALSE(r.is_member());
  CHECK_FALSE(r.is_silent(kStart + 9s));
  CHECK(r.next_wakeup() <= kStart + 2s + kRetry / 2);
  CHECK(r.hello_due(r.next_wakeup()));
}

TEST_CASE("node/registration: time in which no message was read is no silence of the conductor") {
  Registration r = member();
  r.stalled(59s, kStart + 59500ms);  // 500 ms of silence came before
  CHECK_FALSE(r.is_silent(kStart + 60s));
  CHECK(r.is_silent(kStart + 60s + 1ns));
  r.stalled(10s, kStart + 60s);  // silence is never less than none
  CHECK(r.is_silent(kStart + 61s + 1ns));
}

TEST_CASE("node/registration: a member counts its own conductor alone until it has lost it") {
  Registration r = member();
  CHECK_FALSE(r.is_member_elsewhere(instance(98)));
  CHECK(r.is_member_elsewhere(instance(97)));
  r.lost(kStart);
  CHECK_FALSE(r.is_member_elsewhere(instance(97)));
  CHECK(r.welcomed(instance(97), {"me", 200, 1000}, kStart));
  CHECK(r.is_member_elsewhere(instance(98)));
}

TEST_CASE("node/registration: a refusal stands until a Welcome") {
  Registration r("me", kRetry, 1);
  CHECK(r.refused() == nullptr);
  r.refused_with({1023, "name taken"}, kStart);
  REQUIRE(r.refused() != nullptr);
  CHECK(r.refused()->mc == 1023);
  CHECK(r.refused_at() == kStart);
  CHECK_FALSE(r.is_member());
  r.welcomed(instance(98), {"me", 200, 1000}, kStart);
  CHECK(r.refused() == nullptr);
}

TEST_CASE("node/registration: a node that has left asks no more") {
  Registration r = member();
  CHECK_FALSE(r.has_left());
  r.leave();
  CHECK(r.has_left());
  CHECK_FALSE(r.is_member());
  CHECK_FALSE(r.hello_due(kStart + 60s));
  CHECK(r.next_wakeup() == kNever);
}

}  // namespace registration_test

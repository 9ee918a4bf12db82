// Circuit breakers alone, and what placement makes of the pairs they set aside.

#include "sched/breaker.h"

#include "sched/sched.h"
#include "test.h"

namespace breaker_test {

using namespace mc;
using namespace mc::sched;

namespace {

const Part kPair{"p0", "d0"};

struct Bench {
  explicit Bench(BreakerOptions options = {}) : breakers(options, test::seed()) {}
  /// A request that fails now and was placed now.
  void fail(const Part& part = kPair) {
    breakers.placed(part, "r");
    breakers.failed(part, "r", now, now);
    breakers.check();
  }
  void open(const Part& part = kPair) {
    while (!shut(part)) fail(part);
  }
  bool shut(const Part& part = kPair) const {
    const auto it = breakers.entries().find(part);
    return it != breakers.entries().end() && Breakers::is_shut(it->second);
  }
  /// Until the part is half open; the back-off it took.
  Duration wait() {
    const Duration took = breakers.next_wakeup() - now;
    now = breakers.next_wakeup();
    breakers.advance(now);
    breakers.check();
    return took;
  }
  TimePoint now{};
  Breakers breakers;
};

PrefillView prefill_node(std::string name, double queue_s = 0) {
  PrefillView view;
  view.name = std::move(name), view.queue_s = queue_s;
  view.cost.prefill_s_per_token = 1e-4;
  return view;
}

Snapshot cluster() {  // p0 and d0 are the better ones
  Snapshot s;
  s.tokens = 1000;
  s.prefill = {prefill_node("p0"), prefill_node("p1", 1)};
  s.add_holder("p0"), s.add_holder("p1");
  s.decode = {{.capacity_tokens = 100'000, .name = "d0"}, {.capacity_tokens = 100'000, .rows = 5, .name = "d1"}};
  for (auto& d : s.decode) d.cost.decode_s_per_row = 1e-3;
  return s;
}

std::string placed(const Snapshot& s) {
  Rng rng(1);
  const Placement p = place(s, *find_policy("kv-centric"), {}, rng);
  if (p.candidate < 0) return std::string(to_string(p.reason));
  return s.prefill[p.candidates[static_cast<size_t>(p.candidate)].node].name + " " +
         s.decode[static_cast<size_t>(p.decode)].name;
}

}  // namespace

TEST_CASE("sched/breaker: a pair is set aside after three failures in a row, and not when one succeeds between them") {
  Bench b;
  b.fail(), b.fail();
  CHECK_FALSE(b.shut());
  b.breakers.succeeded(kPair);
  CHECK(b.breakers.empty());
  b.fail(), b.fail();
  CHECK_FALSE(b.shut());
  b.fail();
  CHECK(b.shut());
  CHECK_FALSE(b.shut({"p0", "d1"}));
  CHECK_FALSE(b.shut({"p0", ""}));
}

TEST_CASE("sched/breaker: the back-off starts at a second and doubles with each failed probe, up to a minute") {
  Bench b;
  b.open();
  for (double mean_s : {1, 2, 4, 8, 16, 32, 60, 60, 60}) {
    const double took_s = to_seconds(b.wait());
    INFO("after " << mean_s);
    CHECK(took_s >= 0.75 * mean_s);
    CHECK(took_s <= 1.25 * mean_s);
    CHECK_FALSE(b.shut());
    b.fail();
    CHECK(b.shut());
  }
  b.wait();
  b.breakers.succeeded(kPair);
  b.open();
  CHECK(to_seconds(b.wait()) <= 1.25);
}

TEST_CASE("sched/breaker: exactly one request probes, and its end decides") {
  Bench b;
  b.open();
  b.breakers.placed(kPair, "least bad");  // placed although the pair was open
  b.wait();
  CHECK_FALSE(b.shut());
  b.breakers.placed(kPair, "probe");
  CHECK(b.shut());
  b.breakers.placed(kPair, "second");
  b.breakers.left(kPair, "second");
  CHECK(b.shut());
  b.breakers.left(kPair, "probe");  // its client went: nothing is known
  CHECK_FALSE(b.shut());
  b.breakers.placed(kPair, "third");
  CHECK(b.shut());
  b.breakers.succeeded(kPair);
  CHECK(b.breakers.empty());
}

TEST_CASE("sched/breaker: what was placed before the pair opened does not lengthen its back-off, but may close it") {
  Bench b;
  const TimePoint before = b.now;
  b.now += 10ms;
  b.open();
  const TimePoint until = b.breakers.next_wakeup();
  for (int i = 0; i < 20; ++i) b.breakers.failed(kPair, "old", before, b.now);
  CHECK((b.breakers.next_wakeup() == until));
  b.wait();
  b.breakers.failed(kPair, "old", before, b.now);
  CHECK_FALSE(b.shut());  // still half open
  b.breakers.succeeded(kPair);
  CHECK(b.breakers.empty());
}

TEST_CASE("sched/breaker: a node that goes takes its breakers with it, and no other's") {
  Bench b;
  b.open({"p0", "d0"}), b.open({"p1", "d0"}), b.open({"p0", ""}), b.open({"", "d1"});
  b.breakers.forget("p0");
  CHECK(b.breakers.entries().size() == 2);
  b.breakers.forget("d0");
  b.breakers.forget("d1");
  CHECK(b.breakers.empty());
  CHECK((b.breakers.next_wakeup() == kNever));
}

TEST_CASE("sched/breaker: each change is told once, in order, with the failures and the back-off") {
  Bench b;
  b.open();
  const Duration backoff = b.wait();
  b.breakers.succeeded(kPair);
  const auto changes = b.breakers.take_changes();
  REQUIRE(changes.size() == 3);
  CHECK(changes[0].state == BreakerState::open);
  CHECK(changes[0].failures == 3);
  CHECK((changes[0].backoff == backoff));
  CHECK(changes[1].state == BreakerState::half_open);
  CHECK(changes[2].state == BreakerState::closed);
  CHECK_FALSE(b.breakers.has_changes());
}

TEST_CASE("sched/bars: a barred pair is not chosen, its nodes are with others") {
  Snapshot s = cluster();
  CHECK(placed(s) == "p0 d0");
  s.bars = {{0, 0, 5}};
  CHECK(placed(s) == "p1 d0");  // the decode node is chosen first
  s.bars = {{0, 0, 5}, {1, 0, 5}};
  CHECK(placed(s) == "p0 d1");
  s.bars = {{-1, 0, 5}, {0, -1, 5}};
  CHECK(placed(s) == "p1 d1");
  s.bars = {{-1, 0, 5}, {0, -1, 5}, {1, 1, 5}};
  CHECK(placed(s) == "no_pair");
  s.prefill[0].accepting = s.prefill[1].accepting = false;
  CHECK(placed(s) == "no_prefill");
}

TEST_CASE("sched/bars: where every pair is barred, the one whose back-off ends first is used") {
  Snapshot s = cluster();
  s.bars = {{0, 0, 5}, {0, 1, 4}, {1, 0, 3}, {1, 1, 6}};
  lift_least_bad(s);
  CHECK(s.bars.size() == 3);
  CHECK(placed(s) == "p1 d0");
  s.bars = {{0, 0, 5}, {0, 1, 4}, {1, 0, 3}};
  lift_least_bad(s);
  CHECK(s.bars.size() == 3);  // one pair is left as it is
  CHECK(placed(s) == "p1 d1");
  s.decode[1].accepting = false;
  lift_least_bad(s);
  CHECK(placed(s) == "p1 d0");
}

}  // namespace breaker_test

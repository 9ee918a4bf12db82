#include "sched/admission.h"

#include "sched/policy.h"
#include "test.h"

using namespace mc;
using namespace mc::sched;

namespace {

Cost a800() {
  Cost c;
  c.prefill_s = .0428, c.prefill_s_per_token = .11048e-3, c.prefill_s_per_token2 = .7589e-9;
  c.decode_s = 26.16e-3, c.decode_s_per_row = .143e-3, c.decode_s_per_kv_token = 3.47e-8;
  return c;
}

PrefillView prefill_node(std::string name, double queue_s) {
  PrefillView view;
  view.name = std::move(name), view.queue_s = queue_s, view.cost = a800();
  return view;
}

// One prefill node; two decode nodes, the first with `rows` of 10,000 tokens that arrived and as many promised.
Snapshot snapshot(uint32_t rows) {
  Snapshot s;
  s.tokens = 10'000;
  s.prefill = {prefill_node("p0", 1.0)};
  s.add_holder("p0");
  s.decode = {
      {.kv_tokens = 20'000ull * rows, .capacity_tokens = 1'370'000, .rows = 2 * rows, .cost = a800(), .name = "d0"},
      {.kv_tokens = 700'000, .capacity_tokens = 1'370'000, .rows = 70, .cost = a800(), .name = "d1"}};
  s.decode[0].arrived_rows = rows, s.decode[0].arrived_kv_tokens = 10'000ull * rows;
  s.decode[1].arrived_rows = 70, s.decode[1].arrived_kv_tokens = 700'000;
  return s;
}

Options bounded(std::string_view admission) {
  Options o;
  o.ttft_slo_s = 30, o.tbt_slo_s = .06;
  o.admission = find_admission(admission);
  o.admitting.decode_s = 20;
  return o;
}

Placement decide(const Snapshot& s, const Options& o) {
  Rng rng(1);
  return place(s, *find_policy("load"), o, rng);
}

}  // namespace

TEST_CASE("sched/admission: the ways differ in which decode load they look at") {
  for (const Admission* a : admissions()) {
    const Placement calm = decide(snapshot(5), bounded(a->name));
    CHECK_MESSAGE(calm.candidate == 0, a->name);
    CHECK(calm.verdict.load_decode <= 1);
  }
  // 35 rows are there and 35 more are promised: only who counts promises says no.
  const Snapshot promised = snapshot(35);
  CHECK(decide(promised, bounded("none")).candidate == 0);
  CHECK(decide(promised, bounded("baseline")).candidate == 0);
  CHECK(decide(promised, bounded("early")).candidate == 0);
  CHECK(decide(promised, bounded("committed")).candidate < 0);
  // 70 rows on both nodes: too many now, but prediction knows that they will be gone.
  Snapshot busy = snapshot(70);
  std::vector<Inflight> old;
  for (int i = 0; i < 140; ++i) old.push_back({-19.5, static_cast<uint32_t>(i % 2), 10'000, 300, 0});
  busy.inflight = old;
  CHECK(decide(busy, bounded("early")).reason == NoPlace::predicted_slo_miss);
  CHECK(decide(busy, bounded("predict")).candidate == 0);
  for (auto& r : busy.inflight) r.arrives_s = -1;
  CHECK(decide(busy, bounded("predict")).verdict.bound == Bound::tbt);
}

TEST_CASE("sched/admission: a request is hopeless only when no decode node could keep its TBT alone") {
  Snapshot s = snapshot(60);  // d0 is fast and too busy: 85 ms
  s.decode[1] = {.capacity_tokens = 1'370'000, .cost = a800(), .name = "d1"};
  s.decode[1].cost.decode_s = .062;  // idle, the smaller TBT, and too slow for the bound of 60 ms
  const Placement later = decide(s, bounded("committed"));
  CHECK(later.verdict.bound == Bound::tbt);
  CHECK_FALSE(later.verdict.hopeless);
  s.decode[0].cost.decode_s = .062;
  CHECK(decide(s, bounded("committed")).verdict.hopeless);
}

TEST_CASE("sched/admission: a TTFT that is too long is rejected at arrival by all but none") {
  Snapshot s = snapshot(5);
  s.prefill[0].queue_s = 40;
  for (const Admission* a : admissions()) {
    const Placement p = decide(s, bounded(a->name));
    CHECK_MESSAGE((p.candidate < 0) == (a->name != "none"), a->name);
    if (p.candidate < 0) CHECK(p.allowed_s == 30);
  }
}

TEST_CASE("sched/admission: goodput expects answers to end as those seen did") {
  Lengths lengths;
  for (int i = 0; i < 1000; ++i) lengths.observe(100);
  Snapshot s = snapshot(70);
  s.lengths = &lengths;
  std::vector<Inflight> rows;
  for (int i = 0; i < 140; ++i) rows.push_back({-5, static_cast<uint32_t>(i % 2), 10'000, 95, 0});
  s.inflight = rows;
  CHECK(decide(s, bounded("goodput")).candidate == 0);
  for (auto& r : s.inflight) r.answered = 5;
  CHECK(decide(s, bounded("goodput")).verdict.bound == Bound::tbt);
}

TEST_CASE("sched/admission: lengths give back what they were taught") {
  Lengths lengths;
  CHECK(lengths.survival(0, 10) == 0);
  for (uint32_t i = 1; i <= 1000; ++i) lengths.observe(i);
  CHECK(lengths.mean() == doctest::Approx(500).epsilon(0.1));
  CHECK(lengths.quantile(0.5) == doctest::Approx(500).epsilon(0.1));
  CHECK(lengths.survival(0, 250) == doctest::Approx(0.75).epsilon(0.1));
  CHECK(lengths.survival(500, 250) == doctest::Approx(0.5).epsilon(0.15));
  CHECK(lengths.survival(2000, 1) == 0);
  CHECK(lengths.seconds(7) == 7);
  lengths.observe_seconds(3);
  CHECK(lengths.seconds(7) == 3);
}

TEST_CASE("sched/place: a new node is no magnet while it starts slowly") {
  Snapshot s = snapshot(5);
  s.prefill.push_back(prefill_node("p1", 0));
  s.add_holder("p1");
  s.prefill[1].up_s = 1;
  Options o = bounded("none");
  CHECK(decide(s, o).candidate == 1);
  o.slow_start_s = 60;
  Rng rng(1);
  const Placement p = place(s, *find_policy("cache-aware"), o, rng);
  CHECK(p.candidates[1].handicap_s > 1);
  CHECK(p.candidate == 0);
}

TEST_CASE("sched/place: a transfer waits behind what its sender still has to send, and no longer") {
  Snapshot s = snapshot(5);
  s.block_tokens = 512, s.block_bytes = 1'000'000;
  s.add_holder("c0", {.transfers_leaving = 3, .readable_blocks = 10, .pending_blocks = 10});
  Candidate c{.node = 0, .holder = 1, .fetch_blocks = 10};
  predict(s, c);
  const double shared_s = c.fetch_s;
  s.holders[1].leaving_bytes = 1000;
  predict(s, c);
  CHECK(shared_s == doctest::Approx(4 * 10e6 / 1e9));
  CHECK(c.fetch_s == doctest::Approx((10e6 + 1000) / 1e9));
}

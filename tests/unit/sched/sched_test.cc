#include "sched/sched.h"

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::sched;

namespace {

Cost paper_cost() {  // LLaMA3-70B on 8 x A800 (Mooncake brief, 6.3)
  Cost cost;
  cost.prefill_s = 0.0428, cost.prefill_s_per_token = 0.11048e-3, cost.prefill_s_per_token2 = 0.7589e-9;
  cost.decode_s = 26.16e-3, cost.decode_s_per_row = 0.143e-3, cost.decode_s_per_kv_token = 3.47e-8;
  cost.read_bytes_per_s = 87e9;
  return cost;
}

PrefillView prefill_node(std::string name) {
  PrefillView view;
  view.name = std::move(name), view.cost = paper_cost();
  return view;
}

Snapshot two_nodes() {
  Snapshot s;
  s.tokens = 8192, s.block_tokens = 512, s.block_bytes = 512ull * 327680;
  s.prefill = {prefill_node("p0"), prefill_node("p1")};
  s.add_holder("p0"), s.add_holder("p1");
  s.decode = {{.capacity_tokens = 1'000'000, .cost = paper_cost(), .name = "d0"},
              {.capacity_tokens = 1'000'000, .cost = paper_cost(), .name = "d1"}};
  return s;
}

void hold(Snapshot& s, size_t node, uint32_t blocks) {
  s.prefill[node].resident_blocks = blocks;
  s.holders[node].readable_blocks = blocks;
}

Placement run(const Snapshot& s, std::string_view policy, Options options = {}) {
  Rng rng(test::seed());
  return place(s, *find_policy(policy), options, rng);
}

}  // namespace

TEST_CASE("sched/cost: the paper's prefill times come out to the printed digits") {
  CHECK(paper_cost().prefill(8192, 0) == doctest::Approx(0.9988).epsilon(0.0001));
  CHECK(paper_cost().prefill(131072, 0) == doctest::Approx(27.5614).epsilon(0.0001));
  CHECK(paper_cost().prefill(8192, 4096) == doctest::Approx(0.5335).epsilon(0.0005));
}

TEST_CASE("sched/cost: a fit finds the coefficients that made the samples") {
  const Cost truth = paper_cost();
  std::vector<PrefillSample> prefills;
  std::vector<StepSample> steps;
  for (double n : {512.0, 2048.0, 8192.0, 32768.0})
    for (double share : {0.0, 0.5}) prefills.push_back({n, n * share, truth.prefill(n, n * share)});
  for (double rows : {1.0, 4.0, 16.0})
    for (double kv : {1000.0, 50000.0}) steps.push_back({rows, kv, truth.step(rows, kv)});
  Cost fitted;
  fit_prefill(prefills, fitted);
  fit_step(steps, fitted);
  CHECK(fitted.prefill_s == doctest::Approx(truth.prefill_s).epsilon(1e-6));
  CHECK(fitted.prefill_s_per_token == doctest::Approx(truth.prefill_s_per_token).epsilon(1e-6));
  CHECK(fitted.prefill_s_per_token2 == doctest::Approx(truth.prefill_s_per_token2).epsilon(1e-6));
  CHECK(fitted.decode_s == doctest::Approx(truth.decode_s).epsilon(1e-6));
  CHECK(fitted.decode_s_per_kv_token == doctest::Approx(truth.decode_s_per_kv_token).epsilon(1e-6));
}

TEST_CASE("sched/cost: a fit never gives a negative coefficient, whatever the noise") {
  Rng rng(test::seed());
  for (int round = 0; round < 200; ++round) {
    std::vector<PrefillSample> samples;
    for (uint64_t i = 0; i < rng.below(6); ++i) {
      const double n = 1 + static_cast<double>(rng.below(4096));
      samples.push_back({n, 0, 1e-3 + rng.uniform()});
    }
    Cost cost;
    fit_prefill(samples, cost);
    INFO("seed " << test::seed() << " round " << round);
    CHECK(cost.prefill_s >= 0);
    CHECK(cost.prefill_s_per_token >= 0);
    CHECK(cost.prefill_s_per_token2 >= 0);
  }
}

TEST_CASE("sched/cost: a correction follows the machine and shrugs off one absurd sample") {
  Correction c;
  for (int i = 0; i < 50; ++i) c.observe(1.0, 2.0);
  CHECK(c.factor() == doctest::Approx(2.0).epsilon(0.01));
  CHECK(c.error() < 0.05);
  c.observe(1.0, 1e9);
  CHECK(c.factor() < 4.0);
}

TEST_CASE("sched/kv-centric: the node that holds the prefix wins while its queue is short") {
  Snapshot s = two_nodes();
  hold(s, 1, 15);
  CHECK(run(s, "kv-centric").candidates[1].ttft_s < 0.2);
  CHECK(run(s, "kv-centric").candidate == 1);
}

TEST_CASE("sched/kv-centric: when the holder is busy the idle node fetches from it instead of computing") {
  Snapshot s = two_nodes();
  hold(s, 1, 15);
  s.prefill[1].queue_s = 10;
  const Placement p = run(s, "kv-centric");
  REQUIRE(p.candidate == 0);
  CHECK(p.candidates[0].holder == 1);
  CHECK(p.candidates[0].fetch_blocks == 15);
}

TEST_CASE(
    "sched/kv-centric: the cost rule computes when the wire is slower than the model, the threshold rule fetches") {
  Snapshot s = two_nodes();
  hold(s, 1, 15);
  s.prefill[1].queue_s = 10;
  s.prefill[0].cost.read_bytes_per_s = 1e9;  // below the break-even of 2.97 GB/s (brief, 5.3)
  CHECK(run(s, "kv-centric").candidates[0].holder == -1);
  Options threshold;
  threshold.fetch_rule = FetchRule::threshold;
  CHECK(run(s, "kv-centric", threshold).candidates[0].holder == 1);
}

TEST_CASE("sched/kv-centric: it waits for blocks being computed elsewhere only when that ends sooner") {
  Snapshot s = two_nodes();
  s.holders[1].pending_blocks = 15;
  s.holders[1].pending_s = 0.1;
  s.prefill[1].queue_s = 10;
  Placement p = run(s, "kv-centric");
  CHECK(p.candidates[0].holder == 1);
  CHECK(p.candidates[0].wait_s == doctest::Approx(0.1));
  s.holders[1].pending_s = 5;
  p = run(s, "kv-centric");
  CHECK(p.candidates[0].holder == -1);
}

TEST_CASE("sched/load: seconds of queued work decide, and for load-count the number of requests") {
  Snapshot s = two_nodes();
  s.prefill[0].queue_s = 3, s.prefill[0].unfinished = 1;
  s.prefill[1].queue_s = 2, s.prefill[1].unfinished = 4;
  hold(s, 0, 15);
  CHECK(run(s, "load").candidate == 1);
  CHECK(run(s, "load-count").candidate == 0);
  s.prefill[1] = s.prefill[0];
  CHECK(run(s, "load").candidate == 0);
  CHECK(run(s, "load-count").candidate == 0);
}

TEST_CASE("sched/cache-aware: it weighs the queue against its own blocks and never fetches") {
  Snapshot s = two_nodes();
  hold(s, 1, 15);
  s.prefill[1].queue_s = .5;  // the match saves 0.9 s
  CHECK(run(s, "cache-aware").candidate == 1);
  s.prefill[1].queue_s = 2;
  const Placement p = run(s, "cache-aware");
  CHECK(p.candidate == 0);
  CHECK(p.candidates[0].holder == -1);
}

TEST_CASE("sched/affinity: the longest match wins however long its queue, equals go by queue") {
  Snapshot s = two_nodes();
  hold(s, 0, 1);
  s.prefill[0].queue_s = 1e6;
  CHECK(run(s, "affinity").candidate == 0);
  hold(s, 1, 1);
  CHECK(run(s, "affinity").candidate == 1);
}

TEST_CASE("sched/random: every accepting node gets its share, and the same seed the same nodes") {
  Rng a(test::seed()), b(test::seed());
  const Snapshot s = two_nodes();
  int first = 0;
  for (int i = 0; i < 1000; ++i) {
    const Placement p = place(s, *find_policy("random"), {}, a);
    CHECK(p.candidate == place(s, *find_policy("random"), {}, b).candidate);
    first += p.candidate == 0;
  }
  INFO("seed " << test::seed());
  CHECK(first > 400);
  CHECK(first < 600);
}

TEST_CASE("sched: a request whose prediction breaks a promise is rejected with both numbers") {
  Options options;
  options.ttft_slo_s = 0.5;
  Placement p = run(two_nodes(), "kv-centric", options);
  CHECK(p.candidate == -1);
  CHECK(p.reason == NoPlace::predicted_slo_miss);
  CHECK(p.predicted_s == doctest::Approx(0.9988).epsilon(0.001));
  CHECK(p.allowed_s == 0.5);
  options = {};
  options.tbt_slo_s = 0.020;
  CHECK(run(two_nodes(), "kv-centric", options).reason == NoPlace::predicted_slo_miss);
}

TEST_CASE("sched: every policy places on an accepting node and never on one that drains") {
  for (const Policy* policy : policies()) {
    Snapshot s = two_nodes();
    s.prefill[0].accepting = false;
    const Placement p = run(s, policy->name);
    INFO(policy->name);
    REQUIRE(p.candidate >= 0);
    CHECK(s.prefill[p.candidates[static_cast<size_t>(p.candidate)].node].name == "p1");
    s.prefill[1].accepting = false;
    CHECK(run(s, policy->name).reason == NoPlace::no_prefill);
  }
}

TEST_CASE("sched: decode goes where the next step is shortest among nodes with room") {
  Snapshot s = two_nodes();
  s.decode[0].rows = 20, s.decode[0].kv_tokens = 500'000;
  CHECK(choose_decode(s) == 1);
  s.decode[1].capacity_tokens = 100;
  CHECK(choose_decode(s) == 0);
  s.decode[0].capacity_tokens = 100;
  CHECK(choose_decode(s) == -1);
}

TEST_CASE("sched: a full decode node still queues what it could ever hold") {
  Snapshot s = two_nodes();
  for (auto& d : s.decode) d.kv_tokens = d.capacity_tokens;
  CHECK(choose_decode(s) == 0);
}

TEST_CASE("sched: at least one prompt token is always computed") {
  Snapshot s = two_nodes();
  s.tokens = 1024;
  CHECK(reused_tokens(s, 2) == 1023);
  CHECK(reused_tokens(s, 1) == 512);
}

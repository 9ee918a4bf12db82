// Tenants, priorities, quotas and replication in a simulated cluster, and the same ones through the daemons' machines.
#include "sim/cluster.h"

#include <algorithm>
#include <map>

#include "cluster_bench.h"
#include "sim/machines.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;
using sim_test::Bench;

namespace {

const GroupFigures& find_group(const std::vector<GroupFigures>& groups, const std::string& name) {
  const auto at = std::find_if(groups.begin(), groups.end(), [&](const GroupFigures& g) { return g.name == name; });
  REQUIRE(at != groups.end());
  return *at;
}

/// A tenant that asks for minutes of work at once, and one that asks for little now and then.
Bench heavy_and_light() {
  Bench b("2p2d");
  for (int i = 0; i < 150; ++i) b.add(0.05 * i, 0, 32).tenant = "heavy";
  for (int i = 0; i < 20; ++i) b.add(1 + 4 * i, 0, 4).tenant = "light";
  return b;
}

}  // namespace

TEST_CASE("sim/cluster: a heavy tenant cannot starve a light one, and does where nobody tells them apart") {
  Bench b = heavy_and_light();
  const auto together = figures_of(b.trace, b.options, b.run());
  CHECK(find_group(together.tenants, "light").ttft_s.p50 > 20);
  b.options.tenants = {{.name = "heavy"}, {.name = "light"}};
  const auto apart = figures_of(b.trace, b.options, b.run());
  const GroupFigures &light = find_group(apart.tenants, "light"), &heavy = find_group(apart.tenants, "heavy");
  CHECK(light.ttft_s.p99 < 10);
  CHECK(light.good == light.requests);
  CHECK(heavy.served == heavy.requests);  // and nobody is lost
  CHECK(light.share + heavy.share == doctest::Approx(1));
}

TEST_CASE("sim/cluster: of two tenants that both want more than there is, weights share the work") {
  Bench b("1p1d");
  for (int i = 0; i < 120; ++i) {
    b.add(0.01 * i, 0, 16).tenant = "three";
    b.add(0.01 * i, 0, 16).tenant = "one";
  }
  b.options.tenants = {{.name = "three", .weight = 3}, {.name = "one", .weight = 1}};
  const ClusterRun run = b.run();
  // While both wait, three of four turns are the heavier one's.
  std::vector<std::pair<double, bool>> firsts;
  for (size_t i = 0; i < b.trace.size(); ++i)
    firsts.emplace_back(run.requests[i].ttft_s + b.trace[i].timestamp_ms * 1e-3, b.trace[i].tenant == "three");
  std::sort(firsts.begin(), firsts.end());
  const auto turns = std::count_if(firsts.begin(), firsts.begin() + 100, [](const auto& f) { return f.second; });
  CHECK(turns >= 70);
  CHECK(turns <= 80);
}

TEST_CASE("sim/cluster: the lower priority goes first, whatever orders the rest") {
  for (const HoldOrder order : {HoldOrder::arrival, HoldOrder::work}) {
    CAPTURE(std::string(to_string(order)));
    Bench b("1p1d");
    for (int i = 0; i < 40; ++i) b.add(0.01 * i, 0, 16).priority = i % 2 == 0 ? 2 : -2;
    b.options.hold_order = order;
    const auto f = figures_of(b.trace, b.options, b.run());
    CHECK(find_group(f.priorities, "2").ttft_s.mean > 2 * find_group(f.priorities, "-2").ttft_s.mean);
    for (TraceRequest& r : b.trace) r.priority = 0;
    CHECK(figures_of(b.trace, b.options, b.run()).priorities.empty());
  }
}

TEST_CASE("sim/cluster: quotas refuse whom the live machines refuse, of prompts and of answers") {
  Bench b("2p1d");
  b.options.dram_blocks = 600;
  for (int i = 0; i < 60; ++i) b.add(0.5 * i, 0, 4, 100).tenant = i % 3 == 0 ? "free" : "metered";
  for (int i = 0; i < 10; ++i) b.add(31, 0, 4, 100).tenant = "few";
  b.options.tenants = {{.name = "free"},
                       {.name = "metered", .tokens_per_s = 2000, .burst_tokens = 6000},
                       {.name = "few", .requests_max = 3}};
  const ClusterRun model = b.run();
  const auto machines = run_machines(b.trace, TraceBlocks(b.trace), b.options);
  REQUIRE_MESSAGE(machines.has_value(), machines.error().what);
  std::map<std::string, int> refused;
  for (size_t i = 0; i < b.trace.size(); ++i) {
    CAPTURE(i);
    CHECK(to_string(model.requests[i].fate) == to_string(machines->requests[i].fate));
    refused[b.trace[i].tenant] += model.requests[i].fate == Fate::rejected_quota;
  }
  CHECK(refused["free"] == 0);
  CHECK(refused["few"] == 7);
  CHECK(refused["metered"] > 5);
  CHECK(refused["metered"] < 35);
}

TEST_CASE("sim/cluster: replicas that are there before the demand raise the hit rate of bursts") {
  Bench b("4p2d", "cache-aware");  // fetches nothing by itself
  for (int i = 0; i < 240; ++i) b.add(0.5 * i, 40, 3);
  for (int burst = 0; burst < 3; ++burst)
    for (int i = 0; i < 12; ++i) b.add(60.2 + 20 * burst, 40, 3);
  const auto without = figures_of(b.trace, b.options, b.run());
  b.options.replicate.replicas_max = 4, b.options.replicate.bytes_per_s = 10e9;
  const ClusterRun run = b.run();
  const auto with = figures_of(b.trace, b.options, run);
  CHECK(run.copies > 0);
  CHECK(run.copies_used > 0);
  CHECK(run.copies_used <= run.copies);
  CHECK(run.copied_blocks_used <= run.copied_blocks);
  CHECK(with.dram_hit > without.dram_hit);
  CHECK(with.token_hit >= without.token_hit);
  CHECK(with.ttft_s.mean < without.ttft_s.mean);
  const uint64_t bytes = run.copied_blocks * 512 * b.profile.kv_bytes_per_token;
  CHECK(run.copied_bytes == doctest::Approx(static_cast<double>(bytes)));
}

TEST_CASE("sim/cluster: copies are bounded by their budget and by the nodes that may hold one") {
  Bench b("6p2d", "cache-aware");
  for (int i = 0; i < 200; ++i) b.add(0.5 * i, 40, 6);
  b.options.replicate.replicas_max = 3, b.options.replicate.bytes_per_s = 1e12;
  const ClusterRun few = b.run();
  CHECK(few.copies <= 2);  // of the one hot prefix, beside the node that computed it
  b.options.replicate.replicas_max = 6, b.options.replicate.bytes_per_s = 1;
  CHECK(b.run().copied_bytes <= 40 * 512.0 * static_cast<double>(b.profile.kv_bytes_per_token));
  b.options.replicate.bytes_per_s = 0;
  CHECK(b.run().copies == 0);
}

TEST_CASE("sim/cluster: a copy dies with its source or its target, and the node that comes back is empty") {
  Bench b("3p1d", "cache-aware");
  for (int i = 0; i < 100; ++i) b.add(0.5 * i, 40, 6);
  b.profile.paths.net.bytes_per_s = 20e9;  // a conductor gives up a copy that takes 20 s beside the hand-offs
  b.options.replicate.replicas_max = 3, b.options.replicate.bytes_per_s = 1e12;
  const ClusterRun all = b.run();
  for (uint32_t node = 0; node < 3; ++node)
    b.options.failures.push_back({.role = 'p', .index = node, .at_s = 6.0 + node, .back_s = 20.0 + node});
  const ClusterRun run = b.run();
  CHECK(run.retried > 0);
  CHECK(run.copies_used <= run.copies);
  for (const RequestRecord& r : run.requests) CHECK(r.fate != Fate::unfinished);
  CHECK(all.copies > 0);
}

TEST_CASE("sim/cluster: tenants, priorities and copies leave nothing to chance: equal seeds, equal runs") {
  Bench b("3p2d", "random");
  for (int i = 0; i < 200; ++i) {
    TraceRequest& r = b.add(0.2 * i, i % 4 < 2 ? 30 : 0, 8);
    r.tenant = i % 3 == 0 ? "a" : "b";
    r.priority = i % 5 - 2;
  }
  b.options.tenants = {{.name = "a", .weight = 2, .tokens_per_s = 20000}, {.name = "b", .priority = 1}};
  b.options.replicate.replicas_max = 3, b.options.replicate.bytes_per_s = 10e9;
  const ClusterRun first = b.run(), second = b.run();
  CHECK(first.copied_bytes == second.copied_bytes);
  CHECK(first.events == second.events);
  CHECK(first.held == second.held);
  CHECK(first.held > 0);
  for (size_t i = 0; i < b.trace.size(); ++i) {
    CHECK(first.requests[i].fate == second.requests[i].fate);
    CHECK(first.requests[i].end_s == second.requests[i].end_s);
  }
}

TEST_CASE("sim/cluster: what a tenant was not given is not missing afterwards: nobody waits for ever") {
  Bench b("1p1d");
  b.options.sched.admission = sched::find_admission("goodput");
  b.options.sched.ttft_slo_s = 8;
  for (int i = 0; i < 150; ++i) {
    TraceRequest& r = b.add(0.1 * i, 0, 8 + i % 24);
    r.tenant = i % 2 == 0 ? "a" : "b";
    r.priority = i % 3;
  }
  b.options.tenants = {{.name = "a", .weight = 5}, {.name = "b", .priority = 2, .requests_max = 30}};
  for (const HoldOrder order : {HoldOrder::arrival, HoldOrder::work}) {
    b.options.hold_order = order;
    b.options.hold = order == HoldOrder::work;
    const ClusterRun run = b.run();
    const auto f = figures_of(b.trace, b.options, run);
    CHECK(f.served + f.rejected_prefill + f.rejected_decode + f.rejected_quota == f.requests);
    CHECK(f.good > 10);
  }
}

TEST_CASE("sim/cluster: a prefill node whose request lost its decode node goes on with the next one") {
  for (const uint32_t pipeline : {1u, 2u}) {
    CAPTURE(pipeline);
    Bench b(pipeline == 1 ? "1p2d" : "2p2d");
    b.options.pipeline = pipeline;
    b.options.failures = {*parse_failure("d0@1s-2s", b.options.shape)};
    for (int i = 0; i < 4; ++i) b.add(0, 0, 24);
    for (const RequestRecord& r : b.run().requests) CHECK(r.fate == Fate::served);
  }
}

TEST_CASE("sim/cluster: a pipeline keeps as many blocks as its nodes together") {
  for (const uint32_t pipeline : {1u, 2u}) {
    CAPTURE(pipeline);
    Bench b(pipeline == 1 ? "1p1d" : "2p1d");
    b.options.pipeline = pipeline;
    b.options.dram_blocks = 10;
    for (int i = 0; i < 2; ++i) b.add(100 * i, 15, 1);
    const uint64_t reused = b.run().requests[1].dram_tokens / 512;
    CHECK(reused == (pipeline == 1 ? 10 : 15));
  }
}

TEST_CASE("sim/cluster: a first token that waits for the second moves the hand-off from TBT to TTFT, and no token") {
  for (const bool dies : {false, true}) {
    CAPTURE(dies);
    Bench b("2p2d");
    b.profile.paths.net.bytes_per_s = 2e9;  // a hand-off is long
    for (int i = 0; i < 12; ++i) b.add(3 * i, 0, 24, 1 + static_cast<uint64_t>(i) % 4);
    if (dies) b.options.failures = {*parse_failure("d0@4s-6s", b.options.shape)};
    const ClusterRun at_once = b.run();
    b.options.sched.first_with_second = true;
    const ClusterRun with_second = b.run();
    for (size_t i = 0; i < b.trace.size(); ++i) {
      const RequestRecord &a = at_once.requests[i], &w = with_second.requests[i];
      CAPTURE(i);
      REQUIRE(a.fate == Fate::served);
      REQUIRE(w.fate == Fate::served);
      if (a.attempts > 1 || w.attempts > 1) continue;
      CHECK(w.end_s == a.end_s);
      if (b.trace[i].output_tokens == 1) {
        CHECK(w.ttft_s == a.ttft_s);
        continue;
      }
      CHECK(w.ttft_s > a.ttft_s + a.handoff_s);
      CHECK(w.tbt_s < a.tbt_s - 0.9 * a.handoff_s);
      if (b.trace[i].output_tokens == 2) CHECK(w.tbt_s == 0);
    }
  }
}

TEST_CASE("sim/cluster: held requests wait as long as before the live machines, in both orders") {
  for (const HoldOrder order : {HoldOrder::arrival, HoldOrder::work}) {
    CAPTURE(std::string(to_string(order)));
    Bench b("2p1d");
    b.options.hold = true, b.options.hold_order = order;
    b.options.sched.admission = sched::find_admission("goodput");
    b.options.sched.ttft_slo_s = 15, b.options.sched.tbt_slo_s = 0.045;
    for (int i = 0; i < 120; ++i) b.add(0.25 * i, 0, 4 + static_cast<uint64_t>(i * 7 % 20), 150);
    const auto model = figures_of(b.trace, b.options, b.run());
    const auto run = run_machines(b.trace, TraceBlocks(b.trace), b.options);
    REQUIRE_MESSAGE(run.has_value(), run.error().what);
    const auto machines = figures_of(b.trace, b.options, *run);
    CHECK(machines.rejected_prefill > 5);
    CHECK(model.served == doctest::Approx(static_cast<double>(machines.served)).epsilon(0.04));
    CHECK(model.ttft_s.mean == doctest::Approx(machines.ttft_s.mean).epsilon(0.1));
    CHECK(model.ttft_s.p50 == doctest::Approx(machines.ttft_s.p50).epsilon(0.1));
  }
}

TEST_CASE("sim/cluster: admission baseline rejects for TBT in the model after prefill, and in the machines before") {
  Bench b("4p1d");
  b.options.sched.admission = sched::find_admission("baseline");
  b.options.sched.tbt_slo_s = 0.04;
  for (int i = 0; i < 150; ++i) b.add(0.25 * i, 0, 6, 400);
  const auto model = figures_of(b.trace, b.options, b.run());
  const auto run = run_machines(b.trace, TraceBlocks(b.trace), b.options);
  REQUIRE_MESSAGE(run.has_value(), run.error().what);
  const auto machines = figures_of(b.trace, b.options, *run);
  CHECK(model.rejected_after > 10);
  CHECK(machines.rejected_after == 0);
  CHECK(static_cast<double>(machines.rejected_decode) ==
        doctest::Approx(static_cast<double>(model.rejected_after)).epsilon(0.1));
}

// Seeded clusters of the production machines: a safety phase under faults, then a liveness phase in
// which a healthy cluster must serve everything; and canaries, which must be caught. The number of
// seeds is MC_SIM_SEEDS (default 20 per case, 2,000 with MC_TEST_FULL=1); --seed shifts them.

#include <array>

#include "schedule.h"
#include "sim/world.h"
#include "test.h"

namespace cluster_test {

using namespace mc;
using namespace mc::sim;

namespace {

constexpr uint32_t kTokens = 63;  // prompt token ids

// Prompts that share prefixes as conversations do: a few stems, extended by what came before.
std::vector<uint32_t> prompt(World& world, std::vector<std::vector<uint32_t>>& history) {
  Rng& rng = world.rng();
  std::vector<uint32_t> ids;
  if (!history.empty() && rng.chance(0.6)) {
    ids = history[rng.below(history.size())];
    if (rng.chance(0.3)) ids.resize(1 + rng.below(ids.size()));
  }
  const uint64_t more = rng.chance(0.2) ? rng.below(3) : 1 + rng.below(120);
  for (uint64_t i = 0; i < more; ++i) ids.push_back(static_cast<uint32_t>(rng.below(kTokens)));
  if (ids.size() > 300) ids.resize(300);
  if (ids.empty()) ids.push_back(1);
  history.push_back(ids);
  return ids;
}

void require_clean(World& world, uint64_t seed) {
  INFO("seed " << seed);
  REQUIRE_MESSAGE(world.violation().empty(), world.violation());
}

WorldOptions shape(uint64_t seed) {
  Rng rng(seed);
  WorldOptions o;
  o.seed = seed;
  o.prefill = 1 + static_cast<uint32_t>(rng.below(3));
  o.decode = 1 + static_cast<uint32_t>(rng.below(3));
  o.cache = static_cast<uint32_t>(rng.below(3));
  o.page_count = 48 + static_cast<uint32_t>(rng.below(100));
  o.chunk_tokens = 16u << rng.below(4);
  o.batch_max = 1 + static_cast<uint32_t>(rng.below(16));
  using Hold = node::ConductorOptions::Hold;
  o.hold = std::array{Hold::off, Hold::automatic, Hold::on}[rng.below(3)];
  o.priorities = rng.chance(0.5);
  if (rng.chance(0.5))
    o.replicate = {.replicas_max = 3, .bytes_per_s = 1e9, .half_life_s = 5, .node_share = 1e-4, .blocks_min = 1};
  if (rng.chance(0.3)) o.tenants = {{.name = "a", .weight = 3}, {.name = "b", .priority = 1}};
  draw_pipelines(rng, o);
  draw_disks(rng, o);
  if (rng.chance(0.5)) o.by_layer_bytes = 1, o.layers = 6;  // more pieces of a read
  if (rng.chance(0.5)) o.steps_max = 2;
  draw_holders(rng, o);
  if (rng.chance(0.3)) o.pass_tokens = 32u << rng.below(5);
  if (rng.chance(0.4)) o.inline_tokens = 16u << rng.below(4);
  return o;
}

}  // namespace

TEST_CASE("sim: a healthy cluster answers every request with the oracle's tokens") {
  for (uint64_t i = 0; i < seed_count(20); ++i) {
    const uint64_t seed = test::seed() + i;
    World world(shape(seed));
    world.run_for(100ms);
    std::vector<std::vector<uint32_t>> history;
    for (int n = 0; n < 30; ++n) {
      world.submit(prompt(world, history), 1 + static_cast<uint32_t>(world.rng().below(60)), 30s);
      world.run_for(Duration(world.rng().between(0, 20'000'000)));
    }
    INFO("seed " << seed);
    REQUIRE(world.run_until_done(30s));
    require_clean(world, seed);
    for (const auto& [req, outcome] : world.outcomes()) {
      INFO(req << " ended " << outcome.end());
      REQUIRE(outcome.served());
    }
    require_quiet(world);
  }
}

TEST_CASE("sim: no fault schedule yields a wrong token, a late end or a leak, and the cluster serves afterwards") {
  for (uint64_t i = 0; i < seed_count(20); ++i) {
    const uint64_t seed = 1000 + test::seed() + i;
    WorldOptions options = shape(seed);
    Rng shape_rng(seed);
    draw_faults(shape_rng, options.faults);
    draw_leases(shape_rng, options);
    World world(options);
    world.run_for(100ms);
    std::vector<std::vector<uint32_t>> history;
    const auto next = [&] { return prompt(world, history); };
    INFO("seed " << seed);
    run_turmoil(world, {.deadline_min = 50ms, .disconnect = 0.1, .restart = 0.15, .pause_max = 150ms}, next);
    require_service(world, next);
    require_quiet(world);
  }
}

TEST_CASE("sim: the canary is caught: without checksums a flipped bit gives a wrong token") {
  int caught = 0;
  for (uint64_t i = 0; i < 10; ++i) {
    WorldOptions options = shape(i);
    options.verify_checksums = false;
    options.faults.corrupt_read = 0.3;
    World world(options);
    world.run_for(100ms);
    std::vector<std::vector<uint32_t>> history;
    for (int n = 0; n < 20; ++n) {
      world.submit(prompt(world, history), 10, 10s);
      world.run_for(20ms);
    }
    world.run_until_done(10s);
    caught += world.violation().find("wrong token") != std::string::npos;
  }
  CHECK(caught == 10);
}

TEST_CASE("sim: cached blocks that change in memory give no wrong token, are counted and computed again") {
  uint64_t found = 0;
  for (uint64_t i = 0; i < seed_count(12); ++i) {
    const uint64_t seed = 3000 + test::seed() + i;
    WorldOptions options = shape(seed);
    options.faults.rot = 0.2;
    World world(options);
    world.run_for(100ms);
    std::vector<std::vector<uint32_t>> history;
    for (int n = 0; n < 30; ++n) {
      world.submit(prompt(world, history), 20, 20s);
      world.run_for(Duration(world.rng().between(0, 30'000'000)));
    }
    INFO("seed " << seed);
    REQUIRE(world.run_until_done(25s));
    require_clean(world, seed);
    for (const auto& [req, outcome] : world.outcomes())
      for (const auto& f : outcome.failed)
        found += f.reason == node::Reason::corrupt || f.reason == node::Reason::kv_transfer;
  }
  CHECK(found > 10);
}

TEST_CASE("sim: one seed gives one history") {
  const auto history_of = [](uint64_t seed) {
    WorldOptions options = shape(seed);
    options.faults.lose = 0.01;
    options.faults.corrupt_read = 0.02;
    World world(options);
    world.run_for(50ms);
    std::vector<std::vector<uint32_t>> history;
    for (int n = 0; n < 15; ++n) {
      world.submit(prompt(world, history), 20, 2s);
      world.run_for(15ms);
      if (n == 7) world.crash("d0");
      if (n == 9) world.restart("d0");
    }
    world.run_until_done(3s);
    std::string text = std::to_string(world.events_run());
    for (const auto& [req, o] : world.outcomes())
      text += ";" + req + " " + o.end() + " " + std::to_string(o.answer.size()) + " " +
              std::to_string((o.ended - TimePoint{}).count());
    return text;
  };
  CHECK(history_of(7) == history_of(7));
  CHECK(history_of(7) != history_of(8));
}

TEST_CASE("sim: reads that take longer than a lease bring their blocks, and the lease has a limit in total") {
  constexpr Duration kLease = 20ms;
  for (const bool is_too_slow : {false, true}) {
    WorldOptions options;
    options.seed = test::seed() + 9;
    options.prefill = 2, options.decode = 1, options.page_count = 200;
    options.sched.fetch_rule = sched::FetchRule::threshold;
    options.lease_time = kLease;
    options.prefix_from = sched::PrefixFrom::holders;
    // A block takes 5 ms, or the prefix of 16 blocks longer than all renewals.
    const double block_s = is_too_slow ? 2 * to_seconds(node::Lender::kTotalTtls * kLease) / 16 : 0.005;
    const double bytes = 2.0 * 2 * 16 * 16 * sizeof(float);
    for (const char* reader : {"p0", "p1"})
      for (const char* holder : {"p0", "p1", "d0"}) options.faults.slow[{reader, holder}] = block_s * 2e9 / bytes;
    World world(options);
    world.run_for(100ms);
    const auto ask = [&](const char* prefill, size_t tokens) {
      node::Submit submit;
      submit.ids.assign(tokens, 3), submit.pin_prefill = prefill, submit.deadline = 30s;
      submit.stopping.max_tokens = 4;
      const RequestId req = world.submit(submit);
      REQUIRE(world.run_until_done(30s));
      return req;
    };
    ask("p0", 16 * 16 + 1);
    const RequestId slow = ask("p1", 16 * 16 + 2);
    require_clean(world, options.seed);
    const Outcome& outcome = world.outcomes().at(slow);
    CHECK(outcome.served());
    CHECK(outcome.summary.report.cached_remote == (is_too_slow ? 0u : 256u));
    CHECK((outcome.summary.report.fallback == wire::Fallback::none) == !is_too_slow);
    require_quiet(world);
  }
}

TEST_CASE("sim: a client that disconnects frees pages and leases on all nodes within 200 ms") {
  WorldOptions options;
  options.seed = test::seed() + 5;
  options.prefill = 2, options.decode = 2, options.cache = 1;
  World world(options);
  world.run_for(100ms);
  std::vector<uint32_t> ids(200);
  for (uint32_t i = 0; i < ids.size(); ++i) ids[i] = i % kTokens + 1;
  for (Duration gone_after : {0ms, 1ms, 2ms, 4ms, 8ms, 30ms}) {
    const RequestId req = world.submit(ids, 200, 60s);
    world.run_for(gone_after);
    world.disconnect(req);
    world.run_for(200ms);
    INFO("disconnected after " << gone_after.count() / 1000000 << " ms");
    CHECK_MESSAGE(world.leftovers().empty(), world.leftovers());
    ids[0] += 1;
  }
  CHECK_MESSAGE(world.violation().empty(), world.violation());
}

TEST_CASE("sim: a request whose cancels were lost ends on its decode node within 20 ms all the same") {
  for (uint64_t i = 0; i < seed_count(20); ++i) {
    WorldOptions o;
    o.seed = test::seed() + i;
    INFO("seed " << o.seed);
    World world(o);
    world.run_for(50ms);
    const RequestId req = world.submit(std::vector<uint32_t>(100, 7), 400, 60s);
    world.run_for(2s, [&] { return world.worker("d0")->load().running > 0; });
    world.run_for(20ms);
    REQUIRE(world.worker("d0")->load().running == 1);  // and would be for 70 ms more
    Faults all_lost;
    all_lost.lose = 1;
    world.set_faults(all_lost);
    world.disconnect(req);
    world.set_faults({});
    CHECK_FALSE(world.leftovers().empty());
    world.run_for(20ms);
    CHECK_MESSAGE(world.leftovers().empty(), world.leftovers());
    CHECK_MESSAGE(world.violation().empty(), world.violation());
  }
}

TEST_CASE("sim: of requests with one prefix that come at once, with hold one computes it and the others reuse it") {
  for (uint64_t i = 0; i < seed_count(8); ++i) {
    WorldOptions options;
    options.seed = test::seed() + i;
    options.prefill = 3, options.decode = 2, options.page_count = 200;
    options.hold = node::ConductorOptions::Hold::on;
    World world(options);
    world.run_for(100ms);
    const std::vector<uint32_t> stem(16 * 16, 5);
    for (uint32_t n = 0; n < 6; ++n) {
      std::vector<uint32_t> ids = stem;
      ids.insert(ids.end(), 20, n + 6);
      world.submit(ids, 3, 10s);
    }
    REQUIRE(world.run_until_done(10s));
    uint32_t computed = 0;
    std::string each;
    for (const auto& [req, outcome] : world.outcomes()) {
      const auto& report = outcome.summary.report;
      computed += report.cached_local + report.cached_remote < stem.size();
      each += " " + outcome.summary.prefill + ":" + std::to_string(report.cached_local) + "+" +
              std::to_string(report.cached_remote) + ":" + to_string(outcome.summary.held_for) +
              wire::describe(report.fallback);
    }
    INFO("seed " << options.seed << each);
    CHECK(computed == 1);
    CHECK_MESSAGE(world.violation().empty(), world.violation());
  }
}

TEST_CASE("sim: a node that dies while requests wait for the prefix it computes costs none of them its answer") {
  for (uint64_t i = 0; i < seed_count(8); ++i) {
    WorldOptions options;
    options.seed = 50 + test::seed() + i;
    options.prefill = 2, options.decode = 1, options.page_count = 200;
    options.hold = node::ConductorOptions::Hold::on;
    options.faults.tell_peers_of_crash = i % 2 == 0;
    World world(options);
    world.run_for(100ms);
    const std::vector<uint32_t> stem(16 * 20, 9);
    const RequestId first = world.submit(stem, 3, 20s);
    for (uint32_t n = 0; n < 4; ++n) {
      std::vector<uint32_t> ids = stem;
      ids.insert(ids.end(), 5, n + 6);
      world.submit(ids, 3, 20s);
    }
    world.run_for(Duration(world.rng().between(0, 20'000'000)));
    world.crash(world.rng().chance(0.5) ? "p0" : "p1");
    INFO("seed " << options.seed);
    REQUIRE(world.run_until_done(20s));
    for (const auto& [req, outcome] : world.outcomes()) CHECK(outcome.served());
    CHECK_MESSAGE(world.violation().empty(), world.violation());
  }
}

TEST_CASE("sim: a prefix that draws load is copied to the nodes that lack it, within the replicas allowed") {
  for (uint64_t i = 0; i < seed_count(8); ++i) {
    WorldOptions options;
    options.seed = 70 + test::seed() + i;
    options.prefill = 4, options.decode = 2, options.page_count = 200;
    options.policy = "affinity";  // it never fetches: only copies can bring the prefix to another node
    options.replicate = {.replicas_max = 3, .bytes_per_s = 1e9, .half_life_s = 5, .node_share = 1e-6, .blocks_min = 2};
    World world(options);
    world.run_for(100ms);
    const std::vector<uint32_t> stem(16 * 8 + 1, 7);
    for (uint32_t n = 0; n < 8; ++n) {
      world.submit(stem, 2, 10s);
      REQUIRE(world.run_until_done(10s));
      world.run_for(50ms);
    }
    const auto& stats = world.conductor()->copies().stats();
    INFO("seed " << options.seed);
    CHECK(stats.copies == 2);
    CHECK(stats.blocks == 16);
    const auto e = world.conductor()->explain({.req = "x", .ids = stem}, world.now());
    uint32_t replicas = 0;
    for (const auto& h : e.snapshot.prefill) replicas += h.resident_blocks >= 8;
    CHECK(replicas == 3);
    CHECK_MESSAGE(world.violation().empty(), world.violation());
    CHECK_MESSAGE(world.leftovers().empty(), world.leftovers());
  }
}

TEST_CASE("sim: a repeated prompt reuses every reusable block and a longer one all of the first") {
  WorldOptions options;
  options.seed = test::seed() + 6;
  options.prefill = 2, options.decode = 2;
  World world(options);
  world.run_for(100ms);
  std::vector<uint32_t> ids(16 * 6 + 5, 3);
  world.submit(ids, 5, 10s);
  REQUIRE(world.run_until_done(10s));
  const RequestId again = world.submit(ids, 5, 10s);
  REQUIRE(world.run_until_done(10s));
  const auto& report = world.outcomes().at(again).summary.report;
  CHECK(report.cached_local + report.cached_remote == 16 * 6);
  ids.insert(ids.end(), 40, 4);
  const RequestId longer = world.submit(ids, 5, 10s);
  REQUIRE(world.run_until_done(10s));
  const auto& report2 = world.outcomes().at(longer).summary.report;
  CHECK(report2.cached_local + report2.cached_remote == 16 * 6);
  CHECK(world.violation().empty());
}

}  // namespace cluster_test

// Decode nodes that read a reused prefix from its holders: what that saves on links of a limited rate, and what a
// process costs that dies in the middle of it.

#include "long_profile.h"
#include "schedule.h"
#include "sim/world.h"
#include "test.h"

namespace holders_test {

using namespace mc;
using namespace mc::sim;

namespace {

// The prefix takes 8.2 s to compute and 2.05 s on a link, the rest of a prompt 0.15 s to compute.
constexpr uint32_t kPrefix = 8192;
constexpr double kTokenBytes = 1e6;

struct Bench {
  Result<sched::Profile> profile = long_profile();
  std::vector<uint32_t> prefix = std::vector<uint32_t>(kPrefix, 7);
  World world;

  explicit Bench(sched::PrefixFrom from) : world(options(from)) { world.run_for(1s); }
  WorldOptions options(sched::PrefixFrom from) {
    REQUIRE_OK(profile);
    WorldOptions o;
    o.seed = test::seed();
    o.prefill = 2, o.decode = 2, o.layers = 4, o.block_tokens = 512;
    o.page_count = 200, o.decode_pages = 400;
    o.chunk_tokens = 2048, o.context_tokens = 32768;
    o.profile = &*profile;
    o.prefix_from = from;
    return o;
  }
  /// The prefix is on p0 and d0 after that.
  void warm() {
    served(world, ask(world, prefix, "p0", "d0"));
    world.run_for(1s);
  }
  const node::Decode& decode(const std::string& name) { return dynamic_cast<const node::Decode&>(*world.worker(name)); }
  /// Bytes that decode nodes have read from prefill nodes, as the profile counts them.
  double from_prefill() {
    const double page = static_cast<double>(world.worker("d1")->shelf()->layout.page_bytes());
    const auto pages = static_cast<double>(decode("d1").stats().transferred_bytes) / page;
    return pages * 512 * kTokenBytes;
  }
  void quiet() {
    world.run_for(400s);
    REQUIRE_MESSAGE(world.violation().empty(), world.violation());
    REQUIRE_MESSAGE(world.leftovers().empty(), world.leftovers());
  }
};

struct Seen {
  double ttft_s = 0, handover_s = 0, from_prefill = 0;
};

/// p1 and d1 lack the prefix. With `alone`, only p0 has it, and d0 does not.
Seen run(sched::PrefixFrom from, bool alone) {
  Bench b(from);
  b.warm();
  if (alone) {
    b.world.crash("d0");
    b.world.restart("d0");
    b.world.run_for(5s);
  }
  const Outcome& o = served(b.world, ask(b.world, b.prefix, "p1", "d1"));
  const Seen seen{to_seconds(o.first_token - o.submitted), o.gaps_s.at(0), b.from_prefill()};
  b.quiet();
  return seen;
}

}  // namespace

TEST_CASE("sim/holders: a prefix that two nodes hold is on both nodes of a request at once, and not from p1 to d1") {
  const Seen before = run(sched::PrefixFrom::prefill, false), after = run(sched::PrefixFrom::automatic, false);
  MESSAGE("TTFT " << before.ttft_s << " -> " << after.ttft_s << " s, hand-over " << before.handover_s << " -> "
                  << after.handover_s << " s, from the prefill node " << before.from_prefill * 1e-9 << " -> "
                  << after.from_prefill * 1e-9 << " GB");
  CHECK(after.ttft_s <= 1.001 * before.ttft_s);
  CHECK(before.handover_s > 1.5);
  CHECK(after.handover_s < 0.2);
  CHECK(before.from_prefill > 8e9);
  CHECK(after.from_prefill < 0.6e9);
}

TEST_CASE("sim/holders: the only holder of a prefix serves the prefill node first, and the first token is not later") {
  const Seen before = run(sched::PrefixFrom::prefill, true), after = run(sched::PrefixFrom::automatic, true);
  MESSAGE("TTFT " << before.ttft_s << " -> " << after.ttft_s << " s, hand-over " << before.handover_s << " -> "
                  << after.handover_s << " s, from the prefill node " << before.from_prefill * 1e-9 << " -> "
                  << after.from_prefill * 1e-9 << " GB");
  CHECK(after.ttft_s <= 1.001 * before.ttft_s);
  CHECK(after.handover_s <= 1.01 * before.handover_s);
  CHECK(after.from_prefill < 0.6e9);
}

TEST_CASE("sim/holders: a process that dies in the middle of a read from a holder costs time and no token") {
  for (const std::string& victim : std::vector<std::string>{"p0", "d0", "p1", "d1", "conductor"}) {
    CAPTURE(victim);
    Bench b(sched::PrefixFrom::holders);
    b.warm();
    const RequestId req = ask(b.world, b.prefix, "p1", "d1");
    b.world.run_for(1s);  // of the 2 s that both reads take
    CHECK_FALSE(b.world.outcomes().at(req).is_over());
    CHECK(b.decode("d1").from_holders().blocks == 0);
    b.world.crash(victim);
    b.world.run_for(2s);
    b.world.restart(victim);
    if (victim != "conductor") {
      const Outcome& o = served(b.world, req);
      const bool is_holder = victim == "p0" || victim == "d0";
      CHECK(o.attempts == (is_holder ? 1 : 2));
    }
    b.quiet();
    served(b.world, ask(b.world, b.prefix, "p1", "d1"));
    b.quiet();
  }
}

TEST_CASE("sim/holders: under faults blocks come from holders and from what replaces them, and no token is wrong") {
  uint64_t blocks = 0, failures = 0, damaged = 0;
  for (uint64_t i = 0; i < seed_count(12); ++i) {
    const uint64_t seed = 120000 + test::seed() + i;
    Rng rng(seed);
    WorldOptions options;
    options.seed = seed;
    options.prefill = 2, options.decode = 2, options.cache = 1;
    options.sched.fetch_rule = sched::FetchRule::threshold;
    options.prefix_from = sched::PrefixFrom::holders;
    draw_pipelines(rng, options);
    draw_faults(rng, options.faults);
    World world(options);
    world.run_for(100ms);
    INFO("seed " << seed);
    std::vector<std::vector<uint32_t>> stems(4);
    for (auto& stem : stems)
      for (int n = 0; n < 10 * 16; ++n) stem.push_back(1 + static_cast<uint32_t>(world.rng().below(62)));
    for (int n = 0; n < 40; ++n) {
      std::vector<uint32_t> ids = stems[world.rng().below(stems.size())];
      for (uint64_t more = 1 + world.rng().below(40); more > 0; --more)
        ids.push_back(1 + static_cast<uint32_t>(world.rng().below(62)));
      world.submit(std::move(ids), 2 + static_cast<uint32_t>(world.rng().below(10)), 5s);
      world.run_for(Duration(world.rng().between(0, 20'000'000)));
    }
    REQUIRE(world.run_until_done(10s));
    world.run_for(35s);
    REQUIRE_MESSAGE(world.violation().empty(), world.violation());
    REQUIRE_MESSAGE(world.leftovers().empty(), world.leftovers());
    for (const char* name : {"d0", "d1"}) {
      const auto& seen = dynamic_cast<const node::Decode&>(*world.worker(name)).from_holders();
      blocks += seen.blocks, failures += seen.failures, damaged += seen.checksum_failures;
    }
  }
  MESSAGE(blocks << " blocks from holders, " << failures << " parts replaced, " << damaged << " of them damaged");
  CHECK(blocks > 0);
  CHECK(failures > 0);
}

}  // namespace holders_test

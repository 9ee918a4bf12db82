// Whole clusters whose nodes compute in the memory of a device, a tier over the host's pages: the answers are the
// oracle's though the device has room for few requests, under faults as well, and a copy to the device that fails ends
// one request.

#include <algorithm>

#include "schedule.h"
#include "sim/world.h"
#include "test.h"

namespace device_test {

using namespace mc;
using namespace mc::sim;

namespace {

constexpr uint32_t kTokens = 63;  // prompt token ids

WorldOptions shape(uint64_t seed) {
  Rng rng(seed);
  WorldOptions o;
  o.seed = seed;
  o.prefill = 1 + static_cast<uint32_t>(rng.below(2));
  o.decode = 1 + static_cast<uint32_t>(rng.below(2));
  o.page_count = 60 + static_cast<uint32_t>(rng.below(100));
  o.device_pages = 24 + static_cast<uint32_t>(rng.below(30));  // a request has up to 23
  o.layers = 1 + static_cast<uint32_t>(rng.below(4));
  o.batch_max = 1 + static_cast<uint32_t>(rng.below(16));
  if (rng.chance(0.5)) o.steps_max = 2;
  if (rng.chance(0.5)) o.inline_tokens = 48;
  if (rng.chance(0.5)) o.pass_tokens = 128;
  const auto all = kv::evictions();
  o.eviction = all[rng.below(all.size())];
  return o;
}

/// Turns of conversations: each is a few tokens longer than an earlier one, or new.
std::vector<uint32_t> prompt(World& world, std::vector<std::vector<uint32_t>>& history) {
  Rng& rng = world.rng();
  std::vector<uint32_t> ids;
  if (!history.empty() && rng.chance(0.6)) ids = history[rng.below(history.size())];
  const uint64_t more = 1 + rng.below(150);
  for (uint64_t i = 0; i < more; ++i) ids.push_back(static_cast<uint32_t>(rng.below(kTokens)));
  if (ids.size() > 300) ids.resize(300);
  history.push_back(ids);
  return ids;
}

struct Counts {
  uint64_t loaded = 0, evicted = 0;
  void add(World& world) {
    for (const auto& node : world.conductor()->nodes(world.now()))
      loaded += node.load.device_loaded_blocks, evicted += node.load.device_evicted_blocks;
  }
};

}  // namespace

TEST_CASE("sim: nodes whose devices have room for few requests answer all with the oracle's tokens") {
  Counts counts;
  for (uint64_t i = 0; i < seed_count(20); ++i) {
    const uint64_t seed = 9100 + test::seed() + i;
    CAPTURE(seed);
    World world(shape(seed));
    world.run_for(100ms);
    std::vector<std::vector<uint32_t>> history;
    for (int n = 0; n < 40; ++n) {
      world.submit(prompt(world, history), 1 + static_cast<uint32_t>(world.rng().below(40)), 30s);
      world.run_for(Duration(world.rng().between(0, 15'000'000)));
      REQUIRE_MESSAGE(world.violation().empty(), world.violation());
    }
    REQUIRE(world.run_until_done(30s));
    REQUIRE_MESSAGE(world.violation().empty(), world.violation());
    for (const auto& [req, outcome] : world.outcomes()) {
      INFO(req << " ended " << outcome.end());
      REQUIRE(outcome.served());
    }
    require_quiet(world);
    counts.add(world);
  }
  CHECK(counts.loaded > seed_count(20) * 50);
  CHECK(counts.evicted > seed_count(20) * 50);
}

TEST_CASE("sim: faults beside copies to devices yield no wrong token, no late end and no leak") {
  for (uint64_t i = 0; i < seed_count(30); ++i) {
    const uint64_t seed = 9300 + test::seed() + i;
    CAPTURE(seed);
    World world(shape(seed));
    Faults faults;
    draw_faults(world.rng(), faults);
    faults.fail_load = world.rng().chance(0.5) ? 0.2 * world.rng().uniform() : 0;
    world.set_faults(faults);
    std::vector<std::vector<uint32_t>> history;
    run_turmoil(world, {.deadline_min = 1ms, .disconnect = 0.1, .restart = 0.2, .pause_max = 40ms},
                [&] { return prompt(world, history); });
    require_service(world, [&] { return prompt(world, history); });
    require_quiet(world);
  }
}

TEST_CASE("sim: a copy to a device that fails ends the attempt of its own request, and the others have one attempt") {
  uint64_t failed = 0;
  for (uint64_t i = 0; i < seed_count(10); ++i) {
    const uint64_t seed = 9500 + test::seed() + i;
    CAPTURE(seed);
    WorldOptions options = shape(seed);
    options.inline_tokens = 0;
    World world(options);
    Faults faults;
    faults.fail_load = 0.1;
    world.set_faults(faults);
    world.run_for(100ms);
    std::vector<std::vector<uint32_t>> history;
    for (int n = 0; n < 20; ++n) {
      world.submit(prompt(world, history), 5, 30s);
      world.run_for(10ms);
    }
    REQUIRE(world.run_until_done(60s));
    REQUIRE_MESSAGE(world.violation().empty(), world.violation());
    for (const auto& [req, outcome] : world.outcomes())
      for (const auto& attempt : outcome.failed) {
        INFO(req << " " << node::to_string(attempt.stage) << " " << node::to_string(attempt.reason));
        CHECK((attempt.stage == node::RequestStage::prefill || attempt.stage == node::RequestStage::decode));
        CHECK(attempt.reason == node::Reason::io);
        ++failed;
      }
    world.set_faults({});
    require_quiet(world);
  }
  CHECK(failed > seed_count(10));
}

}  // namespace device_test

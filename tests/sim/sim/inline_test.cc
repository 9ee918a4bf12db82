// Decode nodes that compute short prompts themselves, in whole clusters of the production machines: what they compute
// is the oracle's, under faults as well, and running requests get their tokens within the bound of TBT.

#include <algorithm>

#include "schedule.h"
#include "sim/world.h"
#include "test.h"

namespace inline_test {

using namespace mc;
using namespace mc::sim;

namespace {

constexpr uint32_t kTokens = 63;  // prompt token ids
constexpr uint32_t kInlineTokens = 48;

WorldOptions shape(uint64_t seed) {
  Rng rng(seed);
  WorldOptions o;
  o.seed = seed;
  o.prefill = 1 + static_cast<uint32_t>(rng.below(2));
  o.decode = 1 + static_cast<uint32_t>(rng.below(3));
  o.page_count = 40 + static_cast<uint32_t>(rng.below(100));
  o.batch_max = 1 + static_cast<uint32_t>(rng.below(16));
  o.inline_tokens = kInlineTokens;
  if (rng.chance(0.5)) o.steps_max = 2;
  draw_holders(rng, o);
  return o;
}

/// Turns of conversations: each is a few tokens longer than an earlier one, or new.
std::vector<uint32_t> prompt(World& world, std::vector<std::vector<uint32_t>>& history) {
  Rng& rng = world.rng();
  std::vector<uint32_t> ids;
  if (!history.empty() && rng.chance(0.5)) ids = history[rng.below(history.size())];
  const uint64_t more = 1 + rng.below(rng.chance(0.7) ? kInlineTokens : 150);
  for (uint64_t i = 0; i < more; ++i) ids.push_back(static_cast<uint32_t>(rng.below(kTokens)));
  if (ids.size() > 300) ids.resize(300);
  history.push_back(ids);
  return ids;
}

}  // namespace

TEST_CASE("sim: decode nodes compute short prompts themselves, behind blocks that they have, and all are served") {
  uint64_t inlined = 0, handed_over = 0, reused = 0;
  for (uint64_t i = 0; i < seed_count(20); ++i) {
    const uint64_t seed = 7000 + test::seed() + i;
    CAPTURE(seed);
    World world(shape(seed));
    world.run_for(100ms);
    std::vector<std::vector<uint32_t>> history;
    for (int n = 0; n < 30; ++n) {
      world.submit(prompt(world, history), 1 + static_cast<uint32_t>(world.rng().below(40)), 30s);
      world.run_for(Duration(world.rng().between(0, 15'000'000)));
    }
    REQUIRE(world.run_until_done(30s));
    REQUIRE_MESSAGE(world.violation().empty(), world.violation());
    for (const auto& [req, outcome] : world.outcomes()) {
      INFO(req << " ended " << outcome.end());
      REQUIRE(outcome.served());
      const bool is_inlined = outcome.summary.prefill == outcome.summary.decode;
      (is_inlined ? inlined : handed_over) += 1;
      if (!is_inlined) continue;
      const uint32_t cached = outcome.summary.report.cached_local;
      reused += cached > 0;
      CHECK(outcome.asked.ids.size() - cached <= kInlineTokens);
    }
    require_quiet(world);
  }
  CHECK(inlined > seed_count(20) * 5);
  CHECK(handed_over > seed_count(20) * 3);
  CHECK(reused > seed_count(20));
}

TEST_CASE("sim: faults beside inlined prompts yield no wrong token, no late end and no leak") {
  uint64_t inlined = 0;
  for (uint64_t i = 0; i < seed_count(20); ++i) {
    const uint64_t seed = 8000 + test::seed() + i;
    CAPTURE(seed);
    WorldOptions options = shape(seed);
    Rng shape_rng(seed);
    draw_disks(shape_rng, options);
    draw_faults(shape_rng, options.faults);
    World world(options);
    world.run_for(100ms);
    std::vector<std::vector<uint32_t>> history;
    const auto next = [&] { return prompt(world, history); };
    run_turmoil(world, {.deadline_min = 20ms, .disconnect = 0.15, .restart = 0.2, .pause_max = 40ms}, next);
    require_service(world, next);
    inlined += world.conductor()->flights().stats().inlined;
    require_quiet(world);
  }
  CHECK(inlined > 0);
}

TEST_CASE("sim: without prefill work a short prompt's first token comes no later than through a prefill node") {
  double mean_s[2] = {0, 0};
  for (const bool inlines : {false, true}) {
    WorldOptions o;
    o.seed = test::seed();
    o.inline_tokens = inlines ? kInlineTokens : 0;
    World world(o);
    world.run_for(100ms);
    for (int n = 0; n < 20; ++n) {
      std::vector<uint32_t> ids(40);
      for (uint32_t& id : ids) id = static_cast<uint32_t>(world.rng().below(kTokens));
      const RequestId req = world.submit(ids, 2, 5s);
      REQUIRE(world.run_until_done(5s));
      const Outcome& outcome = world.outcomes().at(req);
      mean_s[inlines ? 1 : 0] += to_seconds(outcome.ended - outcome.submitted) / 20;
    }
    CHECK(world.conductor()->flights().stats().inlined == (inlines ? 20 : 0));
  }
  CHECK(mean_s[1] < mean_s[0]);  // no offer, no hand-over
}

}  // namespace inline_test

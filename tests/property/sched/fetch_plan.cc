// Plans of random holders: each block comes from exactly one node that holds it, a second plan is equal, and no block
// that nodes hold is left out.
#include "sched/fetch_plan.h"

#include <algorithm>

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::sched;

namespace {

constexpr uint32_t kBlocks = 24;

Snapshot spread_prompt(Rng& rng) {
  const auto below = [&](uint64_t n) { return static_cast<uint32_t>(rng.below(n)); };
  Snapshot s;
  s.tokens = kBlocks * 64 + 1, s.block_bytes = 1 + below(1'000'000);
  PrefillView node;
  node.name = "n0", node.holder = rng.chance(0.5) ? 0 : -1;
  node.cost.read_bytes_per_s = rng.chance(0.5) ? 1e9 : 1;
  s.prefill = {node};
  const uint32_t holders = 1 + below(rng.chance(0.1) ? 40 : 6);
  for (uint32_t i = 0; i < holders; ++i) {
    HolderView h;
    h.readable_blocks = h.pending_blocks = rng.chance(0.3) ? 0 : below(kBlocks + 1);
    h.disk_blocks = rng.chance(0.5) ? 0 : below(h.readable_blocks + 1);
    h.disk_block_s = rng.chance(0.5) ? 0 : 0.01;
    h.transfers_leaving = below(3);
    s.add_holder("n" + std::to_string(i), h);
  }
  for (uint32_t first = 0; first < kBlocks; ++first) {
    if (rng.chance(0.7)) continue;
    HolderRun run{static_cast<int>(below(holders)), first, first + 1 + below(kBlocks - first), 0};
    run.disk_blocks = below(run.end - run.first + 1);
    s.later_runs.push_back(run);
  }
  return s;
}

bool has(const Snapshot& s, int holder, uint32_t block) {
  if (holder == 0) return false;  // the node itself
  if (block < s.holders[static_cast<size_t>(holder)].readable_blocks) return true;
  return std::any_of(s.later_runs.begin(), s.later_runs.end(), [&](const HolderRun& run) {
    return run.holder == holder && run.first <= block && block < run.end;
  });
}

bool any_has(const Snapshot& s, uint32_t block) {
  for (size_t i = 0; i < s.holders.size(); ++i)
    if (has(s, static_cast<int>(i), block)) return true;
  return false;
}

}  // namespace

TEST_CASE("sched/fetch_plan: each block comes from one node that holds it, and the plan goes as far as blocks do") {
  INFO("seed ", test::seed());
  Rng rng(test::seed());
  uint32_t spread = 0;
  for (int round = 0; round < 20000; ++round) {
    CAPTURE(round);
    const Snapshot s = spread_prompt(rng);
    const auto first = static_cast<uint32_t>(rng.below(kBlocks)), end = static_cast<uint32_t>(rng.below(kBlocks + 1));
    FetchPlanner planner(s);
    const FetchPlan plan = planner.plan_with_spares(s.prefill[0], first, end);
    uint32_t next = first;
    for (const FetchRun& part : plan.parts) {
      REQUIRE((part.first == next && part.first < part.end));
      for (uint32_t block = part.first; block < part.end; ++block) REQUIRE(has(s, part.holder, block));
      next = part.end;
    }
    const uint32_t reach = planner.reach(s.prefill[0], first);
    REQUIRE(next == std::max(first, std::min(end, reach)));
    if (s.holders.size() <= 8) REQUIRE((reach >= kBlocks || !any_has(s, reach)));
    for (const FetchRun& spare : plan.spares) {
      REQUIRE((first <= spare.first && spare.first < spare.end && spare.end <= next));
      for (uint32_t block = spare.first; block < spare.end; ++block) REQUIRE(has(s, spare.holder, block));
    }
    REQUIRE((plan.seconds > 0) == !plan.parts.empty());
    const FetchPlan again = planner.plan_with_spares(s.prefill[0], first, end);
    REQUIRE((again.parts == plan.parts && again.spares == plan.spares && again.seconds == plan.seconds));
    spread += plan.parts.size() > 1;
  }
  CHECK(spread > 1000);
}

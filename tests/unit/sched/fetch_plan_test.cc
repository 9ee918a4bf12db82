#include "sched/fetch_plan.h"

#include "sched/sched.h"
#include "test.h"

using namespace mc;
using namespace mc::sched;

namespace {

// One prefill node p0, which holds nothing, and the holders p1, c0 and c1.
struct Plan {
  Snapshot s;
  Plan() {
    s.tokens = 64 * 64 + 1, s.block_tokens = 64, s.block_bytes = 1'000'000;
    PrefillView node;
    node.name = "p0", node.holder = 0;
    node.cost.read_bytes_per_s = 1e9;
    s.prefill = {node};
    for (const char* name : {"p0", "p1", "c0", "c1"}) s.add_holder(name);
    s.decode = {{.capacity_tokens = 1'000'000, .name = "d0"}};
  }
  void holds(size_t holder, uint32_t blocks, uint32_t disk_blocks = 0) {
    HolderView& h = s.holders[holder];
    h.readable_blocks = h.pending_blocks = blocks;
    h.disk_blocks = disk_blocks, h.disk_block_s = 0.01;
  }
  FetchPlan of(uint32_t first, uint32_t end) const {
    return FetchPlanner(s).plan_with_spares(s.prefill[0], first, end);
  }
};

using Runs = std::vector<FetchRun>;

}  // namespace

TEST_CASE("sched/fetch_plan: a prefix that one node holds has one part") {
  Plan p;
  p.holds(2, 60);
  CHECK(p.of(0, 60).parts == Runs{{2, 0, 60}});
  CHECK(p.of(0, 60).spares.empty());
  CHECK(p.of(0, 60).seconds == doctest::Approx(0.06));
  CHECK(p.of(25, 60).parts == Runs{{2, 25, 60}});
  CHECK(p.of(60, 64).parts.empty());
}

TEST_CASE("sched/fetch_plan: the prefix is cut where a run ends, and the longer run replaces the shorter one") {
  Plan p;
  p.holds(1, 20), p.holds(2, 60);
  const FetchPlan plan = p.of(0, 60);
  CHECK(plan.parts == Runs{{1, 0, 20}, {2, 20, 60}});
  CHECK(plan.spares == Runs{{2, 0, 60}});
}

TEST_CASE("sched/fetch_plan: runs behind the longest match continue it") {
  Plan p;
  p.holds(2, 30);
  p.s.later_runs = {{1, 30, 60, 0}};
  CHECK(FetchPlanner(p.s).reach(p.s.prefill[0], 0) == 60);
  CHECK(p.of(0, 60).parts == Runs{{2, 0, 30}, {1, 30, 60}});
  CHECK(p.of(40, 60).parts == Runs{{1, 40, 60}});
  p.s.later_runs = {{0, 30, 60, 0}};  // the node itself
  CHECK(FetchPlanner(p.s).reach(p.s.prefill[0], 0) == 30);
  CHECK(p.of(0, 60).parts == Runs{{2, 0, 30}});
  p.s.later_runs = {{1, 31, 60, 0}};
  CHECK(FetchPlanner(p.s).reach(p.s.prefill[0], 0) == 30);
}

TEST_CASE("sched/fetch_plan: a piece in the memory of one node is not read from the disk of another one") {
  Plan p;
  p.holds(1, 40), p.holds(2, 60, 60);
  CHECK(p.of(0, 60).parts == Runs{{1, 0, 40}, {2, 40, 60}});
  p.holds(2, 60, 10);  // its last blocks
  p.holds(3, 60);
  const FetchPlan plan = p.of(40, 60);
  CHECK(plan.parts == Runs{{2, 40, 50}, {3, 50, 60}});
}

TEST_CASE("sched/fetch_plan: ties go to the holder with fewer leaving transfers, then to the first one") {
  Plan p;
  p.holds(1, 60), p.holds(2, 60), p.holds(3, 60);
  CHECK(p.of(0, 60).parts == Runs{{1, 0, 60}});
  CHECK(p.of(0, 60).spares == Runs{{2, 0, 60}, {3, 0, 60}});
  p.s.holders[1].transfers_leaving = 2, p.s.holders[2].transfers_leaving = 1;
  CHECK(p.of(0, 60).parts == Runs{{3, 0, 60}});
  CHECK(p.of(0, 60).spares == Runs{{2, 0, 60}, {1, 0, 60}});
}

TEST_CASE("sched/fetch_plan: kv-centric fetches from two nodes what neither has alone, if that is sooner") {
  Plan p;
  p.holds(2, 30);
  p.s.later_runs = {{1, 30, 60, 0}};
  Rng rng(1);
  Options options;
  const auto chosen = [&] { return place(p.s, *find_policy("kv-centric"), options, rng).candidates[0]; };
  CHECK(chosen().fetch_blocks == 60);
  CHECK(plan_fetch(p.s, chosen(), 0).parts == Runs{{2, 0, 30}, {1, 30, 60}});
  CHECK(chosen().ttft_s == doctest::Approx(0.06 + p.s.prefill[0].cost.prefill(64 * 64 + 1, 60 * 64)));
  options.fetch_rule = FetchRule::threshold;
  CHECK(chosen().fetch_blocks == 60);
  options.fetch_rule = FetchRule::cost;
  p.s.later_runs[0].disk_blocks = 30, p.s.holders[1].disk_block_s = 1;
  CHECK(chosen().fetch_blocks == 30);
}

TEST_CASE("sched/fetch_plan: a fetch that waits for its holder has one part") {
  Plan p;
  p.holds(1, 20), p.holds(2, 30);
  p.s.holders[2].pending_blocks = 60, p.s.holders[2].pending_s = 0.01;
  Candidate c;
  CHECK(plan_fetch(p.s, c, 0).parts.empty());
  c.holder = 2, c.fetch_blocks = 60, c.wait_s = 0.01;
  CHECK(plan_fetch(p.s, c, 0).parts == Runs{{2, 0, 60}});
  c.wait_s = 0;  // pending, but no wait is predicted
  CHECK(plan_fetch(p.s, c, 0).parts == Runs{{2, 0, 60}});
}

TEST_CASE("sched/fetch_plan: a piece goes to the holder whose link brings it first") {
  Plan p;
  TransferCosts links;
  links.set_members(
      std::vector<TransferCosts::Member>{{0, true, 1e-9}, {1, true, 1e-9}, {2, true, 1e-9}, {3, true, 1e-9}});
  for (uint32_t i = 0; i < 4; ++i) p.s.holders[i].slot = i;
  p.holds(1, 60), p.holds(2, 60);
  CHECK(p.of(0, 60).parts == Runs{{1, 0, 60}});
  for (int i = 0; i < 3; ++i) links.add(1, 0, {6e7, 0.6}, {});  // ten times slower
  p.s.transfers = &links;
  CHECK(p.of(0, 60).parts == Runs{{2, 0, 60}});
  CHECK(p.of(0, 60).seconds == doctest::Approx(0.06));
  p.holds(2, 40);
  CHECK(p.of(0, 60).parts == Runs{{2, 0, 40}, {1, 40, 60}});
  CHECK(p.of(0, 60).seconds == doctest::Approx(0.2));
}

// Plans of a decode node to read blocks of a prefix from their holders.

#include "sched/direct_plan.h"

#include "sched/fetch_plan.h"
#include "test.h"

namespace direct_plan_test {

using namespace mc;
using namespace mc::sched;

namespace {

// Prefill node p0 and decode node d0. Other holders are c0 and c1. A block takes 1 ms on a link.
struct Plan {
  enum : size_t { kP0, kD0, kC0, kC1 };
  Snapshot s;
  Candidate c;
  PrefixFrom from = PrefixFrom::automatic;
  Plan() {
    s.tokens = 64 * 64 + 1, s.block_tokens = 64, s.block_bytes = 1'000'000;
    PrefillView node;
    node.name = "p0", node.holder = 0;
    s.prefill = {node};
    for (const char* name : {"p0", "d0", "c0", "c1"}) s.add_holder(name);
    s.decode = {{.capacity_tokens = 1'000'000, .name = "d0"}};
    s.decode[0].cost.read_bytes_per_s = s.prefill[0].cost.read_bytes_per_s = 1e9;
  }
  void holds(size_t holder, uint32_t blocks) {
    s.holders[holder].readable_blocks = s.holders[holder].pending_blocks = blocks;
  }
  /// p0 has `local` blocks and fetches the ones up to `end` from `holder`, with this queue before it.
  std::vector<DirectRun> of(uint32_t local, uint32_t end, int holder = -1, double queue_s = 0, uint32_t have = 0) {
    c.local_blocks = local, c.fetch_blocks = end - local, c.holder = holder;
    s.prefill[0].queue_s = queue_s, s.prefill[0].resident_blocks = local;
    predict(s, c);
    return plan_direct(s, c, 0, have, from);
  }
};

using Runs = std::vector<DirectRun>;

}  // namespace

TEST_CASE("sched/direct_plan: while the prefill node is busy, its prefix is read from another holder") {
  Plan p;
  p.holds(p.kP0, 40), p.holds(p.kC0, 60);
  CHECK(p.of(40, 40, -1, 0.5) == Runs{{p.kC0, 0, 40, false}});
  CHECK(p.of(40, 40, -1, 0.5, 15) == Runs{{p.kC0, 15, 40, false}});
  CHECK(p.of(40, 40, -1, 0.5, 40).empty());
  p.from = PrefixFrom::prefill;
  CHECK(p.of(40, 40, -1, 0.5).empty());
}

TEST_CASE("sched/direct_plan: neither the prefill node nor the decode node itself is such a holder") {
  Plan p;
  p.from = PrefixFrom::holders;
  p.holds(p.kP0, 60), p.holds(p.kD0, 20);
  CHECK(p.of(60, 60, -1, 0.5, 20).empty());
}

TEST_CASE("sched/direct_plan: a holder that the prefill node fetches from serves it first") {
  Plan p;
  p.holds(p.kC0, 60);
  CHECK(p.of(0, 60, p.kC0) == Runs{{p.kC0, 0, 60, true}});
  CHECK(p.of(0, 60, p.kC0, 0.05) == Runs{{p.kC0, 0, 60, true}});
  CHECK(p.of(0, 60, p.kC0, 0.13) == Runs{{p.kC0, 0, 60, false}});  // the queue is longer than both reads
  p.holds(p.kC1, 60);                                              // idle, so it is there sooner
  CHECK(p.of(0, 60, p.kC0) == Runs{{p.kC1, 0, 60, false}});
}

TEST_CASE("sched/direct_plan: a piece is read through the prefill node where that is sooner") {
  Plan p;
  p.holds(p.kP0, 40), p.holds(p.kC0, 40);
  CHECK(p.of(40, 40) == Runs{{p.kC0, 0, 40, false}});
  p.s.holders[p.kC0].transfers_leaving = 1;  // both links are as busy then
  CHECK(p.of(40, 40).empty());
  CHECK(p.of(40, 40, -1, 0.1) == Runs{{p.kC0, 0, 40, false}});  // but p0 begins later
  p.s.holders[p.kP0].transfers_leaving = 1;
  CHECK(p.of(40, 40) == Runs{{p.kC0, 0, 40, false}});
  p.s.block_bytes = 10'000;  // 0.4 ms to read, less than a holder's answer takes
  p.s.holders[p.kP0].transfers_leaving = p.s.holders[p.kC0].transfers_leaving = 0;
  CHECK(p.of(40, 40).empty());
  p.from = PrefixFrom::holders;
  CHECK(p.of(40, 40) == Runs{{p.kC0, 0, 40, false}});
}

TEST_CASE("sched/direct_plan: a piece costs the reads from disk of its own blocks, and no others") {
  Plan p;
  p.holds(p.kP0, 40), p.holds(p.kC0, 60);
  p.s.holders[p.kC0].disk_blocks = 20, p.s.holders[p.kC0].disk_block_s = 1;
  CHECK(p.of(40, 40) == Runs{{p.kC0, 0, 40, false}});  // in memory
  p.s.holders[p.kC0].disk_blocks = 21;
  CHECK(p.of(40, 40).empty());
}

TEST_CASE("sched/direct_plan: the prefix is read from several holders, and no plan waits for blocks being computed") {
  Plan p;
  p.holds(p.kC0, 20), p.holds(p.kC1, 60), p.holds(p.kP0, 60);
  CHECK(p.of(60, 60, -1, 1) == Runs{{p.kC0, 0, 20, false}, {p.kC1, 20, 60, false}});
  p.c.wait_s = 1;
  p.c.local_blocks = 0, p.c.fetch_blocks = 60, p.c.holder = p.kC1;
  CHECK(plan_direct(p.s, p.c, 0, 0, PrefixFrom::holders).empty());
}

TEST_CASE("sched/direct_plan: a slow link from a holder is worse than one from the prefill node, unless that is slow") {
  Plan p;
  p.holds(p.kP0, 40), p.holds(p.kC0, 40);
  CHECK(p.of(40, 40) == Runs{{p.kC0, 0, 40, false}});
  TransferCosts links;
  std::vector<TransferCosts::Member> members;
  for (uint32_t i = 0; i < p.s.holders.size(); ++i) members.push_back({p.s.holders[i].slot = i, true, 1e-9});
  links.set_members(members);
  p.s.transfers = &links, p.s.decode[0].holder = p.kD0;
  const uint32_t d0 = p.kD0;
  for (int i = 0; i < 3; ++i) links.add(p.kC0, d0, {4e7, 0.8}, {});
  CHECK(p.of(40, 40).empty());
  for (int i = 0; i < 3; ++i) links.add(p.kP0, d0, {4e7, 4}, {});
  CHECK(p.of(40, 40) == Runs{{p.kC0, 0, 40, false}});
}

}  // namespace direct_plan_test

// The fetch of a prefix, from the conductor's decision (sched/fetch_plan.h) to the order that the prefill node gets,
// and the reads of the decode node from holders (sched/direct_plan.h).
#pragma once

#include <span>
#include <vector>

#include "node/flights.h"
#include "node/members.h"
#include "node/node.h"
#include "sched/sched.h"

namespace mc::node {

/// The parts of a candidate's fetch.
std::vector<FetchSource> fetch_parts(const sched::Snapshot& snapshot, const sched::Candidate& candidate);

struct FetchOrder {
  std::vector<wire::Source> sources;  // the parts, then holders that may replace one
  std::vector<int> slots;             // holders of the parts, each once
  bool waits = false;                 // the holder still computes some of the blocks
};
/// The order for the chosen candidate; empty when it fetches nothing. `first`: blocks that its node has already.
FetchOrder order_fetch(const Members& members, const sched::Snapshot& snapshot, const sched::Candidate& chosen,
                       uint32_t first);

/// The runs of blocks that the decode node of a placement reads from holders. `matches`: blocks of the prompt that each
/// member holds.
std::vector<sched::DirectRun> direct_runs(const Members& members, const Request& r, const sched::Snapshot& snapshot,
                                          const sched::Placement& placement, std::span<const kv::NodeMatch> matches,
                                          sched::PrefixFrom from);
FetchOrder order_direct(const Members& members, const sched::Snapshot& snapshot,
                        std::span<const sched::DirectRun> runs);
std::vector<FetchSource> direct_parts(const sched::Snapshot& snapshot, std::span<const sched::DirectRun> runs);

}  // namespace mc::node

// The fetch of a prefix, from the conductor's decision (sched/fetch_plan.h) to the order that the prefill node gets.
#pragma once

#include <vector>

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

}  // namespace mc::node

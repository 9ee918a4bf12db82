// The reads of a decode node from the nodes that hold a reused prefix. Without them, the decode node reads the prefix
// from the prefill node, which may have fetched it from these nodes itself:
//
//   c0 --fetch--> p0 --hand-over, when p0 computes--> d0        through the prefill node
//   c0 --fetch--> p0
//   c0 --read---------------------------------------> d0        straight from the holder
//
// With PrefixFrom::automatic, a piece of the prefix is read from its holder when that brings it sooner. A read through
// the prefill node begins when that node computes, and what it computes leaves it at the same time.
//
// A read from a holder that the prefill node fetches from would slow that fetch down, and so the first token. Such a
// read waits for the end of the fetch, unless the queue of the prefill node hides the delay.
#pragma once

#include <vector>

#include "sched/policy.h"

namespace mc::sched {

/// Where decode nodes read a reused prefix: from the prefill node, from other holders where that is sooner, or from
/// other holders wherever there are any.
enum class PrefixFrom : uint8_t { prefill, automatic, holders };

/// Blocks that the decode node reads from a holder.
struct DirectRun {
  int holder = -1;  // index into Snapshot::holders
  uint32_t first = 0, end = 0;
  bool after_prefix = false;  // only when the prefill node has the prefix
  bool operator==(const DirectRun&) const = default;
};

/// Seconds that a holder's answer takes before the read can begin. A piece that saves less is not worth the messages.
inline constexpr double kAskSeconds = 1e-3;

/// The runs for decode node number `decode` of the snapshot, ascending. `have`: leading blocks that it holds. Empty
/// when the candidate reuses no other blocks, or waits for blocks that a holder computes.
std::vector<DirectRun> plan_direct(const Snapshot& snapshot, const Candidate& candidate, size_t decode, uint32_t have,
                                   PrefixFrom from);

}  // namespace mc::sched

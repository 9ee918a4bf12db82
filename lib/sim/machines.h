// A trace before the production machines: the conductor, prefill and decode nodes of lib/node, message by message, with
// the fabric of sim/world.h and the times of a profile. What ClusterEngine (sim/cluster.h) models about queues, caches,
// hand-off and batches is here what the machines do; that the two agree is tested, and this one, far slower, decides
// who is wrong.
#pragma once

#include <vector>

#include "base/result.h"
#include "sim/cluster.h"

namespace mc::sim {

struct Outcome;

/// Fate that a conductor's answer means: rejected_node only when it had no node of a role, unfinished for a request
/// that failed or ran out of time.
Fate fate_of(const Outcome& outcome);

/// As run_cluster gives it, as far as a conductor tells its clients. TBT is what they hear; prefill seconds, queue and
/// reused tokens are those of the attempt that gave the first token, 0 for requests without one. Not known
/// (ClusterRun::partial): hand-off, wasted GPU seconds, fetches, bytes moved, busy time, batches, preemptions, which
/// copies were used.
/// Takes those of `options` that live nodes have too. Code::unsupported for the others: coupled nodes, pipelines,
/// failures, SSD, KV that leaves in one piece, caches without a bound or smaller than one context, and requests held by
/// least work.
Result<ClusterRun> run_machines(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks,
                                const ClusterOptions& options);

}  // namespace mc::sim

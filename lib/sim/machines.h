// A trace served by the production machines: the conductor, prefill and decode nodes of lib/node run message by message
// with the fabric of sim/world.h and the times of a profile. run_cluster() (sim/cluster.h) models queues, caches,
// hand-off and batches; here the machines do this work. Tests compare the two. Where they differ, the machines are
// right.
#pragma once

#include <vector>

#include "base/result.h"
#include "sim/cluster.h"

namespace mc::sim {

struct Outcome;

/// The fate that a conductor's answer means: rejected_node only when the conductor had no node of a role, unfinished
/// for a request that failed or ran out of time.
Fate fate_of(const Outcome& outcome);

/// The run that run_cluster() gives, as far as the conductor's clients see it. TBT is as a client measures it. Prefill
/// seconds, queue and reused tokens are of the attempt that gave the first token, and 0 for requests without one.
/// Unknown (ClusterRun::partial) are hand-off, wasted GPU seconds, fetches, bytes moved, busy time, batches,
/// preemptions, and the use of copies. Code::unsupported for options that live nodes do not have: coupled nodes,
/// pipelines of more than four stages or with disks, failures, KV that leaves in one piece, and caches without a bound
/// or smaller than one context.
Result<ClusterRun> run_machines(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks,
                                const ClusterOptions& options);

}  // namespace mc::sim

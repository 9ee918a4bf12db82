// Parts that the verbs with a trace share: the reader of lib/sim, and the figures of `trace stats`.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "sim/trace.h"

namespace mc::bench {

using sim::kTraceBlockTokens;
using sim::read_trace;
using sim::TraceRequest;

struct TraceStatsOptions {
  std::vector<uint64_t> cache_blocks;  // LRU caches to replay besides the endless one
  std::vector<uint64_t> checkpoints;   // requests after which to print cumulative reuse
};

/// Arrivals, lengths, blocks and their reuse: the q-quantile is the ceil(qN)-th
/// smallest, deviations are population. `trace` has at least one request.
Json trace_statistics(const std::vector<TraceRequest>& trace, const TraceStatsOptions& options = {});
/// The same for people.
std::string describe_statistics(const Json& statistics);

/// Replays the trace through one cache for each of `policies` and `sizes` (kUnlimitedBlocks: endless): an
/// array of objects with policy, cache_blocks and the shares that hit.
Result<Json> trace_caches(const std::vector<TraceRequest>& trace, const std::vector<std::string>& policies,
                          const std::vector<uint64_t>& sizes);

}  // namespace mc::bench

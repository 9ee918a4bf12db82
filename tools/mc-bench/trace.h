// What the verbs that take a trace share: the reader of lib/sim, and the figures of `trace stats`.
#pragma once

#include <vector>

#include "base/json.h"
#include "sim/trace.h"

namespace mc::bench {

using sim::kTraceBlockTokens;
using sim::read_trace;
using sim::TraceRequest;

/// The figures of the brief's tables 10.2, 10.3 and 10.5 by its procedure: the q-quantile is the
/// ceil(qN)-th smallest, deviations are population, reuse is that of one cache that never evicts.
Json trace_statistics(const std::vector<TraceRequest>& trace);

}  // namespace mc::bench

// Request traces in Mooncake's form (docs: mooncake brief, section 10): one JSON object a line with
// timestamp (ms), input_length and output_length (tokens), and hash_ids, one id for each 512 tokens of
// the prompt, equal ids meaning equal blocks after equal prefixes. A trace is a stranger's file: every
// line is checked, and the first bad one is named.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace mc::bench {

inline constexpr uint64_t kTraceBlockTokens = 512;

struct TraceRequest {
  uint64_t timestamp_ms = 0;
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  std::vector<uint64_t> hash_ids;
};

/// At most `limit` requests; `path` - is stdin. MC6005 names the line and what is wrong with it;
/// MC5005 when the file cannot be read.
Result<std::vector<TraceRequest>> read_trace(const std::string& path, uint64_t limit = UINT64_MAX);

/// The figures of the brief's tables 10.2, 10.3 and 10.5 by its procedure: the q-quantile is the
/// ceil(qN)-th smallest, deviations are population, reuse is that of one cache that never evicts.
Json trace_statistics(const std::vector<TraceRequest>& trace);

}  // namespace mc::bench

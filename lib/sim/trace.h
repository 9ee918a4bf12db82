// Request traces in Mooncake's form (the traces published with FAST'25): one JSON object a line with
// timestamp (ms), input_length and output_length (tokens), and hash_ids, one id for each 512 tokens of
// the prompt, equal ids meaning equal blocks after equal prefixes. Ours may have two more keys: tenant, the name of the
// request's owner (up to 64 letters, digits, - and _), and priority (-100 to 100, lower goes first, 0 where it is
// absent). A trace may come from anywhere: every line is checked, and the first bad line is named.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace mc::sim {

inline constexpr uint64_t kTraceBlockTokens = 512;

struct TraceRequest {
  double timestamp_ms = 0;  // a fraction is kept: scaled traces have them
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  std::vector<uint64_t> hash_ids;
  std::string tenant;  // "" = of no tenant
  int priority = 0;
  bool operator==(const TraceRequest&) const = default;
};

/// At most `limit` requests; `path` - is stdin. MC6005 names the line and what is wrong with it;
/// MC5005 when the file cannot be read.
Result<std::vector<TraceRequest>> read_trace(const std::string& path, uint64_t limit = UINT64_MAX);

/// One line as read_trace reads it, with its line break.
std::string trace_line(const TraceRequest& request);

/// Merges several traces by time, equal times in the order given. Ids of different traces become different. The new ids
/// are dense, in the order of their appearance.
std::vector<TraceRequest> merge_traces(std::vector<std::vector<TraceRequest>> traces);

/// The blocks of a trace under small numbers, 0 to unique() - 1, so that tables of blocks are arrays.
/// Equal ids have equal numbers wherever they stand: a merged trace may use one id after two prefixes.
class TraceBlocks {
 public:
  /// With `spaces`, one a request, equal ids of different spaces are different blocks: tenants do not find each
  /// other's prompts.
  explicit TraceBlocks(std::span<const TraceRequest> trace, std::span<const uint32_t> spaces = {});
  std::span<const uint32_t> of(size_t request) const {
    return std::span(numbers_).subspan(begins_[request], begins_[request + 1] - begins_[request]);
  }
  uint32_t unique() const { return unique_; }
  size_t size() const { return begins_.size() - 1; }
  size_t total() const { return numbers_.size(); }

 private:
  std::vector<uint32_t> numbers_;
  std::vector<size_t> begins_;
  uint32_t unique_ = 0;
};

}  // namespace mc::sim

// The blocks of a trace that a cache would have reused, from the leading run of known blocks of each request:
// shares of blocks and tokens, their spread over requests and time.
#pragma once

#include <span>
#include <vector>

#include "base/json.h"
#include "trace.h"

namespace mc::bench {

/// Lists of five-minute windows end here, after a month: timestamps may be those of a calendar.
inline constexpr double kWindowListMax = 10'000;

/// Mean, population deviation, extremes and percentiles: total mean std min max p1 .. p99.9.
struct Spread {
  std::vector<double> sorted;
  double mean = 0, stddev = 0;

  explicit Spread(std::vector<double> values);
  Json json() const;
};

class Reuse {
 public:
  /// `leading` has the run of known blocks of each request.
  Reuse(const std::vector<TraceRequest>& trace, std::span<const uint32_t> leading);

  double block_hit() const { return blocks_ > 0 ? hit_blocks_ / blocks_ : 0; }
  double token_hit() const { return tokens_ > 0 ? hit_tokens_ / tokens_ : 0; }
  /// Mean over requests of the share of their tokens.
  double mean_ratio() const { return ratios_.empty() ? 0 : ratio_sum_ / static_cast<double>(ratios_.size()); }
  /// hit_blocks block_hit hit_tokens token_hit mean_request_token_hit
  Json shares() const;
  /// The same, and the table over requests.
  Json json() const;

 private:
  void add(const TraceRequest& request, uint32_t known);

  double blocks_ = 0, hit_blocks_ = 0, tokens_ = 0, hit_tokens_ = 0, ratio_sum_ = 0;
  std::vector<double> ratios_;
  uint64_t any_ = 0, one_ = 0, all_ = 0;
  std::vector<std::pair<double, double>> windows_;  // hit tokens, tokens of each five minutes
};

/// Cumulative figures after so many requests, for each of `counts` within the trace.
Json checkpoints(const std::vector<TraceRequest>& trace, std::span<const uint32_t> leading,
                 std::span<const uint64_t> counts);

/// Popularity, sessions, parents, distances. Members popularity, sessions, parents, reuse.
Json sharing_statistics(const std::vector<TraceRequest>& trace, const sim::TraceBlocks& blocks);

}  // namespace mc::bench

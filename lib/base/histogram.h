// Latency histogram that merges: exact while it holds at most kExactMax samples, logarithmic buckets
// (64 per power of two: error below 0.8 % of the value) beyond. The q-quantile of N samples is the
// ceil(qN)-th smallest, in both forms, so small runs report real samples and merging two runs gives
// what one run would have. Values are doubles >= 0 in the caller's unit. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace mc {

/// Rank of the q-quantile among `count` samples, counted from 1: ceil(q * count), at least 1.
uint64_t quantile_rank(double q, uint64_t count);
/// The ceil(qN)-th smallest of a sorted span; 0 when empty.
double quantile_sorted(std::span<const double> sorted, double q);

class Histogram {
 public:
  static constexpr size_t kExactMax = 4096;

  /// NaN is ignored; negative values count as 0.
  void record(double value);
  void merge(const Histogram& other);
  void clear() { *this = Histogram(); }

  uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  double min() const { return count_ == 0 ? 0 : min_; }
  double max() const { return count_ == 0 ? 0 : max_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  /// Population standard deviation.
  double stddev() const;
  /// 0 when empty.
  double quantile(double q) const;
  bool exact() const { return buckets_.empty(); }

 private:
  void spill();
  void add_bucket(double value, uint64_t times);

  std::vector<double> samples_;          // while exact
  std::map<int32_t, uint64_t> buckets_;  // bucket index -> samples, once spilled
  uint64_t count_ = 0;
  double sum_ = 0, min_ = 0, max_ = 0;
  double squares_ = 0;  // sum of squared distances from the mean (Welford; merged after Chan et al.)
};

}  // namespace mc

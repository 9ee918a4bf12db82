#include "base/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mc {
namespace {

constexpr int kPerOctave = 64;
constexpr int32_t kZeroBucket = std::numeric_limits<int32_t>::min();

int32_t bucket_of(double value) {
  if (value <= 0) return kZeroBucket;
  int exponent = 0;
  const double mantissa = std::frexp(value, &exponent);  // value = mantissa * 2^exponent, mantissa in [0.5, 1)
  return exponent * kPerOctave + static_cast<int32_t>((mantissa - 0.5) * 2 * kPerOctave);
}

double bucket_middle(int32_t bucket) {
  if (bucket == kZeroBucket) return 0;
  const int exponent = (bucket >= 0 ? bucket : bucket - (kPerOctave - 1)) / kPerOctave;
  const int step = bucket - exponent * kPerOctave;
  return std::ldexp(0.5 + (step + 0.5) / (2.0 * kPerOctave), exponent);
}

}  // namespace

uint64_t quantile_rank(double q, uint64_t count) {
  // 0.07 * 100 is 7.000000000000001 in binary: the guard keeps that rank 7.
  const double rank = std::ceil(q * static_cast<double>(count) - 1e-9);
  return static_cast<uint64_t>(std::clamp(rank, 1.0, std::max(1.0, static_cast<double>(count))));
}

double quantile_sorted(std::span<const double> sorted, double q) {
  return sorted.empty() ? 0 : sorted[quantile_rank(q, sorted.size()) - 1];
}

void Histogram::record(double value) {
  if (std::isnan(value)) return;
  value = std::max(value, 0.0);
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = count_ == 0 ? value : std::max(max_, value);
  const double before = mean();
  ++count_;
  sum_ += value;
  squares_ += (value - before) * (value - mean());
  if (!exact()) return add_bucket(value, 1);
  samples_.push_back(value);
  if (samples_.size() > kExactMax) spill();
}

void Histogram::add_bucket(double value, uint64_t times) {
  buckets_[bucket_of(value)] += times;
}

void Histogram::spill() {
  for (const double value : samples_) add_bucket(value, 1);
  samples_.clear();
  samples_.shrink_to_fit();
}

void Histogram::merge(const Histogram& other) {
  if (other.count_ == 0) return;
  min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = count_ == 0 ? other.max_ : std::max(max_, other.max_);
  const double apart = other.mean() - mean();
  const auto mine = static_cast<double>(count_), theirs_n = static_cast<double>(other.count_);
  squares_ += other.squares_ + apart * apart * mine * theirs_n / (mine + theirs_n);
  count_ += other.count_;
  sum_ += other.sum_;
  if (exact() && other.exact() && samples_.size() + other.samples_.size() <= kExactMax) {
    const size_t old = samples_.size();  // not insert(range): other may be *this
    samples_.resize(old + other.samples_.size());
    std::copy_n(other.samples_.begin(), samples_.size() - old, samples_.begin() + static_cast<ptrdiff_t>(old));
    return;
  }
  const std::vector<double> theirs = other.samples_;
  const std::map<int32_t, uint64_t> their_buckets = other.buckets_;
  if (exact()) spill();
  for (const double value : theirs) add_bucket(value, 1);
  for (const auto& [bucket, times] : their_buckets) buckets_[bucket] += times;
}

double Histogram::stddev() const {
  return count_ == 0 ? 0 : std::sqrt(squares_ / static_cast<double>(count_));
}

double Histogram::quantile(double q) const {
  if (count_ == 0) return 0;
  const uint64_t rank = quantile_rank(q, count_);
  if (rank == 1) return min_;
  if (rank == count_) return max_;
  if (exact()) {
    std::vector<double> sorted = samples_;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(rank - 1), sorted.end());
    return sorted[rank - 1];
  }
  uint64_t seen = 0;
  for (const auto& [bucket, times] : buckets_) {
    seen += times;
    if (seen >= rank) return std::clamp(bucket_middle(bucket), min_, max_);
  }
  return max_;
}

}  // namespace mc

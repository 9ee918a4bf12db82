// Buckets: exact below 32 tokens, then 16 a doubling; a bucket's answers are spread evenly over it.

#include <algorithm>
#include <array>
#include <bit>

#include "base/assert.h"
#include "sched/admission.h"

namespace mc::sched {
namespace {

constexpr double kLengthFade = 1.0 - 1.0 / 4096;  // an observation's weight halves in about 2,800
constexpr uint32_t kExact = 32, kPerDoubling = 16;

size_t bucket_of(uint32_t tokens) {
  if (tokens < kExact) return tokens;
  const uint32_t top = 31 - static_cast<uint32_t>(std::countl_zero(tokens));  // >= 5
  return kExact + (top - 5) * kPerDoubling + ((tokens >> (top - 4)) & (kPerDoubling - 1));
}

constexpr double computed_begin(size_t bucket) {
  if (bucket < kExact) return static_cast<double>(bucket);
  const size_t doubling = (bucket - kExact) / kPerDoubling, part = (bucket - kExact) % kPerDoubling;
  return static_cast<double>(uint64_t{kPerDoubling + part} << (doubling + 1));
}

// Admission asks thousands of times a decision.
constexpr auto kBegins = [] {
  std::array<double, 193> out{};
  for (size_t i = 0; i < out.size(); ++i) out[i] = computed_begin(i);
  return out;
}();

double begin_of(size_t bucket) {
  return kBegins[bucket];
}

}  // namespace

Lengths::Lengths() = default;

void Lengths::observe(uint32_t answer_tokens) {
  for (double& w : weight_) w *= kLengthFade;
  weight_[std::min(bucket_of(answer_tokens), kBuckets - 1)] += 1;
  ++samples_;
  double sum = 0;
  for (size_t i = kBuckets; i-- > 0;) above_[i] = sum, sum += weight_[i];
  MC_ASSERT(sum > 0);
  total_ = sum;
}

double Lengths::beyond(double tokens) const {
  if (tokens <= 0) return total_;
  const size_t i = std::min(bucket_of(static_cast<uint32_t>(std::min(tokens, 4e9))), kBuckets - 1);
  const double begin = begin_of(i), width = begin_of(i + 1) - begin;
  return above_[i] + weight_[i] * std::clamp(1 - (tokens - begin) / width, 0.0, 1.0);
}

double Lengths::survival(double answered, double more) const {
  const double now = beyond(answered);
  return now > 0 ? beyond(answered + more) / now : 0;
}

double Lengths::quantile(double q, double answered) const {
  const double target = (1 - q) * beyond(answered);
  double low = answered, high = begin_of(kBuckets);
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (beyond(middle) > target ? low : high) = middle;
  }
  return high;
}

double Lengths::mean() const {
  double sum = 0;
  for (size_t i = 0; i < kBuckets; ++i) sum += weight_[i] * (begin_of(i) + begin_of(i + 1) - 1) / 2;
  return total_ > 0 ? sum / total_ : 0;
}

void Lengths::observe_seconds(double seconds) {
  ++seconds_samples_;
  seconds_ += (seconds - seconds_) / static_cast<double>(std::min<uint64_t>(seconds_samples_, 256));
}

}  // namespace mc::sched

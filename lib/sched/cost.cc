#include "sched/cost.h"

#include <algorithm>
#include <cmath>

#include "sched/least_squares.h"

namespace mc::sched {

void fit_prefill(std::span<const PrefillSample> samples, Cost& cost) {
  LeastSquares fit;
  for (const auto& s : samples)
    fit.add({1.0, s.tokens - s.reused, s.tokens * s.tokens - s.reused * s.reused}, s.seconds);
  LeastSquares::Row x;
  if (samples.size() < 2 || !fit.solve(x)) return;
  cost.prefill_s = x[0], cost.prefill_s_per_token = x[1], cost.prefill_s_per_token2 = x[2];
}

void fit_step(std::span<const StepSample> samples, Cost& cost) {
  LeastSquares fit;
  for (const auto& s : samples) fit.add({1.0, s.rows, s.kv_tokens}, s.seconds);
  LeastSquares::Row x;
  if (samples.size() < 2 || !fit.solve(x)) return;
  cost.decode_s = x[0], cost.decode_s_per_row = x[1], cost.decode_s_per_kv_token = x[2];
}

void Correction::observe(double predicted_s, double observed_s) {
  if (!(predicted_s > 0) || !(observed_s > 0)) return;
  const double ratio = std::clamp(observed_s / predicted_s, 1.0 / 16, 16.0);
  const double weight = samples_ < 8 ? 1.0 / static_cast<double>(samples_ + 1) : kWeight;
  error_ += weight * (std::abs(observed_s - predicted_s * factor_) / observed_s - error_);
  factor_ += weight * (ratio - factor_);
  ++samples_;
}

}  // namespace mc::sched

// The cost of work, in seconds (after the estimators of Mooncake 6.1):
//   prefill(n, p) = T0 + a (n - p) + b (n^2 - p^2)       n prompt tokens, p of them reused
//   step(rows, K) = S0 + s rows + k K                    K context tokens over the batch
//   read(bytes)   = bytes (1 + transfers already leaving the source) / bandwidth
// A worker announces coefficients that `mc-bench model` has fitted. Its later reports correct them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace mc::sched {

/// The uncomputed part of a prompt: the terms of prefill(n, p) that the coefficients multiply.
struct Work {
  double tokens = 0, tokens2 = 0;
  Work() = default;
  /// The arguments are doubles because n^2 overflows 32 bits at 64 Ki tokens.
  Work(double prompt_tokens, double reused)
      : tokens(prompt_tokens - reused), tokens2(prompt_tokens * prompt_tokens - reused * reused) {}
};

struct Cost {
  double decode_s = 2e-3;
  double decode_s_per_row = 1e-4;
  double decode_s_per_kv_token = 0;
  double prefill_s = 2e-3;
  double prefill_s_per_token = 1e-4;
  double prefill_s_per_token2 = 0;
  double read_bytes_per_s = 1e9;

  double prefill(const Work& work) const {
    return prefill_s + prefill_s_per_token * work.tokens + prefill_s_per_token2 * work.tokens2;
  }
  double prefill(double tokens, double reused) const { return prefill(Work(tokens, reused)); }
  double step(double rows, double kv_tokens) const {
    return decode_s + decode_s_per_row * rows + decode_s_per_kv_token * kv_tokens;
  }
  double read(double bytes, double transfers_leaving) const {
    return bytes * (1.0 + transfers_leaving) / std::max(read_bytes_per_s, 1.0);
  }
};

/// A sample for `fit_prefill`: `seconds` for computing tokens `reused`..`tokens`.
struct PrefillSample {
  double tokens, reused, seconds;
};
struct StepSample {
  double rows, kv_tokens, seconds;
};

/// Least squares with non-negative coefficients. A coefficient that the samples do not determine (fewer than two
/// distinct points) stays that of `fallback`. Samples are weighted by 1/seconds, so that short runs count too.
void fit_prefill(std::span<const PrefillSample> samples, Cost& cost);
void fit_step(std::span<const StepSample> samples, Cost& cost);

/// A factor that corrects predictions by observation: an exponentially weighted mean of observed / predicted, bounded
/// to [1/16, 16] so that one absurd sample cannot distort later predictions.
class Correction {
 public:
  double factor() const { return factor_; }
  void observe(double predicted_s, double observed_s);
  /// Mean of |observed - predicted| / observed over the recent past: the prediction error metric.
  double error() const { return error_; }
  uint64_t samples() const { return samples_; }

 private:
  static constexpr double kWeight = 0.125;  // averages about the last 15 samples
  double factor_ = 1.0;
  double error_ = 0.0;
  uint64_t samples_ = 0;
};

}  // namespace mc::sched

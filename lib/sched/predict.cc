#include "sched/predict.h"

#include <algorithm>
#include <cmath>

namespace mc::sched {
namespace {

constexpr double kSampleFade = 1.0 - 1.0 / 32;

/// Weight of each pseudo sample of the announced model, next to samples of weight 1. With many samples the weight is
/// small but never 0.
double prior_weight(uint64_t samples) {
  return std::max(0.5 / (1 + static_cast<double>(samples) / 8), 0.002);
}

LeastSquares::Row prefill_row(double tokens, double reused) {
  return {1.0, tokens - reused, tokens * tokens - reused * reused};
}

}  // namespace

void RelativeError::observe(double predicted, double observed) {
  if (!(predicted > 0) || !(observed > 0)) return;
  const double off = std::clamp(predicted / observed - 1, -1.0, 16.0);
  const double weight = std::max(1.0 / static_cast<double>(++samples_), 1 - kSampleFade);
  mape_ += weight * (std::abs(off) - mape_);
  bias_ += weight * (off - bias_);
}

bool Predictor::enter(Fit& fit, const LeastSquares::Row& row, double announced_s, double predicted_s, double seconds) {
  if (!(announced_s > 0) || !(seconds > 0) || !std::isfinite(seconds)) return false;
  fit.error.observe(predicted_s, seconds);
  fit.factor.observe(announced_s, seconds);
  // The clamp keeps one absurd sample (a suspended machine) from distorting the fit.
  const double kept = std::clamp(seconds, predicted_s / 16, predicted_s * 16);
  fit.squares.fade(kSampleFade);
  fit.squares.add(row, kept);
  return true;
}

void Predictor::prefilled(double tokens, double reused, double seconds) {
  const auto row = prefill_row(tokens, reused);
  if (!enter(prefill_, row, announced_.prefill(tokens, reused), cost_.prefill(tokens, reused), seconds)) return;
  LeastSquares with_prior = prefill_.squares;
  for (double n : {256.0, 1024.0, 4096.0, 16384.0})
    with_prior.add(prefill_row(n, 0), announced_.prefill(n, 0) * prefill_factor(),
                   prior_weight(prefill_.error.samples()));
  LeastSquares::Row x;
  if (!with_prior.solve(x)) return;
  cost_.prefill_s = x[0], cost_.prefill_s_per_token = x[1], cost_.prefill_s_per_token2 = x[2];
}

void Predictor::stepped(double rows, double kv_tokens, double seconds) {
  if (!enter(step_, {1.0, rows, kv_tokens}, announced_.step(rows, kv_tokens), cost_.step(rows, kv_tokens), seconds))
    return;
  LeastSquares with_prior = step_.squares;
  for (double b : {1.0, 8.0, 32.0})
    for (double kv : {1024.0, 65536.0})
      with_prior.add({1.0, b, kv}, announced_.step(b, kv) * step_factor(), prior_weight(step_.error.samples()) / 2);
  LeastSquares::Row x;
  if (!with_prior.solve(x)) return;
  cost_.decode_s = x[0], cost_.decode_s_per_row = x[1], cost_.decode_s_per_kv_token = x[2];
}

}  // namespace mc::sched

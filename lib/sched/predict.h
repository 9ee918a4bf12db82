// The predicted cost of a node's work: the announced cost model, corrected by the node's reports. Each observation
// enters a least-squares fit whose old samples fade. The announced model, scaled by the recent mean of observed /
// announced, enters as a few pseudo samples, so a fit over requests of one length keeps a sane shape for other lengths.
//
// An error compares an observation with the prediction made before it. It is the error of admission and placement, not
// of the fit.
#pragma once

#include <cstdint>

#include "sched/cost.h"
#include "sched/least_squares.h"

namespace mc::sched {

/// Mean absolute relative error over the recent past (about the last 32 samples).
class RelativeError {
 public:
  void observe(double predicted, double observed);
  double mape() const { return mape_; }
  /// Mean of predicted / observed - 1: above 0 = predictions are too high.
  double bias() const { return bias_; }
  uint64_t samples() const { return samples_; }

 private:
  double mape_ = 0, bias_ = 0;
  uint64_t samples_ = 0;
};

class Predictor {
 public:
  Predictor() = default;
  explicit Predictor(const Cost& announced) : announced_(announced), cost_(announced) {}

  void prefilled(double tokens, double reused, double seconds);
  void stepped(double rows, double kv_tokens, double seconds);

  /// The cost model as corrected so far.
  const Cost& cost() const { return cost_; }
  /// Recent observed / announced; 1 before the first observation.
  double prefill_factor() const { return prefill_.factor.factor(); }
  double step_factor() const { return step_.factor.factor(); }
  const RelativeError& prefill_error() const { return prefill_.error; }
  const RelativeError& step_error() const { return step_.error; }

 private:
  struct Fit {
    LeastSquares squares;
    Correction factor;
    RelativeError error;
  };
  /// False when the numbers are not positive finite times.
  static bool enter(Fit& fit, const LeastSquares::Row& row, double announced_s, double predicted_s, double seconds);

  Cost announced_, cost_;
  Fit prefill_, step_;
};

}  // namespace mc::sched

// Pauses between the tries of one link. Each is twice the one before, spread by half to both sides so
// that the links of a cluster do not dial in step, and bounded. A connection that lived for a
// second starts the row anew, so that peers find each other again at once when one of them is restarted;
// a shorter life does not, or a peer that accepts and hangs up would be dialled without end.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "base/rng.h"

namespace mc::ctl {

class Backoff {
 public:
  Backoff() = default;
  Backoff(Duration first, Duration last) : first_(first), last_(last), mean_(first) {}

  /// The pause before the next try, in [1/2, 3/2) of its mean.
  Duration next(Rng& rng) {
    const Duration mean = mean_;
    mean_ = std::min(mean_ * 2, last_);
    return Duration(static_cast<int64_t>(static_cast<double>(mean.count()) * (0.5 + rng.uniform())));
  }
  static constexpr Duration kSettled = 1s;
  void lived(Duration life) {
    if (life >= kSettled) reset();
  }
  void reset() { mean_ = first_; }

 private:
  Duration first_{}, last_{}, mean_{};
};

}  // namespace mc::ctl

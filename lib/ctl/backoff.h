// Back-off of one link: the pauses between its tries to connect. Each pause is twice the one before, up to a bound,
// and jittered by half so that the links of a cluster do not connect in step. A connection that lasted for a second
// resets the back-off, so that peers reconnect at once after a restart. A shorter one does not, because a peer that
// accepts and hangs up would otherwise be dialled without end.
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

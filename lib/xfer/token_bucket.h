// A rate limit by a bucket of tokens (internal, pure). Bytes may go while the bucket is not empty, and may overdraw it.
// So a slice larger than the bucket goes too, and the rate catches up afterwards.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace mc::xfer {

class TokenBucket {
 public:
  static constexpr Duration kBurst = 1ms;  // unused rate that may be used later

  /// Bytes a second; 0 = no limit.
  explicit TokenBucket(uint64_t bytes_per_s = 0) : bytes_per_s_(static_cast<double>(bytes_per_s)) {}

  bool limited() const { return bytes_per_s_ > 0; }
  bool open(TimePoint now) {
    refill(now);
    return !limited() || tokens_ > 0;
  }
  void spend(uint64_t bytes) { tokens_ -= static_cast<double>(bytes); }
  /// The time at which the bucket opens again, after open() was false.
  TimePoint opens() const {
    const double seconds = std::max(0.0, -tokens_) / bytes_per_s_;
    return filled_ + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)) + 1us;
  }

 private:
  void refill(TimePoint now) {
    if (!limited()) return;
    const double full = std::max(1.0, bytes_per_s_ * std::chrono::duration<double>(kBurst).count());
    const double passed = std::chrono::duration<double>(now - filled_).count();
    tokens_ = fresh_ ? full : std::min(full, tokens_ + std::max(0.0, passed) * bytes_per_s_);
    fresh_ = false;
    filled_ = std::max(filled_, now);
  }

  double bytes_per_s_;
  double tokens_ = 0;
  TimePoint filled_{};
  bool fresh_ = true;
};

}  // namespace mc::xfer

// Whether a control loop still runs: the loop beats once a round, at least five times a second, and /livez
// asks from the HTTP server's thread how long ago that was.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>

#include "base/clock.h"

namespace mc::host {

class Heartbeat {
 public:
  /// No round of a control loop takes as long: what computes, loads or waits for disks has threads of its own.
  static constexpr Duration kAgeMax = 5s;

  explicit Heartbeat(TimePoint now) { beat(now); }
  Heartbeat() : Heartbeat(SystemClock::instance().now()) {}

  /// Loop thread.
  void beat(TimePoint now) {
    last_.store(now.time_since_epoch().count(), std::memory_order_relaxed);  // publishes nothing but itself
  }
  /// Any thread: "" while the loop runs, else the time since its last round.
  std::string trouble(TimePoint now) const {
    const Duration age = now.time_since_epoch() - Duration(last_.load(std::memory_order_relaxed));
    if (age <= kAgeMax) return {};
    char text[64];
    std::snprintf(text, sizeof text, "the control loop has not run for %.1f s", to_seconds(age));
    return text;
  }

 private:
  std::atomic<int64_t> last_{0};  // nanoseconds of TimePoint
};

}  // namespace mc::host

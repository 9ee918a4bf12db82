#include "base/clock.h"

#include <cmath>

namespace mc {

Duration from_seconds(double seconds) {
  constexpr double kLimit = 9.2e9;
  if (!(seconds < kLimit)) return Duration::max();
  if (seconds < -kLimit) return Duration::min();
  return Duration(static_cast<int64_t>(std::llround(seconds * 1e9)));
}

TimePoint SystemClock::now() const { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }

int64_t SystemClock::unix_ms() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

SystemClock& SystemClock::instance() {
  static SystemClock clock;
  return clock;
}

}  // namespace mc

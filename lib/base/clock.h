// Time is a parameter. Role logic receives `now` with each event; code that must read a clock takes
// a `Clock&`. `TimePoint` counts nanoseconds of a monotonic clock with an arbitrary origin: never
// send one to another process (messages carry remaining durations instead).
#pragma once

#include <chrono>
#include <cstdint>

namespace mc {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""us;
using std::chrono_literals::operator""ns;
using std::chrono_literals::operator""s;

inline constexpr TimePoint kNever = TimePoint::max();

inline double to_seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline double to_ms(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }
/// Rounds to the nearest nanosecond; saturates at about +-290 years.
Duration from_seconds(double seconds);
/// deadline = now + budget without overflow when the budget is "for ever".
inline TimePoint after(TimePoint now, Duration budget) {
  return budget >= kNever - now ? kNever : now + budget;
}

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  /// Milliseconds since 1970, for logs and HTTP `created` fields only.
  virtual int64_t unix_ms() const = 0;
};

/// The machine's steady clock.
class SystemClock final : public Clock {
 public:
  TimePoint now() const override;
  int64_t unix_ms() const override;
  static SystemClock& instance();
};

/// Moves only by advance() and set(); for tests and the simulator.
class VirtualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  int64_t unix_ms() const override { return 1'700'000'000'000 + (now_ - TimePoint{}).count() / 1'000'000; }
  void advance(Duration d) { now_ += d; }
  void set(TimePoint t) { now_ = t; }

 private:
  TimePoint now_{};
};

}  // namespace mc

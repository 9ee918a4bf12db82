// A stretch of a batch: the steps between two changes of its rows. Every step adds a token to every row, so the steps
// form an arithmetic series, which is summed in closed form:
//
//   seconds of n steps = n * first + growth * n * (n - 1) / 2
//
// Steps are taken from the front. The end stays where it was computed when the stretch began, so that rounding in the
// middle does not move it.
#pragma once

#include <cstdint>
#include <limits>

namespace mc::sim {

class Stretch {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  /// Begins a stretch of `steps` >= 1 steps. The first one takes first_s, and each of the others growth_s >= 0 more
  /// than the one before.
  void begin(double at_s, uint64_t steps, double first_s, double growth_s);
  /// There is no stretch: it has no steps and no end.
  void clear();

  /// Steps that were not taken yet.
  uint64_t steps() const { return steps_; }
  /// The time at which the next step begins.
  double begin_s() const { return begin_s_; }
  /// The time at which the last step ends; kNever = there is no stretch.
  double end_s() const { return end_s_; }
  /// The duration of the next step.
  double first_s() const { return first_s_; }
  double growth_s() const { return growth_s_; }
  /// The duration of the next `count` steps.
  double seconds_of(uint64_t count) const;
  /// The whole steps that end within `seconds`.
  uint64_t steps_within(double seconds) const;

  /// Takes `count` steps, which lasted so many seconds.
  void take(uint64_t count, double seconds);
  /// Ends the stretch with its next step. False when it ends there anyway.
  bool cut();

 private:
  uint64_t steps_ = 0;
  double begin_s_ = 0, end_s_ = kNever;
  double first_s_ = 0, growth_s_ = 0;
};

}  // namespace mc::sim

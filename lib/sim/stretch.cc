#include "sim/stretch.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"

namespace mc::sim {

void Stretch::begin(double at_s, uint64_t steps, double first_s, double growth_s) {
  MC_ASSERT(steps > 0);
  steps_ = steps;
  first_s_ = first_s, growth_s_ = growth_s;
  begin_s_ = at_s;
  end_s_ = at_s + seconds_of(steps);
}

void Stretch::clear() {
  steps_ = 0;
  end_s_ = kNever;
}

double Stretch::seconds_of(uint64_t count) const {
  const double n = static_cast<double>(count);
  return n * first_s_ + growth_s_ * n * (n - 1) / 2;
}

uint64_t Stretch::steps_within(double seconds) const {
  if (seconds < first_s_) return 0;
  double n = 0;
  if (growth_s_ > 0) {
    const double half = first_s_ / growth_s_ - 0.5;
    n = std::floor(std::sqrt(half * half + 2 * seconds / growth_s_) - half);
  } else {
    n = std::floor(seconds / first_s_);
  }
  uint64_t count = std::min(steps_, static_cast<uint64_t>(std::max(0.0, n)));
  while (count > 0 && seconds_of(count) > seconds) --count;
  return count;
}

void Stretch::take(uint64_t count, double seconds) {
  MC_ASSERT_LE(count, steps_);
  steps_ -= count;
  first_s_ += growth_s_ * static_cast<double>(count);
  begin_s_ += seconds;
}

bool Stretch::cut() {
  if (steps_ <= 1) return false;
  steps_ = 1;
  end_s_ = begin_s_ + first_s_;
  return true;
}

}  // namespace mc::sim

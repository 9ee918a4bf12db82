// Least squares in three unknowns over relative errors, as normal equations that samples are added to and
// fade from. Inside lib/sched only.
#pragma once

#include <array>
#include <span>

namespace mc::sched {

class LeastSquares {
 public:
  using Row = std::array<double, 3>;

  /// One sample: `row` times the unknowns should give `seconds`; errors count relative to it.
  void add(const Row& row, double seconds, double weight = 1);
  /// Old samples lose weight.
  void fade(double factor);
  /// Coefficients of at least 0. A column that the samples do not determine, or that comes out negative, is
  /// left out (0), the last first. False when nothing is determined.
  bool solve(Row& x) const;

 private:
  bool solve_columns(std::array<bool, 3> use, Row& x) const;
  double a_[3][4] = {};
};

}  // namespace mc::sched

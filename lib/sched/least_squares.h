// Least squares in three unknowns over relative errors. The normal equations accumulate samples, and old samples fade.
// Used inside lib/sched only.
#pragma once

#include <array>
#include <span>

namespace mc::sched {

class LeastSquares {
 public:
  using Row = std::array<double, 3>;

  /// Adds a sample: `row` times the unknowns should give `seconds`. Errors count relative to `seconds`.
  void add(const Row& row, double seconds, double weight = 1);
  /// Multiplies the weight of all samples so far by `factor`.
  void fade(double factor);
  /// Coefficients of at least 0. A column that the samples do not determine, or whose coefficient would be negative, is
  /// left out (0), the last column first. False when nothing is determined.
  bool solve(Row& x) const;

 private:
  bool solve_columns(std::array<bool, 3> use, Row& x) const;
  double a_[3][4] = {};
};

}  // namespace mc::sched

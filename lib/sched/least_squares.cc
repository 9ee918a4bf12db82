#include "sched/least_squares.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mc::sched {

void LeastSquares::add(const Row& row, double seconds, double weight) {
  const double w = weight / std::max(seconds * seconds, 1e-18);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) a_[r][c] += w * row[r] * row[c];
    a_[r][3] += w * row[r] * seconds;
  }
}

void LeastSquares::fade(double factor) {
  for (auto& row : a_)
    for (double& value : row) value *= factor;
}

// Gauss-Jordan with pivoting over the columns in `use`, scaled to a unit diagonal.
bool LeastSquares::solve_columns(std::array<bool, 3> use, Row& x) const {
  std::array<int, 3> column{};
  int n = 0;
  for (int c = 0; c < 3; ++c)
    if (use[c]) column[n++] = c;
  double a[3][4], scale[3];
  for (int r = 0; r < n; ++r) {
    for (int c = 0; c < n; ++c) a[r][c] = a_[column[r]][column[c]];
    a[r][3] = a_[column[r]][3];
    scale[r] = a[r][r] > 0 ? std::sqrt(a[r][r]) : 1.0;
  }
  for (int r = 0; r < n; ++r) {
    for (int c = 0; c < n; ++c) a[r][c] /= scale[r] * scale[c];
    a[r][3] /= scale[r];
  }
  for (int p = 0; p < n; ++p) {
    int best = p;
    for (int r = p + 1; r < n; ++r)
      if (std::abs(a[r][p]) > std::abs(a[best][p])) best = r;
    if (std::abs(a[best][p]) < 1e-9) return false;
    for (int c = 0; c < 4; ++c) std::swap(a[p][c], a[best][c]);
    for (int r = 0; r < n; ++r) {
      if (r == p) continue;
      const double f = a[r][p] / a[p][p];
      for (int c = 0; c < 4; ++c) a[r][c] -= f * a[p][c];
    }
  }
  x = {0, 0, 0};
  for (int r = 0; r < n; ++r) x[column[r]] = a[r][3] / a[r][r] / scale[r];
  return n > 0;
}

bool LeastSquares::solve(Row& x) const {
  std::array<bool, 3> use = {true, true, true};
  // A column that never varied (steps of one row) cannot be separated from the constant.
  for (int c : {1, 2})
    if (a_[0][c] * a_[0][c] >= (1 - 1e-9) * a_[0][0] * a_[c][c]) use[c] = false;
  for (int tries = 0; tries < 3; ++tries) {
    if (!solve_columns(use, x)) {
      const int drop = use[2] ? 2 : use[1] ? 1 : 0;
      use[drop] = false;
      continue;
    }
    const auto worst = std::min_element(x.begin(), x.end());
    if (*worst >= 0) return true;
    use[static_cast<size_t>(worst - x.begin())] = false;
  }
  return solve_columns(use, x) && *std::min_element(x.begin(), x.end()) >= 0;
}

}  // namespace mc::sched

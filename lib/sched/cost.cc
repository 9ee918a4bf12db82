#include "sched/cost.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace mc::sched {

double Cost::prefill(double tokens, double reused) const {
  return prefill_s + prefill_s_per_token * (tokens - reused) +
         prefill_s_per_token2 * (tokens * tokens - reused * reused);
}

double Cost::step(double rows, double kv_tokens) const {
  return decode_s + decode_s_per_row * rows + decode_s_per_kv_token * kv_tokens;
}

double Cost::read(double bytes, double transfers_leaving) const {
  return bytes * (1.0 + transfers_leaving) / std::max(read_bytes_per_s, 1.0);
}

namespace {

using Row = std::array<double, 3>;

// Weighted normal equations over the columns in `use`, by Gauss-Jordan with pivoting.
// Returns false when the samples do not determine the chosen columns.
bool solve(std::span<const Row> rows, std::span<const double> seconds, std::array<bool, 3> use, Row& x) {
  double a[3][4] = {};
  std::array<int, 3> column{};
  int n = 0;
  for (int c = 0; c < 3; ++c)
    if (use[c]) column[n++] = c;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double w = 1.0 / std::max(seconds[i], 1e-9);
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < n; ++c) a[r][c] += w * w * rows[i][column[r]] * rows[i][column[c]];
      a[r][3] += w * w * rows[i][column[r]] * seconds[i];
    }
  }
  double scale[3];
  for (int r = 0; r < n; ++r) scale[r] = a[r][r] > 0 ? std::sqrt(a[r][r]) : 1.0;
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
  return true;
}

// A negative coefficient means the samples do not support that term: drop it and solve again.
bool solve_non_negative(std::span<const Row> rows, std::span<const double> seconds, Row& x) {
  std::array<bool, 3> use = {true, true, true};
  for (int tries = 0; tries < 3; ++tries) {
    if (!solve(rows, seconds, use, x)) {
      const int drop = use[2] ? 2 : use[1] ? 1 : 0;
      use[drop] = false;
      continue;
    }
    const auto worst = std::min_element(x.begin(), x.end());
    if (*worst >= 0) return true;
    use[static_cast<size_t>(worst - x.begin())] = false;
  }
  return solve(rows, seconds, use, x) && *std::min_element(x.begin(), x.end()) >= 0;
}

}  // namespace

void fit_prefill(std::span<const PrefillSample> samples, Cost& cost) {
  std::vector<Row> rows;
  std::vector<double> seconds;
  for (const auto& s : samples) {
    rows.push_back({1.0, s.tokens - s.reused, s.tokens * s.tokens - s.reused * s.reused});
    seconds.push_back(s.seconds);
  }
  Row x;
  if (samples.size() < 2 || !solve_non_negative(rows, seconds, x)) return;
  cost.prefill_s = x[0], cost.prefill_s_per_token = x[1], cost.prefill_s_per_token2 = x[2];
}

void fit_step(std::span<const StepSample> samples, Cost& cost) {
  std::vector<Row> rows;
  std::vector<double> seconds;
  for (const auto& s : samples) {
    rows.push_back({1.0, s.rows, s.kv_tokens});
    seconds.push_back(s.seconds);
  }
  Row x;
  if (samples.size() < 2 || !solve_non_negative(rows, seconds, x)) return;
  cost.decode_s = x[0], cost.decode_s_per_row = x[1], cost.decode_s_per_kv_token = x[2];
}

void Correction::observe(double predicted_s, double observed_s) {
  if (!(predicted_s > 0) || !(observed_s > 0)) return;
  const double ratio = std::clamp(observed_s / predicted_s, 1.0 / 16, 16.0);
  const double weight = samples_ < 8 ? 1.0 / static_cast<double>(samples_ + 1) : kWeight;
  error_ += weight * (std::abs(observed_s - predicted_s * factor_) / observed_s - error_);
  factor_ += weight * (ratio - factor_);
  ++samples_;
}

}  // namespace mc::sched

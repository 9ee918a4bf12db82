// The three kinds of profile as functions of a chunk and of a batch.
//
// Analytic: the GEMMs of a chunk run at gemm_efficiency of the peak rate, or at the rate of reading weights when the
// chunk is short. Causal attention runs at attention_efficiency. Two all-reduces a layer carry the activations. A step
// reads all weights and the KV of its batch. With the efficiencies below, the published curves of the A800 are met
// within 1 %. For other hardware the efficiencies are an assumption.
#include "sched/profile.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sched/least_squares.h"

namespace mc::sched {

double Roofline::layer_parameters() const {
  const double attention = hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden;
  return attention + 3 * hidden * intermediate;
}

double Roofline::weight_bytes(double layers) const {
  return (layers * layer_parameters() + vocab * hidden) * element_bytes;
}

namespace {

double analytic_chunk_s(const Profile& p, double begin, double end) {
  const Roofline& r = p.roofline;
  const double tokens = end - begin, layers = static_cast<double>(p.layers);
  if (tokens <= 0) return 0;
  const double gemm = 2 * tokens * r.layer_parameters() / (r.flops * r.gemm_efficiency);
  const double weights = r.layer_parameters() * r.element_bytes / (r.memory_bytes_per_s * r.memory_efficiency);
  const double attention = 2 * r.heads * r.head_dim * (end * end - begin * begin) / (r.flops * r.attention_efficiency);
  const double reduce =
      r.allreduce_bytes_per_s > 0 ? 2 * tokens * r.hidden * r.element_bytes / r.allreduce_bytes_per_s : 0;
  return layers * (std::max(gemm, weights) + attention + reduce);
}

Profile::StepLine analytic_line(const Profile& p, double rows) {
  const Roofline& r = p.roofline;
  const double layers = static_cast<double>(p.layers);
  const double memory = r.memory_bytes_per_s * r.memory_efficiency;
  const double gemm = 2 * rows * (layers * r.layer_parameters() + r.vocab * r.hidden) / (r.flops * r.gemm_efficiency);
  const double base = std::max(r.weight_bytes(layers) / memory, gemm) + layers * r.layer_s + rows * r.row_s;
  const double kv_bytes = layers * 2 * r.kv_heads * r.head_dim * r.kv_bytes();
  return {base, kv_bytes / memory};
}

// Least squares through (kv, seconds) of one row count. One point, or a falling line, gives a constant.
Profile::StepLine line_through(std::span<const StepSample> samples) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& s : samples)
    n += 1, x += s.kv_tokens, y += s.seconds, xx += s.kv_tokens * s.kv_tokens, xy += s.kv_tokens * s.seconds;
  const double spread = n * xx - x * x;
  const double slope = spread > 0 ? (n * xy - x * y) / spread : 0;
  if (slope <= 0) return {y / n, 0};
  return {std::max((y - slope * x) / n, 0.0), slope};
}

Error invalid(std::string what) {
  return Error{Code::invalid, std::move(what)};
}

}  // namespace

double Profile::curve_at(double tokens) const {
  const auto above = std::lower_bound(curves_.prefill.begin(), curves_.prefill.end(), tokens,
                                      [](const PrefillSample& s, double value) { return s.tokens < value; });
  if (above == curves_.prefill.end()) {  // beyond the measured points the fit continues the curve
    const PrefillSample& last = curves_.prefill.back();
    return last.seconds + cost.prefill(tokens, last.tokens) - cost.prefill_s;
  }
  if (above == curves_.prefill.begin()) return above->seconds;
  const PrefillSample& below = *(above - 1);
  const double share = (tokens - below.tokens) / (above->tokens - below.tokens);
  return below.seconds + share * (above->seconds - below.seconds);
}

double Profile::chunk_compute_s(double begin, double end) const {
  switch (kind) {
    case Kind::fitted: return cost.prefill(end, begin) - cost.prefill_s;
    case Kind::analytic: return analytic_chunk_s(*this, begin, end);
    case Kind::measured: return curve_at(end) - curve_at(begin);
  }
  return 0;
}

double Profile::fixed_s() const {
  switch (kind) {
    case Kind::fitted: return cost.prefill_s;
    case Kind::analytic: return roofline.fixed_s;
    case Kind::measured: return curves_.prefill.front().seconds;
  }
  return 0;
}

double Profile::prefill_s(double tokens, double reused) const {
  if (kind == Kind::fitted) return cost.prefill(tokens, reused) + reused_s_per_token * reused;
  return fixed_s() + chunk_compute_s(reused, tokens) + reused_s_per_token * reused;
}

Profile::StepLine Profile::step_line(double rows) const {
  switch (kind) {
    case Kind::fitted: return {cost.decode_s + cost.decode_s_per_row * rows, cost.decode_s_per_kv_token};
    case Kind::analytic: return analytic_line(*this, rows);
    case Kind::measured: break;
  }
  if (curves_.steps.size() == 1 || rows <= curves_.steps.front().rows) return curves_.steps.front().line;
  auto above = std::lower_bound(curves_.steps.begin(), curves_.steps.end(), rows,
                                [](const RowLine& line, double value) { return line.rows < value; });
  if (above == curves_.steps.end()) --above;  // continues the line between the last two points
  const RowLine &a = *(above - 1), &b = *above;
  const double share = (rows - a.rows) / (b.rows - a.rows);
  return {std::max(a.line.base_s + share * (b.line.base_s - a.line.base_s), 0.0),
          std::max(a.line.s_per_kv_token + share * (b.line.s_per_kv_token - a.line.s_per_kv_token), 0.0)};
}

double Profile::step_s(double rows, double kv_tokens) const {
  const StepLine line = step_line(rows);
  return line.base_s + line.s_per_kv_token * kv_tokens;
}

double Profile::mixed_step_s(double rows, double kv_tokens, double begin, double end) const {
  if (end <= begin) return step_s(rows, kv_tokens);
  const double chunk = chunk_s + chunk_compute_s(begin, end);
  // A step without rows takes the time of reading weights and launching, which the pass of the chunk includes already.
  return rows > 0 ? chunk + step_s(rows, kv_tokens) - step_line(0).base_s : chunk;
}

double Profile::overlapped_s(double first_s, double second_s) const {
  const double share = 1.0 / static_cast<double>(layers);
  return first_s * share + std::max(first_s, second_s) * (1 - share) + second_s * share;
}

void fit_path(std::span<const ReadSample> samples, Path& path) {
  LeastSquares fit;
  for (const auto& s : samples) fit.add({1.0, s.bytes, 0}, s.seconds);
  LeastSquares::Row x;
  if (samples.size() < 4 || !fit.solve(x) || x[1] <= 0) return;
  path = {1 / x[1], x[0]};
}

Result<void> Profile::complete_analytic() {
  const Roofline& r = roofline;
  const double layer_count = static_cast<double>(layers);
  if (kv_bytes_per_token == 0)
    kv_bytes_per_token = static_cast<uint64_t>(layer_count * 2 * r.kv_heads * r.head_dim * r.kv_bytes());
  if (kv_bytes_per_token == 0) return invalid("roofline: a token's KV is less than a byte");
  if (activation_bytes_per_token == 0) activation_bytes_per_token = static_cast<uint64_t>(r.hidden * r.element_bytes);
  if (capacity.kv_tokens == 0) {
    const double left = 0.92 * r.memory_bytes - r.weight_bytes(layer_count);
    if (left < static_cast<double>(kv_bytes_per_token))
      return invalid("roofline.memory_bytes leaves no room for KV beside the weights");
    capacity.kv_tokens = static_cast<uint64_t>(left / static_cast<double>(kv_bytes_per_token));
  }
  std::vector<PrefillSample> prefills;
  std::vector<StepSample> steps;
  for (double n = 1024; n <= 131072; n *= 2) prefills.push_back({n, 0, prefill_s(n, 0)});
  for (double rows : {1.0, 4.0, 16.0, 64.0})
    for (double kv : {1024.0, 65536.0, 524288.0}) steps.push_back({rows, kv, step_s(rows, kv)});
  fit_prefill(prefills, cost);
  fit_step(steps, cost);
  return {};
}

Result<void> Profile::complete_measured() {
  if (points.prefill.empty()) return invalid("prefill.points is empty");
  if (points.steps.empty()) return invalid("decode.points is empty");
  cost = Cost{.decode_s = 0, .decode_s_per_row = 0, .prefill_s = 0, .prefill_s_per_token = 0};
  fit_prefill(points.prefill, cost);
  fit_step(points.steps, cost);
  curves_.prefill.clear();
  for (const auto& s : points.prefill)
    if (s.reused == 0) curves_.prefill.push_back(s);
  std::sort(curves_.prefill.begin(), curves_.prefill.end(), [](auto& a, auto& b) { return a.tokens < b.tokens; });
  if (curves_.prefill.size() < 2) return invalid("prefill.points needs two points with nothing reused");
  for (size_t i = 1; i < curves_.prefill.size(); ++i)
    if (curves_.prefill[i].tokens == curves_.prefill[i - 1].tokens ||
        curves_.prefill[i].seconds <= curves_.prefill[i - 1].seconds)
      return invalid("prefill.points must grow in tokens and in seconds");
  const PrefillSample &a = curves_.prefill[0], &b = curves_.prefill[1];
  const double start = a.seconds - a.tokens * (b.seconds - a.seconds) / (b.tokens - a.tokens);
  curves_.prefill.insert(curves_.prefill.begin(), PrefillSample{0, 0, std::clamp(start, 0.0, a.seconds)});
  // Points with a prefix show the cost of loading it, beside the cost of computing the rest.
  double over = 0, reused = 0;
  for (const auto& s : points.prefill) {
    if (s.reused == 0) continue;
    over += s.seconds - fixed_s() - chunk_compute_s(s.reused, s.tokens), reused += s.reused;
  }
  if (reused > 0 && reused_s_per_token == 0) reused_s_per_token = std::max(over / reused, 0.0);
  curves_.steps.clear();
  std::vector<StepSample> sorted = points.steps;
  std::sort(sorted.begin(), sorted.end(),
            [](auto& x, auto& y) { return x.rows != y.rows ? x.rows < y.rows : x.kv_tokens < y.kv_tokens; });
  for (size_t i = 0, j; i < sorted.size(); i = j) {
    for (j = i; j < sorted.size() && sorted[j].rows == sorted[i].rows;) ++j;
    curves_.steps.push_back({sorted[i].rows, line_through(std::span(sorted).subspan(i, j - i))});
  }
  return {};
}

Result<void> Profile::complete() {
  if (layers == 0) return invalid("node.layers is 0");
  if (kind == Kind::analytic) MC_CHECK(complete_analytic());
  if (kind == Kind::measured) MC_CHECK(complete_measured());
  if (kv_bytes_per_token == 0) return invalid("node.kv_bytes_per_token is missing");
  if (capacity.kv_tokens == 0) return invalid("node.kv_capacity_tokens is missing");
  cost.read_bytes_per_s = paths.net.bytes_per_s;
  const double sum = std::accumulate(step_spread.begin(), step_spread.end(), 0.0);
  if (!std::is_sorted(step_spread.begin(), step_spread.end()) || (!step_spread.empty() && !(sum > 1e-6)))
    return invalid("decode.spread does not ascend, or is all 0");
  const double scale = step_spread.empty() ? 1 : static_cast<double>(step_spread.size()) / sum;
  if (std::abs(scale - 1) > 1e-9)  // a profile that was written and read back has a mean of 1 already
    for (double& of_mean : step_spread) of_mean *= scale;
  return {};
}

}  // namespace mc::sched

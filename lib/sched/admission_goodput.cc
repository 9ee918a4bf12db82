// Admission that predicts every request separately. This goes beyond the papers, whose system-level prediction assumes
// one decode time for all requests. The prediction is the batch of the chosen decode node when this request's KV
// arrives. It follows from the answer so far of each request there, and from the length of answers that got that far
// (sched::Lengths).
//
//   alive(r)  = P(answer > answered + steps until then | answer > answered)       0 beyond its own maximum
//   rows      = sum alive + this one + margin        margin: sd of that sum, times kMargin
//   tokens    = sum alive * (context + steps) + prompt
//
//   reserve   = kReserve * (1 - predicted TTFT / what is left of its bound)
//
// A request that cannot meet a bound is rejected before any work. A request that can is admitted, so nothing is wasted
// on either side. The reserve keeps room for unforeseen load. A request with much time left must respect the whole
// reserve, because it may wait for a better moment. A request whose time runs out may use the reserve, because
// rejecting it would lose it for certain.

#include <algorithm>
#include <cmath>

#include "sched/admission.h"
#include "sched/policy.h"

namespace mc::sched {
namespace {

constexpr double kMargin = 0.5;
// Share of the bound: contexts grow, and the next request is admitted beside this one.
constexpr double kReserve = 0.08;

struct Expected {
  double rows = 0, variance = 0, tokens = 0;
};

Expected expected_at(const Snapshot& s, uint32_t decode, double at_s, double step_s) {
  Expected out;
  for (const Inflight& r : s.inflight) {
    if (r.decode != decode || r.arrives_s > at_s) continue;
    const double steps = (at_s - std::max(0.0, r.arrives_s)) / step_s;
    double alive = s.lengths && s.lengths->samples() > 0 ? s.lengths->survival(r.answered, steps) : 1;
    if (r.answer_max > 0 && r.answered + steps >= r.answer_max) alive = 0;
    out.rows += alive;
    out.variance += alive * (1 - alive);
    out.tokens += alive * (r.tokens + steps);
  }
  return out;
}

Verdict decide(const Snapshot& s, const Placement& p, const Options& options) {
  Verdict out;
  if (options.ttft_slo_s > 0) {
    out.load_prefill = p.ttft_s / options.ttft_slo_s;
    if (p.ttft_s > options.ttft_slo_s) {
      out.admit = false, out.bound = Bound::ttft, out.predicted_s = p.ttft_s, out.allowed_s = options.ttft_slo_s;
      return out;
    }
  }
  if (options.tbt_slo_s <= 0) return out;
  const DecodeView& node = s.decode[static_cast<size_t>(p.decode)];
  const double step_s = std::max(node.cost.step(node.rows, static_cast<double>(node.kv_tokens)), 1e-6);
  const Expected then = expected_at(s, static_cast<uint32_t>(p.decode), p.ttft_s, step_s);
  const double margin = kMargin * std::sqrt(then.variance);
  const double each = then.rows > 0 ? then.tokens / then.rows : 0;
  out.at_s = p.ttft_s;
  out.rows = then.rows + margin + 1;
  out.kv_tokens = then.tokens + margin * each + s.tokens;
  const double predicted_s = node.cost.step(out.rows, out.kv_tokens);
  const double reserve = kReserve * std::clamp(1 - out.load_prefill, 0.0, 1.0);
  const double allowed_s = (1 - reserve) * options.admitting.slack * options.tbt_slo_s;
  out.load_decode = predicted_s / options.tbt_slo_s;
  const bool full = out.kv_tokens > static_cast<double>(node.capacity_tokens);
  if (predicted_s <= allowed_s && !full) return out;
  out.admit = false, out.bound = predicted_s > allowed_s ? Bound::tbt : Bound::kv;
  out.predicted_s = predicted_s, out.allowed_s = allowed_s;
  if (full) out.capacity_tokens = static_cast<double>(node.capacity_tokens);
  return out;
}

}  // namespace

extern const Admission kAdmissionGoodput;
const Admission kAdmissionGoodput = {
    "goodput", "per request, by the expected end of each answer", false, true, true, false, decide};

}  // namespace mc::sched

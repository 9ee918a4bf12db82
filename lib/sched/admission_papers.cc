// Admission as in the papers (Mooncake 6.1 and 7):
//   none       no request is rejected
//   baseline   TTFT at arrival; TBT when the KV has reached the decode node, whose rejection wastes the prefill
//   early      both at arrival, with the decode load of now
//   predict    both at arrival, with the decode load at the end of prefill: every request decodes for t_d,
//              requests in prefill count from their end, spread evenly over the nodes
//   committed  Algorithm 1: the load of the chosen node with all requests that are placed on it

#include <algorithm>
#include <limits>

#include "sched/admission.h"
#include "sched/policy.h"

namespace mc::sched {
namespace {

/// False: the TTFT bound would be missed, as `out` reports.
bool within_ttft(const Placement& p, const Options& options, Verdict& out) {
  if (options.ttft_slo_s <= 0) return true;
  out.load_prefill = p.ttft_s / options.ttft_slo_s;
  if (p.ttft_s <= options.ttft_slo_s) return true;
  out.admit = false, out.bound = Bound::ttft, out.predicted_s = p.ttft_s, out.allowed_s = options.ttft_slo_s;
  return false;
}

void within_tbt(double predicted_s, const Options& options, Verdict& out) {
  if (options.tbt_slo_s <= 0) return;
  const double allowed_s = options.admitting.slack * options.tbt_slo_s;
  out.load_decode = predicted_s / options.tbt_slo_s;
  if (predicted_s <= allowed_s) return;
  out.admit = false, out.bound = Bound::tbt, out.predicted_s = predicted_s, out.allowed_s = allowed_s;
}

Verdict none(const Snapshot&, const Placement&, const Options&) {
  return {};
}

Verdict baseline(const Snapshot&, const Placement& p, const Options& options) {
  Verdict out;
  (void)within_ttft(p, options, out);
  return out;
}

Verdict early(const Snapshot& s, const Placement& p, const Options& options) {
  Verdict out;
  if (!within_ttft(p, options, out)) return out;
  double least_s = std::numeric_limits<double>::infinity();
  for (const DecodeView& node : s.decode) {
    if (!node.accepting) continue;
    const double rows = node.arrived_rows + 1, tokens = static_cast<double>(node.arrived_kv_tokens + s.tokens);
    const double step_s = node.cost.step(rows, tokens);
    if (step_s < least_s) least_s = step_s, out.rows = rows, out.kv_tokens = tokens;
  }
  within_tbt(least_s, options, out);
  return out;
}

Verdict predict_then(const Snapshot& s, const Placement& p, const Options& options) {
  Verdict out;
  if (!within_ttft(p, options, out)) return out;
  const double decode_s = options.admitting.decode_s > 0 ? options.admitting.decode_s
                          : s.lengths                    ? s.lengths->seconds()
                                                         : 20;
  out.at_s = p.ttft_s;
  double rows = 1, tokens = s.tokens;
  for (const Inflight& r : s.inflight)
    if (r.arrives_s <= p.ttft_s && r.arrives_s + decode_s > p.ttft_s) rows += 1, tokens += r.tokens;
  // Requests of the pool are spread evenly, so nodes differ by their cost alone.
  const double nodes = static_cast<double>(
      std::max<size_t>(1, static_cast<size_t>(std::count_if(s.decode.begin(), s.decode.end(),
                                                            [](const DecodeView& d) { return d.accepting; }))));
  out.rows = rows / nodes, out.kv_tokens = tokens / nodes;
  double sum_s = 0, most_s = 0;
  for (const DecodeView& node : s.decode) {
    if (!node.accepting) continue;
    const double step_s = node.cost.step(out.rows, out.kv_tokens);
    sum_s += step_s, most_s = std::max(most_s, step_s);
  }
  within_tbt(options.admitting.aggregate == Aggregate::max ? most_s : sum_s / nodes, options, out);
  return out;
}

Verdict committed(const Snapshot& s, const Placement& p, const Options& options) {
  Verdict out;
  if (!within_ttft(p, options, out)) return out;
  const DecodeView& node = s.decode[static_cast<size_t>(p.decode)];
  out.rows = node.rows + 1, out.kv_tokens = static_cast<double>(node.kv_tokens + s.tokens);
  within_tbt(p.tbt_s, options, out);
  return out;
}

}  // namespace

extern const Admission kAdmissionNone;
extern const Admission kAdmissionBaseline;
extern const Admission kAdmissionEarly;
extern const Admission kAdmissionPredict;
extern const Admission kAdmissionCommitted;

const Admission kAdmissionNone = {"none", "no request is rejected", false, false, false, false, none};
const Admission kAdmissionBaseline = {"baseline", "TTFT at arrival, TBT after prefill", true, false, false, false,
                                      baseline};
const Admission kAdmissionEarly = {"early", "at arrival, by the decode load of now", true, false, true, false, early};
const Admission kAdmissionPredict = {
    "predict", "at arrival, by the decode load at the end of prefill", true, true, true, true, predict_then};
const Admission kAdmissionCommitted = {
    "committed", "at arrival, by the decode node's load with all requests placed there", true, false, true, false,
    committed};

}  // namespace mc::sched

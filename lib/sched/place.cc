// The decision around a policy: predict each candidate, choose the decode node, admit or reject.

#include <algorithm>
#include <limits>

#include "base/assert.h"
#include "sched/policy.h"

namespace mc::sched {

uint32_t reused_tokens(const Snapshot& snapshot, uint32_t blocks) {
  if (snapshot.tokens == 0) return 0;
  const uint64_t tokens = static_cast<uint64_t>(blocks) * snapshot.block_tokens;
  return static_cast<uint32_t>(std::min<uint64_t>(tokens, snapshot.tokens - 1));
}

namespace {

// The sender's link is shared evenly by what leaves it: our bytes go as slowly as all transfers together, but
// behind no more than the bytes that are left of them.
double fetch_seconds(const Cost& cost, double bytes, const HolderView& holder) {
  const double shared_s = cost.read(bytes, holder.transfers_leaving);
  return holder.leaving_bytes > 0 ? std::min(shared_s, cost.read(bytes + holder.leaving_bytes, 0)) : shared_s;
}

// Slow start: an empty cache and an empty queue make a new node the best choice for everybody at once. For a
// while it counts as at least part as busy as the least busy of the others.
void add_handicaps(const Snapshot& snapshot, const Options& options, std::vector<Candidate>& candidates) {
  if (options.slow_start_s <= 0) return;
  double usual_s = std::numeric_limits<double>::infinity();
  for (const Candidate& c : candidates)
    if (snapshot.prefill[c.node].up_s >= options.slow_start_s) usual_s = std::min(usual_s, c.ttft_s);
  if (usual_s == std::numeric_limits<double>::infinity()) return;
  for (Candidate& c : candidates) {
    const double share = snapshot.prefill[c.node].up_s / options.slow_start_s;
    if (share < 1) c.handicap_s = (1 - share) * usual_s;
  }
}

}  // namespace

void predict(const Snapshot& snapshot, Candidate& c) {
  const PrefillView& node = snapshot.prefill[c.node];
  c.queue_s = node.queue_s;
  c.fetch_s = 0;
  uint32_t blocks = c.local_blocks;
  if (c.holder >= 0 && c.fetch_blocks > 0) {
    const HolderView& holder = snapshot.holders[static_cast<size_t>(c.holder)];
    c.fetch_s = fetch_seconds(node.cost,
                              static_cast<double>(c.fetch_blocks) * static_cast<double>(snapshot.block_bytes), holder);
    blocks += c.fetch_blocks;
  }
  c.prefill_s = node.cost.prefill(snapshot.tokens, reused_tokens(snapshot, blocks));
  // The fetch (and the wait for its source) runs beside the queue; the later of both ends the wait.
  c.ttft_s = std::max(c.queue_s, c.wait_s + c.fetch_s) + c.prefill_s;
}

double predict_tbt(const Snapshot& snapshot, const DecodeView& node) {
  return node.cost.step(node.rows + 1, static_cast<double>(node.kv_tokens + snapshot.tokens));
}

int choose_decode(const Snapshot& snapshot) {
  int best = -1;
  double best_s = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < snapshot.decode.size(); ++i) {
    const DecodeView& node = snapshot.decode[i];
    if (!node.accepting || node.kv_tokens + snapshot.tokens + 1 > node.capacity_tokens) continue;
    const double s = predict_tbt(snapshot, node);
    if (s < best_s) best = static_cast<int>(i), best_s = s;
  }
  if (best >= 0) return best;
  // Nobody has room now: queue at the node that needs the least to free, if the request fits at all.
  for (size_t i = 0; i < snapshot.decode.size(); ++i) {
    const DecodeView& node = snapshot.decode[i];
    if (!node.accepting || snapshot.tokens + 1 > node.capacity_tokens) continue;
    const double s = static_cast<double>(node.kv_tokens) / static_cast<double>(node.capacity_tokens);
    if (s < best_s) best = static_cast<int>(i), best_s = s;
  }
  return best;
}

Placement place(const Snapshot& snapshot, const Policy& policy, const Options& options, Rng& rng) {
  Placement out;
  place(snapshot, policy, options, rng, out);
  return out;
}

void place(const Snapshot& snapshot, const Policy& policy, const Options& options, Rng& rng, Placement& out) {
  out.candidate = out.decode = -1;
  out.ttft_s = out.tbt_s = out.predicted_s = out.allowed_s = 0;
  out.reason.clear();
  out.verdict = {};
  out.candidates.clear();
  for (size_t i = 0; i < snapshot.prefill.size(); ++i) {
    if (!snapshot.prefill[i].accepting) continue;
    Candidate& c = out.candidates.emplace_back();
    c.node = static_cast<uint32_t>(i);
    c.local_blocks = snapshot.prefill[i].resident_blocks;
    predict(snapshot, c);
  }
  if (out.candidates.empty()) {
    out.reason = "no_prefill";
    return;
  }
  out.decode = choose_decode(snapshot);
  if (out.decode < 0) {
    out.reason = "no_decode";
    return;
  }
  add_handicaps(snapshot, options, out.candidates);
  out.candidate = policy.choose(snapshot, options, out.candidates, rng);
  MC_ASSERT(out.candidate >= 0 && out.candidate < static_cast<int>(out.candidates.size()));
  out.ttft_s = out.candidates[static_cast<size_t>(out.candidate)].ttft_s;
  out.tbt_s = predict_tbt(snapshot, snapshot.decode[static_cast<size_t>(out.decode)]);
  // Before any prefill work is spent (5.6).
  static const Admission* const usual = find_admission("committed");
  out.verdict = (options.admission ? options.admission : usual)->decide(snapshot, out, options);
  if (out.verdict.admit) return;
  out.reason = "predicted_slo_miss";
  out.predicted_s = out.verdict.predicted_s, out.allowed_s = out.verdict.allowed_s;
  out.candidate = -1;
}

}  // namespace mc::sched

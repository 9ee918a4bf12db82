// The decision around a policy: predicts each candidate, chooses the decode node, and admits or rejects the request.

#include <algorithm>
#include <limits>

#include "base/assert.h"
#include "sched/inline_place.h"

namespace mc::sched {

namespace {

// Slow start. A new node has an empty cache and an empty queue, so every request would choose it at once. For a while
// the node counts as at least partly as busy as the least busy of the others.
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

// Calls predict() for every node, in one pass.
void add_candidates(const Snapshot& snapshot, std::vector<Candidate>& out) {
  out.resize(snapshot.prefill.size());
  uint32_t blocks = 0;  // most nodes hold as many blocks as the node before them
  Work work = work_left(snapshot, blocks);
  size_t count = 0;
  for (size_t i = 0; i < snapshot.prefill.size(); ++i) {
    const PrefillView& node = snapshot.prefill[i];
    if (!node.accepting) continue;
    Candidate& c = out[count++];
    c.node = static_cast<uint32_t>(i);
    c.local_blocks = node.resident_blocks;
    c.holder = -1, c.fetch_blocks = 0;
    c.wait_s = c.fetch_s = c.handicap_s = 0;
    c.load_s = node.load_s;
    c.queue_s = node.queue_s;
    if (node.resident_blocks != blocks) work = work_left(snapshot, blocks = node.resident_blocks);
    c.prefill_s = node.cost.prefill(work);
    c.to_device_s = to_device_seconds(snapshot, c.node, node.resident_blocks);
    // The disk is read while the request queues.
    c.ttft_s = std::max(c.queue_s, c.load_s) + compute_seconds(c.prefill_s, c.to_device_s);
  }
  out.resize(count);
}

int preferred(const Snapshot& snapshot, const Options& options, const Placement& placement) {
  const Candidate& chosen = placement.candidates[static_cast<size_t>(placement.candidate)];
  for (size_t i = 0; i < placement.candidates.size(); ++i) {
    const Candidate& c = placement.candidates[i];
    if (snapshot.prefill[c.node].name != options.prefer) continue;
    return c.rank_s() <= 1.1 * chosen.rank_s() + options.prefer_s ? static_cast<int>(i) : placement.candidate;
  }
  return placement.candidate;
}

}  // namespace

void predict(const Snapshot& snapshot, Candidate& c) {
  const PrefillView& node = snapshot.prefill[c.node];
  c.queue_s = node.queue_s;
  c.fetch_s = 0;
  uint32_t blocks = c.local_blocks;
  if (c.holder >= 0 && c.fetch_blocks > 0) {
    c.fetch_s = fetch_seconds(snapshot, reader_of(node), c.holder, c.fetch_blocks);
    blocks += c.fetch_blocks;
  }
  c.prefill_s = node.cost.prefill(work_left(snapshot, blocks));
  // The load from disk goes beside the wait for the source and its fetch. Both overlap the queue.
  c.to_device_s = to_device_seconds(snapshot, c.node, blocks);
  c.ttft_s = std::max({c.queue_s, c.load_s, c.wait_s + c.fetch_s}) + compute_seconds(c.prefill_s, c.to_device_s);
}

namespace {

/// The best decode node among those with may(index) true.
template <class May>
int choose_decode_of(const Snapshot& snapshot, const May& may) {
  int best = -1;
  double best_s = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < snapshot.decode.size(); ++i) {
    const DecodeView& node = snapshot.decode[i];
    if (!node.accepting || !may(i) || node.kv_tokens + snapshot.tokens + 1 > node.capacity_tokens) continue;
    const double s = predict_tbt(snapshot, node);
    if (rarely(s < best_s)) best = static_cast<int>(i), best_s = s;
  }
  if (best >= 0) return best;
  // No node has room now. The request queues at the node that must free the fewest tokens, if it fits there at all.
  for (size_t i = 0; i < snapshot.decode.size(); ++i) {
    const DecodeView& node = snapshot.decode[i];
    if (!node.accepting || !may(i) || snapshot.tokens + 1 > node.capacity_tokens) continue;
    const double s = static_cast<double>(node.kv_tokens) / static_cast<double>(node.capacity_tokens);
    if (s < best_s) best = static_cast<int>(i), best_s = s;
  }
  return best;
}

/// Chooses the decode node when some pairs are barred. Keeps only the candidates that may be paired with it.
int choose_past_bars(const Snapshot& snapshot, std::vector<Candidate>& candidates, NoPlace& reason) {
  const Bars bars(snapshot);
  const int decode = choose_decode_of(snapshot, [&](size_t i) {
    return std::any_of(candidates.begin(), candidates.end(),
                       [&](const Candidate& c) { return bars.allows(c.node, i); });
  });
  if (decode < 0) {
    reason = choose_decode(snapshot) < 0 ? NoPlace::no_decode : NoPlace::no_pair;
    return -1;
  }
  std::erase_if(candidates, [&](const Candidate& c) { return !bars.allows(c.node, static_cast<size_t>(decode)); });
  return decode;
}

}  // namespace

int choose_decode(const Snapshot& snapshot) {
  return choose_decode_of(snapshot, [](size_t) { return true; });
}

void best_candidates(const Placement& placement, size_t count, std::vector<uint32_t>& out) {
  const auto& all = placement.candidates;
  out.clear();
  count = std::min(count, all.size());
  if (count == 0) return;
  if (placement.candidate >= 0) out.push_back(static_cast<uint32_t>(placement.candidate)), --count;
  const size_t first = out.size();
  for (uint32_t i = 0; i < all.size() && count > 0; ++i) {
    if (static_cast<int>(i) == placement.candidate) continue;
    if (out.size() - first == count && !(all[i].ttft_s < all[out.back()].ttft_s)) continue;
    auto at = out.end();
    while (at != out.begin() + static_cast<std::ptrdiff_t>(first) && all[i].ttft_s < all[*(at - 1)].ttft_s) --at;
    out.insert(at, i);
    if (out.size() - first > count) out.pop_back();
  }
}

Placement place(const Snapshot& snapshot, const Policy& policy, const Options& options, Rng& rng) {
  Placement out;
  place(snapshot, policy, options, rng, out);
  return out;
}

void place(const Snapshot& snapshot, const Policy& policy, const Options& options, Rng& rng, Placement& out) {
  out.candidate = out.decode = -1;
  out.ttft_s = out.tbt_s = out.predicted_s = out.allowed_s = 0;
  out.reason = NoPlace::none;
  out.verdict = {};
  out.inlined.reset(), out.is_inlined = false;
  add_candidates(snapshot, out.candidates);
  if (out.candidates.empty()) {
    out.reason = NoPlace::no_prefill;
    return;
  }
  if (rarely(!snapshot.bars.empty())) {
    out.decode = choose_past_bars(snapshot, out.candidates, out.reason);
    if (out.decode < 0) return;
  } else if ((out.decode = choose_decode(snapshot)) < 0) {
    out.reason = NoPlace::no_decode;
    return;
  }
  add_handicaps(snapshot, options, out.candidates);
  out.candidate = policy.choose(snapshot, options, out.candidates, rng);
  MC_ASSERT(out.candidate >= 0 && out.candidate < static_cast<int>(out.candidates.size()));
  if (!options.prefer.empty()) out.candidate = preferred(snapshot, options, out);
  MC_ASSERT(out.decode >= 0 && out.decode < static_cast<int>(snapshot.decode.size()));
  out.ttft_s = out.candidates[static_cast<size_t>(out.candidate)].ttft_s;
  out.tbt_s = predict_tbt(snapshot, snapshot.decode[static_cast<size_t>(out.decode)]);
  // Before any prefill work is spent (Mooncake 5.6).
  static const Admission* const usual = find_admission("committed");
  const Admission& admission = options.admission ? *options.admission : *usual;
  if (choose_inline(snapshot, options, admission, out)) return;
  out.verdict = admission.decide(snapshot, out, options);
  if (out.verdict.admit) return;
  out.reason = NoPlace::predicted_slo_miss;
  out.predicted_s = out.verdict.predicted_s, out.allowed_s = out.verdict.allowed_s;
  out.candidate = -1;
  if (out.verdict.bound != Bound::tbt) return;
  double alone_s = std::numeric_limits<double>::infinity();
  for (const DecodeView& view : snapshot.decode) alone_s = std::min(alone_s, view.cost.step(1, snapshot.tokens));
  out.verdict.hopeless = alone_s > options.admitting.slack * options.tbt_slo_s;
}

}  // namespace mc::sched

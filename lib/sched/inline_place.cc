#include "sched/inline_place.h"

#include <algorithm>
#include <tuple>

#include "base/assert.h"

namespace mc::sched {
namespace {

bool is_barred(const Snapshot& snapshot, uint32_t decode) {
  return std::ranges::any_of(snapshot.bars,
                             [&](const Bar& bar) { return bar.prefill < 0 && bar.decode == static_cast<int>(decode); });
}

}  // namespace

std::optional<InlineCandidate> best_inline(const Snapshot& snapshot, const Options& options) {
  std::optional<InlineCandidate> best;
  for (const InlineView& view : snapshot.inlines) {
    const DecodeView& node = snapshot.decode.at(view.decode);
    const uint32_t rest = snapshot.tokens - reused_tokens(snapshot, view.local_blocks);
    if (!node.accepting || rest > view.tokens_max || is_barred(snapshot, view.decode)) continue;
    if (node.kv_tokens + snapshot.tokens + 1 > node.capacity_tokens) continue;
    InlineCandidate c{.decode = view.decode, .local_blocks = view.local_blocks, .queue_s = view.queue_s};
    c.measured = view.measured;
    c.prefill_s = node.cost.prefill(work_left(snapshot, view.local_blocks));
    c.gap_s = c.prefill_s;
    if (node.rows > 0) c.gap_s += node.cost.step(node.rows, static_cast<double>(node.kv_tokens));
    const bool keeps_promise = options.tbt_slo_s <= 0 || c.gap_s <= options.admitting.slack * options.tbt_slo_s;
    if (node.rows > 0 && !keeps_promise) continue;
    // The chunk shares the pass of the next step, which begins when the step under way has ended.
    c.ttft_s = std::max(c.queue_s, c.gap_s - c.prefill_s) + c.gap_s;
    if (!best || c.ttft_s < best->ttft_s) best = c;
  }
  return best;
}

double handed_over_s(const Snapshot& snapshot, const Placement& placement) {
  MC_ASSERT(placement.candidate >= 0 && placement.decode >= 0);
  if (snapshot.answer_tokens == 1) return placement.ttft_s;  // the request ends with its first token
  const Candidate& chosen = placement.candidates[static_cast<size_t>(placement.candidate)];
  const DecodeView& decode = snapshot.decode[static_cast<size_t>(placement.decode)];
  const int from = snapshot.prefill[chosen.node].holder;
  uint32_t blocks = (snapshot.tokens + snapshot.block_tokens - 1) / snapshot.block_tokens;
  if (decode.holder >= 0)
    blocks -= std::min(blocks, snapshot.holders[static_cast<size_t>(decode.holder)].readable_blocks);
  const double bytes = static_cast<double>(blocks) * static_cast<double>(snapshot.block_bytes);
  if (from < 0) return placement.ttft_s + decode.cost.read(bytes, 0);
  const HolderView& holder = snapshot.holders[static_cast<size_t>(from)];
  return placement.ttft_s + read_seconds(snapshot, {decode.cost, decode.holder}, from, bytes, holder.transfers_leaving,
                                         holder.leaving_bytes);
}

bool choose_inline(const Snapshot& snapshot, const Options& options, const Admission& admission, Placement& placement) {
  if (snapshot.inlines.empty() || !options.may_inline) return false;
  placement.inlined = best_inline(snapshot, options);
  if (!placement.inlined) return false;
  const InlineCandidate& c = *placement.inlined;
  placement.handed_over_s = handed_over_s(snapshot, placement);
  if (c.ttft_s > placement.handed_over_s) return false;
  const auto pair = std::tuple(placement.decode, placement.ttft_s, placement.tbt_s);
  placement.decode = static_cast<int>(c.decode);
  placement.ttft_s = c.ttft_s;
  placement.tbt_s = predict_tbt(snapshot, snapshot.decode[c.decode]);
  placement.verdict = admission.decide(snapshot, placement, options);
  placement.is_inlined = placement.verdict.admit;
  if (!placement.is_inlined) std::tie(placement.decode, placement.ttft_s, placement.tbt_s) = pair;
  return placement.is_inlined;
}

}  // namespace mc::sched

#include "sim/paper_overload.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/assert.h"
#include "sim/paper_decode.h"

namespace mc::sim {
namespace {

double step_s(uint64_t rows, double context) {
  return kPaperCost.step(static_cast<double>(rows), context);
}

struct InPrefill {
  double end_s;
  size_t request;
  uint32_t node;  // the decode node that expects it
  bool operator>(const InPrefill& other) const {
    return end_s != other.end_s ? end_s > other.end_s : request > other.request;
  }
};

class Overload {
 public:
  Overload(const std::vector<TraceRequest>& trace, const PaperOptions& options, const PaperOverloadOptions& admission,
           PaperRun& run, PaperOverload& out)
      : trace_(trace),
        options_(options),
        admission_(admission),
        run_(run),
        out_(out),
        decode_(options.decode_nodes, trace.size()),
        committed_(options.decode_nodes),
        committed_tokens_(options.decode_nodes) {}

  /// Everything that happens up to now_s.
  void advance(double now_s) {
    while (!in_prefill_.empty() && in_prefill_.front().end_s <= now_s) {
      const InPrefill next = in_prefill_.front();
      std::pop_heap(in_prefill_.begin(), in_prefill_.end(), std::greater<>());
      in_prefill_.pop_back();
      arrive(next);
    }
    decode_.advance_to(now_s);
  }

  PaperFate decide(const TraceRequest& r, const PaperPlacement& placement, double now_s) const {
    if (admission_.admission == PaperAdmission::none) return PaperFate::served;
    if (placement.ttft_s > options_.ttft_slo_s) return PaperFate::rejected_ttft;
    const double n = static_cast<double>(r.input_tokens), bound_s = admission_.slack * options_.tbt_slo_s;
    if (admission_.admission == PaperAdmission::early && now_load_s(n) > bound_s) return PaperFate::rejected_decode;
    if (admission_.admission == PaperAdmission::predict && then_load_s(n, now_s + placement.ttft_s) > bound_s)
      return PaperFate::rejected_decode;
    return PaperFate::served;
  }

  void dispatch(size_t request, const PaperPlacement& placement) {
    const double n = static_cast<double>(trace_[request].input_tokens);
    const auto load_s = [&](uint32_t i) {
      return step_s(decode_.rows(i) + committed_[i] + 1,
                    static_cast<double>(decode_.context(i) + committed_tokens_[i]) + n);
    };
    uint32_t node = 0;
    for (uint32_t i = 1; i < decode_.size(); ++i)
      if (load_s(i) < load_s(node)) node = i;
    ++committed_[node];
    committed_tokens_[node] += trace_[request].input_tokens;
    out_.gpu_s += placement.prefill_s;
    in_prefill_.push_back({placement.end_s, request, node});
    std::push_heap(in_prefill_.begin(), in_prefill_.end(), std::greater<>());
  }

  const PaperDecode& finish() {
    advance(std::numeric_limits<double>::infinity());
    decode_.finish();
    return decode_;
  }

 private:
  void arrive(const InPrefill& p) {
    const TraceRequest& r = trace_[p.request];
    decode_.advance_to(p.end_s);
    --committed_[p.node];
    committed_tokens_[p.node] -= r.input_tokens;
    if (r.output_tokens < 2) return;
    const double context = static_cast<double>(decode_.context(p.node) + r.input_tokens);
    const bool slow = step_s(decode_.rows(p.node) + 1, context) > options_.tbt_slo_s;
    if (admission_.admission != PaperAdmission::none && (slow || context > kPaperKvTokens)) {
      run_.fates[p.request] = PaperFate::rejected_after;
      ++out_.rejected_after;
      out_.waste_s += run_.placements[p.request].prefill_s;
      return;
    }
    decode_.join(p.end_s, p.node, p.request, r.input_tokens, r.output_tokens);
  }

  double now_load_s(double n) const {
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t i = 0; i < decode_.size(); ++i)
      least = std::min(least, step_s(decode_.rows(i) + 1, static_cast<double>(decode_.context(i)) + n));
    return least;
  }

  double then_load_s(double n, double at_s) const {
    double rows = 1, context = n;
    decode_.for_each([&](double arrived_s, uint64_t tokens) {
      if (arrived_s + admission_.decode_s > at_s) rows += 1, context += static_cast<double>(tokens);
    });
    for (const InPrefill& p : in_prefill_)
      if (p.end_s <= at_s && p.end_s + admission_.decode_s > at_s)
        rows += 1, context += static_cast<double>(trace_[p.request].input_tokens);
    const double nodes = static_cast<double>(decode_.size());
    return kPaperCost.step(rows / nodes, context / nodes);
  }

  const std::vector<TraceRequest>& trace_;
  const PaperOptions& options_;
  const PaperOverloadOptions& admission_;
  PaperRun& run_;
  PaperOverload& out_;
  PaperDecode decode_;
  std::vector<uint64_t> committed_, committed_tokens_;
  std::vector<InPrefill> in_prefill_;  // heap: the first ends first
};

}  // namespace

std::string_view to_string(PaperFate fate) {
  switch (fate) {
    case PaperFate::served: return "served";
    case PaperFate::rejected_ttft: return "rejected_ttft";
    case PaperFate::rejected_decode: return "rejected_decode";
    case PaperFate::rejected_after: return "rejected_after_prefill";
  }
  return "served";
}

PaperRun run_paper_overload(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks,
                            const PaperOptions& options, const PaperOverloadOptions& admission,
                            PaperOverload& overload) {
  MC_ASSERT(options.decode_nodes > 0);
  PaperRun run;
  overload = {};
  run.fates.assign(trace.size(), PaperFate::served);
  PaperPrefill prefill(options.prefill, blocks.unique());
  Overload state(trace, options, admission, run, overload);
  for (size_t r = 0; r < trace.size(); ++r) {
    const double now_s = trace[r].timestamp_ms / 1000 / options.speedup;
    state.advance(now_s);
    run.placements.push_back(prefill.plan(now_s, trace[r].input_tokens, blocks.of(r)));
    const PaperPlacement& placement = run.placements.back();
    run.fates[r] = state.decide(trace[r], placement, now_s);
    overload.rejected_ttft += run.fates[r] == PaperFate::rejected_ttft;
    overload.rejected_decode += run.fates[r] == PaperFate::rejected_decode;
    if (run.fates[r] != PaperFate::served) continue;
    prefill.book(placement, blocks.of(r));
    state.dispatch(r, placement);
  }
  const PaperDecode& decode = state.finish();
  run.tbt_s = decode.tbt_s();
  run.batch_mean = decode.batch_mean();
  run.batch_max = decode.batch_max();
  summarise(trace, options, run);
  return run;
}

}  // namespace mc::sim

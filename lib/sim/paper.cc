#include "sim/paper.h"

#include <algorithm>
#include <numeric>

#include "base/assert.h"
#include "base/histogram.h"
#include "base/units.h"
#include "sim/paper_decode.h"

namespace mc::sim {

Percentiles percentiles(std::vector<double> values) {
  Percentiles out;
  if (values.empty()) return out;
  out.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  std::sort(values.begin(), values.end());
  out.p50 = quantile_sorted(values, .5);
  out.p90 = quantile_sorted(values, .9);
  out.p99 = quantile_sorted(values, .99);
  return out;
}

namespace {

void run_decode(const std::vector<TraceRequest>& trace, const PaperOptions& options, PaperRun& run) {
  // Arrivals at decode: by the end of prefill, equal ends in the trace's order.
  std::vector<uint32_t> order(trace.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return run.placements[a].end_s < run.placements[b].end_s; });
  PaperDecode decode(options.decode_nodes, trace.size());
  for (const uint32_t r : order)
    decode.arrive(run.placements[r].end_s, r, trace[r].input_tokens, trace[r].output_tokens);
  decode.finish();
  run.tbt_s = decode.tbt_s();
  run.batch_mean = decode.batch_mean();
  run.batch_max = decode.batch_max();
}

}  // namespace

Result<PaperCluster> parse_paper_cluster(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return Error{Code::invalid, "'" + std::string(text.substr(0, 40)) + "' " + why};
  };
  const auto count = [&](std::string_view digits) { return parse_u64(digits, 0, kPaperNodesMax); };
  PaperCluster out;
  const size_t p = text.find('p');
  if (p == std::string_view::npos) return bad("is no cluster; write 8p (prefill alone) or 8p8d");
  const auto prefill = count(text.substr(0, p));
  std::string_view rest = text.substr(p + 1);
  Result<uint64_t> decode = uint64_t{0};
  if (!rest.empty()) {
    if (rest.back() != 'd') return bad("is no cluster; write 8p (prefill alone) or 8p8d");
    decode = count(rest.substr(0, rest.size() - 1));
  }
  if (!prefill || !decode || *prefill == 0)
    return bad("needs 1 to " + std::to_string(kPaperNodesMax) + " prefill and at most as many decode nodes");
  out.prefill = static_cast<uint32_t>(*prefill);
  out.decode = static_cast<uint32_t>(*decode);
  return out;
}

void summarise(const std::vector<TraceRequest>& trace, const PaperOptions& options, PaperRun& run) {
  double input = 0, reused = 0, gpu_s = 0;
  std::vector<double> ttft, tbt;
  uint64_t good = 0;
  for (size_t r = 0; r < trace.size(); ++r) {
    const PaperFate fate = run.fates.empty() ? PaperFate::served : run.fates[r];
    if (fate == PaperFate::rejected_ttft || fate == PaperFate::rejected_decode) continue;
    const PaperPlacement& p = run.placements[r];
    input += static_cast<double>(trace[r].input_tokens);
    reused += static_cast<double>(p.reused_tokens);
    gpu_s += p.prefill_s;
    run.fetches += p.fetched();
    ttft.push_back(p.ttft_s);
    if (!run.tbt_s.empty() && run.tbt_s[r] > 0) tbt.push_back(run.tbt_s[r]);
    good += fate == PaperFate::served && p.ttft_s <= options.ttft_slo_s &&
            (run.tbt_s.empty() || run.tbt_s[r] <= options.tbt_slo_s);
  }
  run.token_hit = input > 0 ? reused / input : 0;
  run.gpu_s_mean = ttft.empty() ? 0 : gpu_s / static_cast<double>(ttft.size());
  run.ttft_s = percentiles(std::move(ttft));
  run.tbt = percentiles(std::move(tbt));
  run.effective = trace.empty() ? 0 : static_cast<double>(good) / static_cast<double>(trace.size());
}

PaperRun run_paper(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks, const PaperOptions& options) {
  MC_ASSERT_EQ(trace.size(), blocks.size());
  PaperRun run;
  PaperPrefill prefill(options.prefill, blocks.unique());
  for (size_t r = 0; r < trace.size(); ++r) {
    const double now_s = trace[r].timestamp_ms / 1000 / options.speedup;
    run.placements.push_back(prefill.place(now_s, trace[r].input_tokens, blocks.of(r)));
  }
  if (options.decode_nodes > 0) run_decode(trace, options, run);
  summarise(trace, options, run);
  return run;
}

}  // namespace mc::sim

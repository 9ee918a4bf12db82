// One run of the reference rules over a trace: prefill (sim/paper_prefill.h) and, with decode nodes,
// decode (sim/paper_decode.h), and the figures of the run: waiting times, reused tokens and the cost of decoding.
// Equal traces and options give equal figures to the last bit.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sim/paper_prefill.h"
#include "sim/trace.h"

namespace mc::sim {

inline constexpr uint32_t kPaperNodesMax = 4096;

/// 8p8d or 8p: prefill nodes, decode nodes (0 = prefill alone is simulated).
struct PaperCluster {
  uint32_t prefill = 8, decode = 0;
};
/// Code::invalid with the text quoted, and when there is no prefill node or more than kPaperNodesMax.
Result<PaperCluster> parse_paper_cluster(std::string_view text);

struct PaperOptions {
  uint32_t decode_nodes = 0;
  double speedup = 1;  // divides the trace's times; > 0
  double ttft_slo_s = 30, tbt_slo_s = .1;
  PaperPrefillOptions prefill;
};

struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};
/// All zero when there are no values.
Percentiles percentiles(std::vector<double> values);

/// Whether and when a request was turned away (sim/paper_overload.h).
enum class PaperFate : uint8_t { served, rejected_ttft, rejected_decode, rejected_after };

struct PaperRun {
  std::vector<PaperPlacement> placements;  // one a request, in the trace's order
  std::vector<double> tbt_s;               // likewise; 0 where nothing was decoded. Empty without decode nodes
  std::vector<PaperFate> fates;            // likewise; empty = all were served
  Percentiles ttft_s, tbt;                 // of requests that ran prefill, and made a decode step; seconds
  double token_hit = 0;                    // reused tokens over input tokens
  double gpu_s_mean = 0;                   // seconds of prefill, fetches not counted
  uint64_t fetches = 0;                    // requests that fetched
  double effective = 0;                    // share within both SLOs (without decode nodes: within the TTFT's)
  double batch_mean = 0;
  uint64_t batch_max = 0;
};

/// Fills the figures of a run from its placements, tbt_s and fates.
void summarise(const std::vector<TraceRequest>& trace, const PaperOptions& options, PaperRun& run);

PaperRun run_paper(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks, const PaperOptions& options);

}  // namespace mc::sim

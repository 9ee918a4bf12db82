// The reference rules of admission under overload (after Mooncake, arXiv:2407.00079, section 7): prefill of
// sim/paper_prefill.h and decode of sim/paper_decode.h in one clock, and four rules of admission.
//
//   at arrival    TTFT: predicted TTFT > its SLO                                          baseline, early, predict
//                 decode now: least step(b + 1, K + n) over the nodes > slack * SLO                 early
//                 decode then: step(B / D, K / D) > slack * SLO, B and K over the                        predict
//                 requests that by now + TTFT have arrived and not decoded for t_d, and this one
//   after prefill step(b + 1, K + n) of its node > SLO, or K + n > what VRAM holds        baseline, early, predict
//
// The decode node is chosen at arrival: least step(b + 1, K + n), committed requests counted. Ties: first node.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/paper.h"

namespace mc::sim {

enum class PaperAdmission : uint8_t { none, baseline, early, predict };

inline constexpr double kPaperKvTokens = 1.37e6;  // of one decode node

struct PaperOverloadOptions {
  PaperAdmission admission = PaperAdmission::none;
  double decode_s = 20;  // t_d: how long a request is taken to decode
  double slack = 1;
};

std::string_view to_string(PaperFate fate);

struct PaperOverload {
  uint64_t rejected_ttft = 0, rejected_decode = 0, rejected_after = 0;
  double waste_s = 0, gpu_s = 0;  // prefill seconds: of requests rejected after it, of all that ran
};

/// Needs decode nodes. Figures of prefill are over requests that ran it, of TBT over those served; `effective`
/// is the share of all.
PaperRun run_paper_overload(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks,
                            const PaperOptions& options, const PaperOverloadOptions& admission,
                            PaperOverload& overload);

}  // namespace mc::sim

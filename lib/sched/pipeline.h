// The cost of one stage of a prefill pipeline (Mooncake, arXiv 2407.00079, 5.1), from the profile of a whole node.
// Simulated pipelines and pipelines of costed nodes use the same functions.
#pragma once

#include <cstdint>

#include "base/assert.h"
#include "sched/cost.h"

namespace mc::sched {

/// The share of a chunk's time that stage `stage` of `stages` computes: its share of the model's layers, which are
/// divided as base/extent.h divides them. The shares are equal when the profile has fewer layers than stages.
constexpr double stage_share(uint64_t layers, uint32_t stage, uint32_t stages) {
  MC_ASSERT(stage < stages);
  if (layers < stages) return 1.0 / stages;
  const uint64_t held = layers * (stage + 1) / stages - layers * stage / stages;
  return static_cast<double>(held) / static_cast<double>(layers);
}

/// The largest share of a stage. Members of a pipeline have equal numbers of pages, so it sets how many blocks they
/// hold.
constexpr double widest_stage_share(uint64_t layers, uint32_t stages) {
  MC_ASSERT(stages > 0);
  if (layers < stages) return 1.0 / stages;
  return static_cast<double>((layers + stages - 1) / stages) / static_cast<double>(layers);
}

/// The cost that the leader of a pipeline announces. A full pipeline finishes a prompt in little more than the time of
/// one stage, and reports of finished prompts correct the rest.
constexpr Cost pipeline_cost(Cost cost, uint32_t stages) {
  cost.prefill_s_per_token /= stages;
  cost.prefill_s_per_token2 /= stages;
  return cost;
}

}  // namespace mc::sched

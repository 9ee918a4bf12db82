// Whether a worker's memory suffices, asked before anything is loaded, and what to say when it does not:
// what is needed, what is free, and the largest --kv-mem that fits.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace mc::run {

struct MemoryPlan {
  uint64_t weight_bytes = 0;   // as packed
  uint64_t scratch_bytes = 0;  // activations and logits
  uint64_t kv_bytes = 0;       // as asked for; 0: a share of what is left
  uint64_t page_bytes = 0;     // of one KV block
  uint64_t free_bytes = 0;
};

/// A pool smaller than this serves nobody.
inline constexpr uint64_t kPagesMin = 4;

/// MC5003 when it does not fit.
Result<void> check_memory(const MemoryPlan& plan);

}  // namespace mc::run

// `mc-bench gpu --steps`: the time of a decode step of mc-tiny on a device, when the host waits for the tokens of each
// step, when the next step is queued ahead, and when its kernels are queued as a graph besides. All ways must draw the
// same tokens.
#pragma once

#include <span>

#include "gpu/gpu.h"
#include "rows.h"

namespace mc::bench {

struct StepsOptions {
  std::span<const uint64_t> batches;
  int steps = 0;         // of each way
  bool is_timed = true;  // false: the device is an emulator, which has no speed
};

/// Adds a row for each batch and way. MC8004: two ways differ.
Result<void> time_steps(gpu::Device& device, const StepsOptions& options, Rows& rows);
/// The table of those rows.
Table steps_table();

}  // namespace mc::bench

// `mc-bench gpu --steps`: the time of a decode step of mc-tiny on a device, when the host waits for the tokens of each
// step, when the next step is queued ahead, and when its kernels are queued as a graph besides. All ways must draw the
// same tokens.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "gpu/gpu.h"
#include "rows.h"

namespace mc::bench {

/// A way to queue decode steps.
struct StepWay {
  std::string_view name;
  size_t queued;  // steps that the device has at most
  bool graphs;
};
inline constexpr StepWay kStepWays[] = {{"one by one", 1, false}, {"ahead", 2, false}, {"ahead, as graphs", 2, true}};

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

// `mc-bench gpu --steps --shape S`: the whole forward pass of a Llama with random weights on a device. These are timed:
// prefill in chunks; the copy to the host of the last chunk's K and V from the moment that the device has computed
// them; the copy of all pages to a device; decode steps behind a context that each sequence has in pages of its own.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/gpu.h"
#include "rows.h"

namespace mc::bench {

struct ModelSpeedOptions {
  std::string shape;  // of shape_names()
  std::span<const uint64_t> batches;
  bool is_timed = true;    // false: the device is an emulator, which has no speed
  double copy_rate = 0;    // bytes a second of a copy inside the device's memory, read and written
  double matrix_peak = 0;  // bf16 operations a second
};

std::vector<std::string_view> shape_names();

/// Adds rows for prefill, hand-over and load, and for each batch and way of decode. MC8004: two ways differ.
Result<void> time_model(gpu::Device& device, const ModelSpeedOptions& options, Rows& rows);
/// The table of those rows.
Table model_speed_table();

}  // namespace mc::bench

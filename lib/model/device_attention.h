// Attention of the rows of one pass on a device. Layers whose modes are equal share one gpu::AttentionBatch, whose
// tables are copied when the first of them runs.
//
//   attention.begin(shape, rows);               // once a pass
//   MC_CHECK(attention.attend(modes, layer));   // the mode of each sequence in this layer
#pragma once

#include <span>
#include <vector>

#include "attn/plan.h"
#include "gpu/attention.h"

namespace mc::model {

class DeviceAttention {
 public:
  /// The device must outlive it. Memory is kept from pass to pass.
  explicit DeviceAttention(gpu::Device& device) : device_(device), last_row_(device) {}

  /// Device memory of all batches of a pass whose rows have these plans. Layers have at most two modes where the
  /// requests of a step agree. A request that names another plan may take more: what MoBA needs is not held back for
  /// requests that name MoBA where no plan does. `device_bytes`: the device's whole memory.
  static gpu::AttentionMemory memory(const ExtentLayout& layout, int32_t q_heads, size_t rows, size_t sequences,
                                     std::span<const attn::Plan> plans, size_t device_bytes);

  /// `rows`: the sequences of the pass; their modes and splits are not read.
  void begin(const gpu::AttentionShape& shape, std::vector<gpu::SequenceRows> rows);
  /// Queues the attention of all rows. Errors: those of gpu::AttentionBatch.
  Result<void> attend(std::vector<attn::Mode> modes, const gpu::AttentionLayer& layer);
  /// Queues the attention of the last row of a pass of one sequence; `layer` has the addresses of that row.
  Result<void> attend_last_row(const attn::Mode& mode, const gpu::AttentionLayer& layer);

 private:
  struct ModeBatch {
    std::vector<attn::Mode> modes;
    gpu::AttentionBatch batch;
  };

  gpu::Device& device_;
  gpu::AttentionShape shape_;
  std::vector<gpu::SequenceRows> rows_;
  std::vector<ModeBatch> batches_;  // the first `begun_` are of the pass
  size_t begun_ = 0;
  gpu::AttentionBatch last_row_;
};

}  // namespace mc::model

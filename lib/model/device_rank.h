// A device's forward pass in steps that end where sums over several devices are due. A device alone runs them one after
// another, as backend.h asks; split_backend.h runs each step on all devices, with the sums between.
//
//   MC_TRY(rows, rank.rows_behind(layer));              // or attend_last_row(), attend_last_rows()
//   MC_CHECK(rank.layers().add_attention(layer, rows));
//   ... x = the sum of all ranks ...
//   MC_CHECK(rank.layers().add_mlp(layer, rows));
//   ... x = the sum of all ranks ...
//   MC_CHECK(rank.end_last_row(logits, hidden));        // or end_rows(), of the first rank
#pragma once

#include <memory>
#include <span>

#include "model/backend.h"
#include "model/device_layers.h"
#include "ops/ops.h"

namespace mc::model {

class DeviceRank : public Backend {
 public:
  virtual DeviceLayers& layers() = 0;
  /// The rows of the pass behind the attention of a layer.
  virtual Result<DeviceLayers::Rows> rows_behind(uint32_t layer) = 0;
  /// The attention of the model's last layer for the chunk's last row alone, and that row.
  virtual Result<DeviceLayers::Rows> attend_last_row() = 0;
  virtual Result<void> end_last_row(std::span<float> logits, std::span<float> hidden) = 0;
  /// Likewise for the rows of finish_rows(); none: the pass asks for no row.
  virtual Result<DeviceLayers::Rows> attend_last_rows() = 0;
  virtual Result<void> end_rows(const MixedPass& pass) = 0;

  Result<void> after_attention(uint32_t layer) final;
  Result<void> finish_last_row(std::span<float> logits, std::span<float> hidden) final;
  Result<void> finish_rows(const MixedPass& pass) final;
};

/// Copies the part's weights to the device. Errors and lifetimes: those of open_device_backend(). Parts have neither
/// pages that the caller numbers nor graphs.
Result<std::unique_ptr<DeviceRank>> open_device_rank(const Model& model, gpu::Device& device, Parallel& parallel,
                                                     const RunnerOptions& options, const ops::Kernels& kernels,
                                                     const TensorPart& part);

}  // namespace mc::model

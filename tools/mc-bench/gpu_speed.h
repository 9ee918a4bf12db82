// The speed of one attention call of `mc-bench gpu --speed`: sequences of equal length, whose pages lie scattered over
// the device's memory. Results are not compared with the reference here; the cases without --speed do that.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "gpu/attention.h"
#include "gpu_case.h"

namespace mc::bench {

/// The median of the seconds of one `work` in five spells of at least 50 ms, after which the device is waited for.
Result<double> median_seconds(gpu::Device& device, const std::function<Result<void>()>& work);
/// Bytes a second of a copy inside the device's memory, each byte counted as read and as written. The median of five.
Result<double> copy_rate(gpu::Device& device);

class GpuSpeed {
 public:
  /// `sequences` sequences of shape.tokens tokens: decode has a row of each, prefill all rows. Numbers are random and
  /// repeat after 64 pages.
  static Result<std::unique_ptr<GpuSpeed>> open(const GpuShape& shape, int32_t sequences, Parallel& parallel,
                                                gpu::Device& device);

  /// Seconds of one call: the median of five spells of at least 50 ms.
  Result<double> time();
  /// Runs the call once.
  Result<void> run();

  /// The different blocks of history that the heads of a group chose in one row, the mean: top_k - 1 of them when the
  /// heads choose alike. Of MoBA decode alone.
  Result<double> blocks_of_group();

  /// Bytes of K and V that a call must read at least: the heads of a group and the rows of a tile share them.
  double bytes() const;
  /// Multiplications and additions of the scores and of the weighted sums, of the keys that rows attend to.
  double flops() const;

 private:
  GpuSpeed(const GpuShape& shape, int32_t sequences, gpu::Device& device)
      : shape_(shape), sequences_(sequences), device_(&device), batch_(device) {}
  Result<void> fill(Parallel& parallel);
  std::vector<bf16_t> draw_queries(Rng& rng) const;
  Result<void> repeat(uint64_t address, size_t have, size_t bytes);
  int64_t rows() const { return shape_.decode() ? sequences_ : sequences_ * shape_.tokens; }

  GpuShape shape_;
  int32_t sequences_;
  gpu::Device* device_;
  gpu::DeviceBuffer pool_, q_, out_;
  gpu::AttentionBatch batch_;
  gpu::AttentionLayer layer_;
};

}  // namespace mc::bench

// A mixture of experts on a device, in the meaning of model/experts.h: a router scores every expert for a row, and the
// outputs of the best few are added, weighted by their softmax. A shared expert may be added for every row, weighted by
// the sigmoid of its gate. The host waits for nothing: how many rows an expert has stays on the device, so a grid has
// the tiles of the worst case, and those that no expert needs end at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/arena.h"
#include "gpu/gpu.h"

namespace mc::gpu {

struct MixtureShape {
  uint32_t experts = 0, per_token = 0;  // experts at most kExpertsMax (gpu/kernels/experts.h)
  bool normalise = false;               // the shares of a row's experts sum to 1
  size_t hidden = 0, inner = 0;         // multiples of 8
  size_t shared_inner = 0;              // inner width of the shared expert; 0: there is none
  bool routes_alike = false;            // the own kernels compute the scores: other devices must choose likewise
};

/// Addresses of bf16 matrices.
struct MixtureWeights {
  uint64_t router = 0;   // [experts, hidden], and the shared expert's gate as one more row
  uint64_t gate_up = 0;  // [experts, 2 inner, hidden]
  uint64_t down = 0;     // [experts, hidden, inner]
  // The shared expert's: [2 shared_inner, hidden] and [hidden, shared_inner]; 0: there is none.
  uint64_t shared_gate_up = 0, shared_down = 0;
};

class Mixture {
 public:
  /// Device memory for passes of at most `rows` rows.
  static size_t bytes(const MixtureShape& shape, size_t rows);
  /// The device must outlive it. MC7005: the device has no room.
  static Result<Mixture> open(Device& device, const MixtureShape& shape, size_t rows);

  /// Queues x += mixture(in) for 1 to `rows` rows on the device's own stream; `in` bf16 and x f32, [rows, hidden].
  Result<void> add(const MixtureWeights& weights, uint64_t in, uint64_t x, size_t rows);

 private:
  /// Addresses of the parts, each [rows, ...] or [rows * per_token, ...].
  struct Parts {
    uint64_t scores = 0, chosen = 0, shares = 0, rows = 0, slots = 0, tiles = 0;
    uint64_t gate_up = 0, activated = 0, answers = 0, shared = 0;
  };
  struct PartSize {
    uint64_t Parts::*member;
    size_t bytes;
  };
  static std::vector<PartSize> part_sizes(const MixtureShape& shape, size_t rows);
  /// Columns of the scores: the experts, and the gate of the shared one.
  static size_t score_columns(const MixtureShape& shape) { return shape.experts + (shape.shared_inner > 0 ? 1 : 0); }
  Result<void> choose(const MixtureWeights& weights, uint64_t in, size_t rows);
  Result<void> group(size_t rows, uint32_t tile_rows, uint32_t tiles);
  Result<void> multiply(uint64_t x, uint64_t w, uint64_t y, uint64_t row_table, size_t columns, size_t inner,
                        uint32_t tile_rows, uint32_t tiles);
  Result<void> ask_shared(const MixtureWeights& weights, uint64_t in, size_t rows);

  Mixture(Device& device, const MixtureShape& shape) : device_(&device), shape_(shape) {}
  Device* device_;
  MixtureShape shape_;
  Arena arena_;
  Parts at_;
};

}  // namespace mc::gpu

// One oneDNN product of a fixed shape: y[64, n] = x[64, k] W, W in panels of ops.h. Internal to lib/ops;
// onednn.cc is the only file that sees dnnl.h.
#pragma once

#include <cstddef>
#include <memory>

#include "base/dtype.h"
#include "base/result.h"

namespace mc::ops {

class TileProgram {
 public:
  /// unsupported when oneDNN has no fast implementation of the shape (seen for very small k).
  static Result<std::unique_ptr<TileProgram>> compile(Dtype dtype, size_t k, size_t n);
  ~TileProgram();
  TileProgram(const TileProgram&) = delete;
  TileProgram& operator=(const TileProgram&) = delete;

  /// x [64, k] row-major (f32, or bf16 when dtype is bf16); y f32, `y_stride` elements from row to row.
  /// Runs on the calling thread alone. Any number of threads may run one program at a time.
  void run(const void* x, const void* panels, float* y, size_t y_stride) const;

 private:
  TileProgram() = default;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mc::ops

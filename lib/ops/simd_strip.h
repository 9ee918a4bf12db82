// The end of a strip of a product: sums of some rows and columns, over a vector type V that has freg (a register of
// floats), lanes, store and store_some. Each file that includes this gets its own copy, compiled for its instruction
// set.
#pragma once

#include <cstddef>

namespace mc::ops {
namespace {  // NOLINT: every including file must own its copy

/// Stores the outputs from `column` on, as far as there are so many columns.
template <class V, int kRows, int kVectors>
inline void store_strip(const typename V::freg (&total)[kRows][kVectors], size_t column, size_t columns, float* y,
                        size_t y_stride) {
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) {
      const size_t at = column + v * V::lanes;
      if (at >= columns) break;
      if (columns - at < V::lanes)
        V::store_some(y + r * y_stride + at, columns - at, total[r][v]);
      else
        V::store(y + r * y_stride + at, total[r][v]);
    }
}

}  // namespace
}  // namespace mc::ops

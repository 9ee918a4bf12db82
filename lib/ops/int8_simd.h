// The kernels of int8.h over a vector type V; each file that includes this gets its own copy, compiled for
// its instruction set. V has reg, lanes, load, load_codes (lanes bytes, widened), store, store_some, set1,
// zero, mul, fma, and vectors(rows): how many vectors of columns go with so many rows, so that sums and
// weights fit the registers; totals are touched once a group and may wait in memory.
#pragma once

#include "ops/int8.h"

namespace mc::ops {
namespace {  // NOLINT: every including file must own its copy

/// The prefetch distance of weights: the hardware prefetcher alone leaves half of the bandwidth unused. The bytes
/// behind a panel are those of the next one.
constexpr size_t kInt8AheadBytes = 4096;

template <class V, int kRows>
void int8_strip(const float* x, size_t x_stride, const std::byte* panel, size_t k, float* y, size_t y_stride,
                size_t columns) {
  constexpr int kVectors = V::vectors(kRows);
  const float* scales = int8_scales(panel, k);
  for (size_t column = 0; column < columns; column += kVectors * V::lanes) {
    typename V::reg total[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) total[r][v] = V::zero();
    for (size_t first = 0; first < k; first += kInt8Group) {
      typename V::reg sum[kRows][kVectors];
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) sum[r][v] = V::zero();
      const size_t last = first + kInt8Group < k ? first + kInt8Group : k;
      for (size_t i = first; i < last; ++i) {
        __builtin_prefetch(panel + i * kPanelColumns + column + kInt8AheadBytes);
        typename V::reg w[kVectors];
        for (int v = 0; v < kVectors; ++v) w[v] = V::load_codes(panel + i * kPanelColumns + column + v * V::lanes);
        for (int r = 0; r < kRows; ++r) {
          const auto a = V::set1(x[r * x_stride + i]);
          for (int v = 0; v < kVectors; ++v) sum[r][v] = V::fma(a, w[v], sum[r][v]);
        }
      }
      const float* group = scales + first / kInt8Group * kPanelColumns + column;
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) total[r][v] = V::fma(sum[r][v], V::load(group + v * V::lanes), total[r][v]);
    }
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
}

/// Strips of at most six rows, of equal size as nearly as can be: codes are converted once a strip. A row's
/// sums are the same in every strip, each is one chain.
template <class V>
void int8_panel(const float* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, float* y,
                size_t y_stride, size_t columns) {
  while (rows > 0) {
    const size_t strips = (rows + 5) / 6;
    const size_t now = (rows + strips - 1) / strips;
    switch (now) {
      case 6: int8_strip<V, 6>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 5: int8_strip<V, 5>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 4: int8_strip<V, 4>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 3: int8_strip<V, 3>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 2: int8_strip<V, 2>(x, x_stride, panel, k, y, y_stride, columns); break;
      default: int8_strip<V, 1>(x, x_stride, panel, k, y, y_stride, columns); break;
    }
    x += now * x_stride;
    y += now * y_stride;
    rows -= now;
  }
}

template <class V>
void int8_widen(const std::byte* panel, size_t k, float* out) {
  const float* scales = int8_scales(panel, k);
  for (size_t i = 0; i < k; ++i)
    for (size_t column = 0; column < kPanelColumns; column += V::lanes) {
      const auto scale = V::load(scales + i / kInt8Group * kPanelColumns + column);
      V::store(out + i * kPanelColumns + column, V::mul(V::load_codes(panel + i * kPanelColumns + column), scale));
    }
}

}  // namespace
}  // namespace mc::ops

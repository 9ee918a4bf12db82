// The kernels of fp8.h over a vector type V; each file that includes this gets its own copy, compiled for its
// instruction set. V has reg and freg (the same register of floats), lanes, load, store, store_some, set1, zero, mul,
// fma, vectors(rows) (an even number: how many vectors of columns go with so many rows), store_pairs (even and odd k,
// rounded to bf16), and load_line(codes, even, odd): 2 x lanes columns of one pair of k, as values times 2^-8.
//
// 2^-8, because a code moved to its place in an f16 (sign, 5 bits of exponent, 10 of mantissa) is the value with
// an exponent less by 8, subnormals included, and the conversion of f16 to f32 is exact whatever the flush modes
// are. The factor is put back with the scale, once a group.
#pragma once

#include "ops/fp8.h"
#include "ops/simd_strip.h"

namespace mc::ops {
namespace {  // NOLINT: every including file must own its copy

/// The prefetch distance of weights: the bytes after a panel are those of the next one.
constexpr size_t kFp8AheadBytes = 4096;
constexpr float kFp8Unit = 256.0f;

/// One pair of k: its codes are widened a line at a time for all rows. The second half of an odd K's last pair is not
/// used.
template <class V, int kRows, int kVectors, bool kPair>
inline void fp8_step(const float* x, size_t x_stride, const std::byte* codes, typename V::reg (&sum)[kRows][kVectors]) {
  for (int v = 0; v < kVectors; v += 2) {
    __builtin_prefetch(codes + v * 2 * V::lanes + kFp8AheadBytes);
    typename V::reg even[2], odd[2];
    V::load_line(codes + v * 2 * V::lanes, even, odd);
    for (int r = 0; r < kRows; ++r) {
      const auto a = V::set1(x[r * x_stride]);
      for (int i = 0; i < 2; ++i) sum[r][v + i] = V::fma(a, even[i], sum[r][v + i]);
    }
    if constexpr (kPair)
      for (int r = 0; r < kRows; ++r) {
        const auto a = V::set1(x[r * x_stride + 1]);
        for (int i = 0; i < 2; ++i) sum[r][v + i] = V::fma(a, odd[i], sum[r][v + i]);
      }
  }
}

template <class V, int kRows>
void fp8_strip(const float* x, size_t x_stride, const std::byte* panel, size_t k, size_t group, float* y,
               size_t y_stride, size_t columns) {
  constexpr int kVectors = V::vectors(kRows);
  const float* scales = fp8_scales(panel, k);
  for (size_t column = 0; column < columns; column += kVectors * V::lanes) {
    typename V::reg total[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) total[r][v] = V::zero();
    for (size_t first = 0; first < k; first += group) {
      typename V::reg sum[kRows][kVectors];
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) sum[r][v] = V::zero();
      const size_t last = first + group < k ? first + group : k;
      size_t i = first;
      for (; i + 2 <= last; i += 2)
        fp8_step<V, kRows, kVectors, true>(x + i, x_stride, panel + i * kPanelColumns + 2 * column, sum);
      if (i < last) fp8_step<V, kRows, kVectors, false>(x + i, x_stride, panel + i * kPanelColumns + 2 * column, sum);
      const float* line = scales + first / group * kPanelColumns + column;
      for (int v = 0; v < kVectors; ++v) {
        const auto scale = V::mul(V::load(line + v * V::lanes), V::set1(kFp8Unit));
        for (int r = 0; r < kRows; ++r) total[r][v] = V::fma(sum[r][v], scale, total[r][v]);
      }
    }
    store_strip<V, kRows, kVectors>(total, column, columns, y, y_stride);
  }
}

/// Strips of at most six rows, of equal size as nearly as can be: codes are widened once a strip. A row's sums
/// are the same in every strip, each is one chain.
template <class V>
void fp8_panel(const float* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, size_t group, float* y,
               size_t y_stride, size_t columns) {
  while (rows > 0) {
    const size_t strips = (rows + 5) / 6;
    const size_t now = (rows + strips - 1) / strips;
    switch (now) {
      case 6: fp8_strip<V, 6>(x, x_stride, panel, k, group, y, y_stride, columns); break;
      case 5: fp8_strip<V, 5>(x, x_stride, panel, k, group, y, y_stride, columns); break;
      case 4: fp8_strip<V, 4>(x, x_stride, panel, k, group, y, y_stride, columns); break;
      case 3: fp8_strip<V, 3>(x, x_stride, panel, k, group, y, y_stride, columns); break;
      case 2: fp8_strip<V, 2>(x, x_stride, panel, k, group, y, y_stride, columns); break;
      default: fp8_strip<V, 1>(x, x_stride, panel, k, group, y, y_stride, columns); break;
    }
    x += now * x_stride;
    y += now * y_stride;
    rows -= now;
  }
}

/// body(i, column, even[2], odd[2]) for every pair of k and every 2 x lanes columns, values times their scales.
template <class V, class Body>
inline void fp8_for_lines(const std::byte* panel, size_t k, size_t group, Body body) {
  const float* scales = fp8_scales(panel, k);
  for (size_t i = 0; i < k; i += 2)
    for (size_t column = 0; column < kPanelColumns; column += 2 * V::lanes) {
      const float* line = scales + i / group * kPanelColumns + column;
      typename V::reg even[2], odd[2];
      V::load_line(panel + i * kPanelColumns + 2 * column, even, odd);
      for (int v = 0; v < 2; ++v) {
        const auto scale = V::mul(V::load(line + v * V::lanes), V::set1(kFp8Unit));
        even[v] = V::mul(even[v], scale);
        odd[v] = V::mul(odd[v], scale);
      }
      body(i, column, even, odd);
    }
}

template <class V>
void fp8_widen(const std::byte* panel, size_t k, size_t group, float* out) {
  fp8_for_lines<V>(panel, k, group, [&](size_t i, size_t column, const auto& even, const auto& odd) {
    float* row = out + i * kPanelColumns + column;
    for (int v = 0; v < 2; ++v) {
      V::store(row + v * V::lanes, even[v]);
      if (i + 1 < k) V::store(row + kPanelColumns + v * V::lanes, odd[v]);
    }
  });
}

template <class V>
void fp8_widen_bf16(const std::byte* panel, size_t k, size_t group, bf16_t* out) {
  fp8_for_lines<V>(panel, k, group, [&](size_t i, size_t column, const auto& even, const auto& odd) {
    for (size_t v = 0; v < 2; ++v)
      V::store_pairs(out + i * kPanelColumns + 2 * (column + v * V::lanes), even[v], odd[v]);
  });
}

}  // namespace
}  // namespace mc::ops

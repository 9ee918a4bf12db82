// Weights in one byte: for each output and each group of 128 inputs a scale, and codes -127 .. 127 that it
// multiplies. Half of bf16's bytes to read for every token of a decode step, which memory bandwidth bounds.
// Inputs stay f32 and are not rounded: only the weights lose anything (at most scale / 2 each).
//
// A panel of 64 outputs (ops.h) holds its codes k-major, then its scales:
//   int8 codes [K][64]      f32 scales [groups][64], groups = ceil(K / 128)
// so that one step of k reads one cache line of codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/ops.h"

namespace mc::ops {

inline constexpr size_t kInt8Group = 128;

constexpr size_t int8_groups(size_t k) {
  return (k + kInt8Group - 1) / kInt8Group;
}
constexpr size_t int8_panel_bytes(size_t k) {
  return kPanelColumns * (k + int8_groups(k) * sizeof(float));
}
inline const float* int8_scales(const std::byte* panel, size_t k) {
  return reinterpret_cast<const float*>(panel + kPanelColumns * k);
}

struct Int8Kernels {
  const char* name;
  bool (*supported)();
  /// y[row, 0..columns) = x[row, 0..k) . panel; columns <= 64. f32 sums within a group, then over groups,
  /// each one chain: a row's bits do not depend on the other rows. Strides in elements.
  void (*panel)(const float* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, float* y,
                size_t y_stride, size_t columns);
  /// code * scale, as an f32 panel [k][64].
  void (*widen)(const std::byte* panel, size_t k, float* out);
};

/// Every variant of this build, ref first. For tests.
std::span<const Int8Kernels* const> int8_variants();
/// The table for kernels of ops.h: ref for ref, avx2 for avx2, avx512 for the other two.
const Int8Kernels& int8_kernels(const Kernels& kernels);

/// Quantises rows [0, rows) of f32 weights [rows, k], rows <= 64, into one panel whose bytes are zero.
/// Rounds to nearest; a group with a value that is not finite gets the scale NaN.
void quantise_panel(const float* weights, size_t rows, size_t k, std::byte* panel);

}  // namespace mc::ops

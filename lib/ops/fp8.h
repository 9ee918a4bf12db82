// Weights that stay the E4M3 codes of a checkpoint: one byte each, with the scales they were made with. Half of
// bf16's bytes to read for every token of a decode step, and nothing is lost by packing them: a code is exact in
// bf16 and f32, and in panel() its scale multiplies a sum of products rather than each weight.
//
// Prefill's tiles by oneDNN (Matmul::prefill: K of at least 512 and a multiple of its padding, whole panels) have no
// scales: they are made of the widened weights, where each code * scale is rounded, to f32 or, with weights of dtype
// bf16 on kernels whose tiles are bf16 (avx512bf16), to bf16, as in a matrix that was widened while loading.
//
// A panel of 64 outputs (ops.h) holds its codes in pairs of neighbouring k, as bf16 panels do, then its scales,
// one for each output and each `group` of inputs (the whole of K where a scale covers a tensor or a row):
//   codes [ceil(K / 2)][64][2]      f32 scales [ceil(K / group)][64]
// `group` is even or at least K, so that no pair has two scales. A group that holds the code of NaN has the scale
// NaN: every sum over it is NaN as it must be, and no kernel needs to look for the code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/e4m3.h"
#include "ops/ops.h"

namespace mc::ops {

/// The value of every code (base/e4m3.h).
const std::array<float, 256>& e4m3_values();

constexpr size_t fp8_pairs(size_t k) {
  return (k + 1) / 2;
}
constexpr size_t fp8_groups(size_t k, size_t group) {
  return (k + group - 1) / group;
}
constexpr size_t fp8_panel_bytes(size_t k, size_t group) {
  return kPanelColumns * (2 * fp8_pairs(k) + fp8_groups(k, group) * sizeof(float));
}
inline const float* fp8_scales(const std::byte* panel, size_t k) {
  return reinterpret_cast<const float*>(panel + kPanelColumns * 2 * fp8_pairs(k));
}
/// The code of (output, input) in its panel.
inline uint8_t fp8_code(const std::byte* panel, size_t column, size_t i) {
  return static_cast<uint8_t>(panel[(i / 2 * kPanelColumns + column) * 2 + i % 2]);
}

struct Fp8Kernels {
  const char* name;
  bool (*supported)();
  /// y[row, 0..columns) = x[row, 0..k) . panel; columns <= 64. A row's bits do not depend on the other rows. ref sums
  /// code * scale * x in double and rounds once; the others sum codes * x in f32 within a group, then groups times
  /// their scales, each one chain. Strides in elements.
  void (*panel)(const float* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, size_t group, float* y,
                size_t y_stride, size_t columns);
  /// code * scale, rounded once: as an f32 panel [k][64].
  void (*widen)(const std::byte* panel, size_t k, size_t group, float* out);
  /// The same rounded to bf16 again: as a bf16 panel [ceil(k / 2)][64][2]; k is even.
  void (*widen_bf16)(const std::byte* panel, size_t k, size_t group, bf16_t* out);
};

/// Every variant of this build, ref first. For tests.
std::span<const Fp8Kernels* const> fp8_variants();
/// The table for kernels of ops.h: ref for ref, avx2 for avx2, avx512 for the other two.
const Fp8Kernels& fp8_kernels(const Kernels& kernels);

/// Lays codes.size() <= 64 rows of codes [k] (any alignment) out as a panel; scales[row][g] is scale g of that row, of
/// fp8_groups(k, group). Bytes of rows beyond are zero.
void fp8_fill_panel(std::span<const uint8_t* const> codes, std::span<const float> scales, size_t k, size_t group,
                    std::byte* panel);

}  // namespace mc::ops

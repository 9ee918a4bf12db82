// Weights as whole numbers of 8 or 4 bits, with a scale and a minimum for each output and group of 32 inputs:
//   weight = scale * code + minimum        code 0 .. 255 or 0 .. 15; scale and minimum are f16
// Every block type of a GGUF file has this form, so most are kept exactly (quant_pack.h has the table).
//
// Inputs become whole numbers of 16 bits with a scale for each group of 32, so that the sums over a group are exact
// integers: an input loses at most 1 / 65024 of its group's largest one, less than bf16 loses of each input. A group's
// sum enters the output as
//   y += x_scale * scale * (codes . x_codes) + minimum * (x_scale * sum of x_codes)
//
// A panel of 64 outputs (ops.h) is a list of groups; a group of 32 inputs is
//   8 bits  codes [8 steps of 4 inputs][64 outputs][4 inputs]      f16 scale [64]  f16 minimum [64]
//   4 bits  codes [4 pairs of steps][64 outputs][4 inputs]         the same; the low half of a byte belongs to the
//                                                                  first step of the pair
// so that 32 bits of a register hold four inputs of one output, as the integer dot products of x86 need them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/ops.h"

namespace mc::ops {

inline constexpr size_t kQuantGroup = 32;

/// The form of weights: the number of bits of a code.
enum class QuantForm : uint8_t { four = 4, eight = 8 };

constexpr size_t quant_groups(size_t k) {
  return (k + kQuantGroup - 1) / kQuantGroup;
}
/// Codes of one group of a panel, without the factors.
constexpr size_t quant_code_bytes(QuantForm bits) {
  return kPanelColumns * kQuantGroup * static_cast<size_t>(bits) / 8;
}
constexpr size_t quant_group_bytes(QuantForm bits) {
  return quant_code_bytes(bits) + 2 * kPanelColumns * sizeof(uint16_t);
}
constexpr size_t quant_panel_bytes(size_t k, QuantForm bits) {
  return quant_groups(k) * quant_group_bytes(bits);
}
/// One row of inputs as whole numbers: 16-bit codes in the order of the variant, then scale and scaled sum of each
/// group.
constexpr size_t quant_row_bytes(size_t k) {
  return quant_groups(k) * (kQuantGroup * sizeof(int16_t) + 2 * sizeof(float));
}

struct QuantKernels {
  const char* name;
  bool (*supported)();
  /// Turns x [k] into whole numbers. A group with a value that is not finite gets the scale NaN.
  void (*quantise_row)(const float* x, size_t k, std::byte* out);
  /// y[row, 0..columns) = x[row] . panel; columns <= 64. x is what quantise_row() of the same variant made, x_stride in
  /// bytes, y_stride in elements. Groups are added in order, in f32: a row's bits do not depend on the other rows.
  void (*panel)(const std::byte* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, QuantForm bits,
                float* y, size_t y_stride, size_t columns);
};

/// Every variant of this build, ref first. For tests.
std::span<const QuantKernels* const> quant_variants();
/// The table for kernels of ops.h: ref for ref, avx2 for avx2, else the fastest that this CPU supports.
const QuantKernels& quant_kernels(const Kernels& kernels);

}  // namespace mc::ops

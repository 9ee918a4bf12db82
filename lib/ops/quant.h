// Weights as whole numbers of 8, 6 or 4 bits, with a scale and a minimum for each output and group of 32 inputs:
//   weight = scale * code + minimum        code 0 .. 255, 63 or 15
// Every block type of a GGUF file has this form, so most are kept exactly (quant_pack.h has the table).
//
// Inputs become whole numbers of 16 or 14 bits, so that sums over them are exact integers.
// In four and eight each group of 32 inputs has a scale, and an input loses at most 1 / 65024 of its group's largest
// one. A group enters the output as
//   y += x_scale * scale * (codes . x_codes), then y += minimum * (x_scale * sum of x_codes)
// In the forms of K types 256 inputs share a scale and have 14 bits: an input loses at most 1 / 16382 of the largest of
// the 256. (llama.cpp rounds them to 8 bits: 1 / 254.) Then the whole-number scales s of a run of groups (two, four or
// all eight) can be multiplied in before the sum leaves the integers. A block of eight groups enters the output as
//   y += x_scale * d * (sum over the run of s * (codes . x_codes)) for each run, then
//   y += minimum * (x_scale * sum of x_codes) for each group
//
// A panel of 64 outputs (ops.h) is a list of groups. A group of 32 inputs has its codes first:
//   8 bits  [8 steps of 4 inputs][64 outputs][4 inputs]
//   4 bits  [4 pairs of steps][64 outputs][4 inputs]    the low half of a byte belongs to the first step of the pair
//   6 bits  the low four bits as above, then the high two: [2 halves of 4 steps][64 outputs][4 inputs], of which step i
//           of the half has bits 2 i and 2 i + 1
// so that 32 bits of a register hold four inputs of one output, as the integer dot products of x86 need them. Then come
// the factors of the group, and in the forms of K types also factors of a block of eight groups, in front of them:
//   four, eight     scale, minimum          f16 scale [64]   f16 minimum [64]
//   four_k, five_k  d * s, -least * m       u8 s [64]        u8 m [64]             block: f16 d [64]   f16 least [64]
//   six_k           d * s, -32 * d * s      i8 s [64]        i8 s [64]             block: f16 d [64]
// six_k has one s for the first 16 inputs of a group and one for the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace mc::ops {

inline constexpr size_t kQuantGroup = 32;
/// Grows with each change of the kernels that changes bits of a product. KV that was computed with another version is
/// not reused.
inline constexpr uint32_t kQuantVersion = 1;

enum class QuantForm : uint8_t { four, eight, four_k, five_k, six_k };

/// Bits of a code in memory.
constexpr size_t quant_code_bits(QuantForm form) {
  return form == QuantForm::eight ? 8 : form == QuantForm::four || form == QuantForm::four_k ? 4 : 6;
}
/// Groups that share factors of their block; 1: the form has none.
constexpr size_t quant_block_groups(QuantForm form) {
  return form == QuantForm::four || form == QuantForm::eight ? 1 : 8;
}
/// The largest magnitude of an input's code. 32512 leaves room for two signed bytes: code = 256 * high + low. In the
/// forms of K types, see quant_run_groups().
constexpr int quant_input_max(QuantForm form) {
  return quant_block_groups(form) == 1 ? 32512 : 8191;
}
/// Groups of a block whose sum of scale * code * input fits 32 bits: scale * code is at most 63 * 15, 63 * 31 or
/// 128 * 32.
constexpr size_t quant_run_groups(QuantForm form) {
  return form == QuantForm::four_k ? 8 : form == QuantForm::five_k ? 4 : form == QuantForm::six_k ? 2 : 1;
}
constexpr size_t quant_groups(size_t k) {
  return (k + kQuantGroup - 1) / kQuantGroup;
}
/// Codes of one group of a panel, without the factors.
constexpr size_t quant_code_bytes(QuantForm form) {
  return kPanelColumns * kQuantGroup * quant_code_bits(form) / 8;
}
constexpr size_t quant_group_bytes(QuantForm form) {
  return quant_code_bytes(form) + 2 * kPanelColumns * (quant_block_groups(form) == 1 ? sizeof(uint16_t) : 1);
}
/// Factors in front of a block's groups.
constexpr size_t quant_head_bytes(QuantForm form) {
  if (quant_block_groups(form) == 1) return 0;
  return (form == QuantForm::six_k ? 1 : 2) * kPanelColumns * sizeof(uint16_t);
}
constexpr size_t quant_block_bytes(QuantForm form) {
  return quant_head_bytes(form) + quant_block_groups(form) * quant_group_bytes(form);
}
/// Where group `group` begins in a panel.
constexpr size_t quant_group_offset(QuantForm form, size_t group) {
  const size_t groups = quant_block_groups(form);
  return group / groups * quant_block_bytes(form) + quant_head_bytes(form) + group % groups * quant_group_bytes(form);
}
/// `k` inputs are whole blocks in the forms of K types.
constexpr size_t quant_panel_bytes(size_t k, QuantForm form) {
  const size_t groups = quant_block_groups(form);
  return (quant_groups(k) + groups - 1) / groups * quant_block_bytes(form);
}

/// The numbers of a row of inputs for one group: scale (of its block in the forms of K types), scaled sum of the codes,
/// and the plain sums of the first 16 and of the last 16 codes.
struct QuantInputGroup {
  float scale, sum;
  int32_t half_sum[2];
};
/// Rows of inputs as whole numbers: 16-bit codes, and a QuantInputGroup for each group, in the order of the variant,
/// which may lay four rows together.
constexpr size_t kQuantRows = 4;
constexpr size_t quant_row_bytes(size_t k) {
  return quant_groups(k) * (kQuantGroup * sizeof(int16_t) + sizeof(QuantInputGroup));
}
constexpr size_t quant_rows_bytes(size_t rows, size_t k) {
  return (rows + kQuantRows - 1) / kQuantRows * kQuantRows * quant_row_bytes(k);
}

/// Weights in place: rows of Q8_0 blocks, each an f16 scale and 32 signed bytes, as they lie in a file. Their products
/// have the bits of the rows packed in form eight.
struct QuantKernels {
  const char* name;
  bool (*supported)();
  size_t rows_min;              // from so many rows on it is the fastest for panels
  size_t lines_min, lines_max;  // likewise for weights in place, and the most rows that lines() takes
  /// Turns x [k] into whole numbers for weights of a form, as row `row` of `rows`. A value that is not finite makes its
  /// scale NaN.
  void (*quantise_row)(const float* x, size_t k, QuantForm form, size_t row, std::byte* rows);
  /// y[row, 0..columns) = x[row] . panel; columns <= 64. x is what quantise_row() of the same variant made for the same
  /// form, from a row on whose index is a multiple of kQuantRows. y_stride is in elements. Groups are added in order,
  /// in f32: a row's bits do not depend on the other rows.
  void (*panel)(const std::byte* x, size_t rows, const std::byte* panel, size_t k, QuantForm form, float* y,
                size_t y_stride, size_t columns);
  /// y[row, 0..columns) = x[row] . lines, with the bits of panel() of the same variant. lines has 64 rows in place;
  /// those from `columns` on are read, but not used. k is a multiple of 32.
  void (*lines)(const std::byte* x, size_t rows, const std::byte* const* lines, size_t k, float* y, size_t y_stride,
                size_t columns);
};

/// Every variant of this build, ref first. For tests.
std::span<const QuantKernels* const> quant_variants();
/// The tables for kernels of ops.h: ref for ref, avx2 for avx2, else all that this CPU supports. The constructor asks
/// the CPU, so a choice is made once. All tables of a choice give the same bits.
class QuantChoice {
 public:
  explicit QuantChoice(const Kernels& kernels);
  /// The fastest table for so many rows, with weights in panels or in place.
  const QuantKernels& table(size_t rows, bool in_place = false) const;

 private:
  std::vector<const QuantKernels*> tables_;  // later ones are faster from their smallest number of rows on
};

}  // namespace mc::ops

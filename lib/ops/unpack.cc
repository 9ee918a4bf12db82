// See unpack.h. Loops over the 64 lanes of a panel have constant bounds, so that compilers make vector instructions of
// them. The value of a whole number, scale * code + minimum, is rounded once in f32 as it is in double: scale * code
// has at most 24 bits in every form.
#include "ops/unpack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/assert.h"
#include "ops/quant_pack.h"

namespace mc::ops {
namespace {

constexpr size_t kInputs = 4;                           // of a step, side by side for one output
constexpr size_t kStepCodes = kPanelColumns * kInputs;  // of all outputs
constexpr size_t kGroupSteps = kQuantGroup / kInputs;

/// f32_to_bf16() without a branch.
inline bf16_t to_narrow(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
  return static_cast<bf16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

uint8_t whole_of(std::byte value) {
  return static_cast<uint8_t>(value);
}

float f16_at(const std::byte* at, size_t index) {
  uint16_t half;
  std::memcpy(&half, at + index * sizeof half, sizeof half);
  return f16_to_f32(half);
}

/// The factors of a block or of half a group, by output.
struct Lanes {
  float scale[kPanelColumns], minimum[kPanelColumns];
};
/// The same, once for each input of a step.
struct StepLanes {
  float scale[kStepCodes], minimum[kStepCodes];
  explicit StepLanes(const Lanes& lanes) {
    for (size_t i = 0; i < kStepCodes; ++i) scale[i] = lanes.scale[i / kInputs];
    for (size_t i = 0; i < kStepCodes; ++i) minimum[i] = lanes.minimum[i / kInputs];
  }
};

/// Factors of the block of groups that `group` begins; six_k has no minimum.
Lanes read_head(const std::byte* head, QuantForm form) {
  Lanes out{};
  for (size_t lane = 0; lane < kPanelColumns; ++lane) {
    out.scale[lane] = f16_at(head, lane);
    if (form != QuantForm::six_k) out.minimum[lane] = f16_at(head, kPanelColumns + lane);
  }
  return out;
}

Lanes read_factors(const std::byte* factors, QuantForm form, const Lanes& head, size_t half) {
  if (quant_block_groups(form) == 1) return read_head(factors, form);
  Lanes out;
  for (size_t lane = 0; lane < kPanelColumns; ++lane) {
    const std::byte first = factors[lane], second = factors[kPanelColumns + lane];
    if (form == QuantForm::six_k) {
      out.scale[lane] = head.scale[lane] * static_cast<float>(static_cast<int8_t>(half == 0 ? first : second));
      out.minimum[lane] = -32 * out.scale[lane];
    } else {
      out.scale[lane] = head.scale[lane] * whole_of(first);
      out.minimum[lane] = -head.minimum[lane] * whole_of(second);
    }
  }
  return out;
}

/// The codes of one step of a group.
void read_codes(const std::byte* group, QuantForm form, size_t step, uint8_t* out) {
  if (form == QuantForm::eight) {
    std::memcpy(out, group + step * kStepCodes, kStepCodes);
    return;
  }
  const std::byte* low = group + step / 2 * kStepCodes;
  const auto low_shift = static_cast<int>(step % 2 * 4), high_shift = static_cast<int>(step % 4 * 2);
  for (size_t i = 0; i < kStepCodes; ++i) out[i] = static_cast<uint8_t>(whole_of(low[i]) >> low_shift & 15);
  if (quant_code_bits(form) == 4) return;
  const std::byte* high = group + (4 + step / 4) * kStepCodes;
  for (size_t i = 0; i < kStepCodes; ++i)
    out[i] = static_cast<uint8_t>(out[i] | (whole_of(high[i]) >> high_shift & 3) << 4);
}

/// A group of 32 inputs, of which the row has `inputs`.
void unpack_group(const std::byte* group, QuantForm form, const Lanes& head, size_t rows, size_t columns, size_t inputs,
                  bf16_t* out) {
  const size_t halves = form == QuantForm::six_k ? 2 : 1;
  uint8_t codes[kStepCodes];
  bf16_t weights[kStepCodes];
  for (size_t half = 0; half < halves; ++half) {
    const StepLanes lanes(read_factors(group + quant_code_bytes(form), form, head, half));
    for (size_t step = half * kGroupSteps / halves; step < (half + 1) * kGroupSteps / halves; ++step) {
      const size_t first = step * kInputs;
      if (first >= inputs) return;
      read_codes(group, form, step, codes);
      for (size_t i = 0; i < kStepCodes; ++i)
        weights[i] = to_narrow(lanes.scale[i] * static_cast<float>(codes[i]) + lanes.minimum[i]);
      const size_t count = std::min(kInputs, inputs - first);
      for (size_t row = 0; row < rows; ++row)
        std::memcpy(out + row * columns + first, weights + row * kInputs, count * sizeof(bf16_t));
    }
  }
}

void unpack_quantised(const std::byte* panel, QuantForm form, size_t rows, size_t columns, bf16_t* out) {
  Lanes head{};
  for (size_t group = 0; group < quant_groups(columns); ++group) {
    const size_t block = quant_block_groups(form), first = group * kQuantGroup;
    if (block > 1 && group % block == 0) head = read_head(panel + group / block * quant_block_bytes(form), form);
    unpack_group(panel + quant_group_offset(form, group), form, head, rows, columns,
                 std::min(kQuantGroup, columns - first), out + first);
  }
}

/// A row of Q8_0 blocks.
void unpack_line(const std::byte* line, size_t columns, bf16_t* out) {
  const gguf::TypeInfo& type = gguf::info(gguf::Type::q8_0);
  for (size_t first = 0; first < columns; first += kQuantGroup, line += type.bytes) {
    int8_t codes[kQuantGroup];
    std::memcpy(codes, line + sizeof(uint16_t), sizeof codes);
    const float read = f16_at(line, 0), scale = std::abs(read) <= kLineScaleMax ? read : std::nanf("");
    constexpr float kNoMinimum = 0;  // makes -0 of a code of 0 and a negative scale 0
    for (size_t i = 0; i < kQuantGroup; ++i)
      out[first + i] = to_narrow(scale * static_cast<float>(codes[i]) + kNoMinimum);
  }
}

/// Pairs of neighbouring inputs, [columns / 2][64], as rows: a transposition of 32-bit words.
void unpack_pairs(const bf16_t* panel, size_t rows, size_t columns, bf16_t* out) {
  constexpr size_t kPairs = 16;  // written together: a line of the cache
  const size_t pairs = columns / 2;
  for (size_t first = 0; first < pairs; first += kPairs) {
    const size_t count = std::min(kPairs, pairs - first);
    for (size_t row = 0; row < rows; ++row) {
      uint32_t words[kPairs];
      for (size_t i = 0; i < count; ++i)
        std::memcpy(&words[i], panel + ((first + i) * kPanelColumns + row) * 2, sizeof words[i]);
      std::memcpy(out + row * columns + first * 2, words, count * sizeof words[0]);
    }
  }
  if (columns % 2 == 0) return;
  for (size_t row = 0; row < rows; ++row) out[row * columns + columns - 1] = panel[(pairs * kPanelColumns + row) * 2];
}

}  // namespace

size_t unpacked_rows(const PackedMatrix& matrix, size_t index) {
  MC_ASSERT_LT(index, matrix.panels());
  return std::min(kPanelColumns, matrix.rows() - index * kPanelColumns);
}

void UnpackScratch::fit(const PackedMatrix& matrix) {
  const size_t columns = matrix.columns();
  if (matrix.is_fp8()) pairs_.resize(std::max(pairs_.size(), columns * kPanelColumns));
  row_.resize(std::max(row_.size(), columns));
}

void unpack_panel(const PackedMatrix& matrix, size_t index, UnpackScratch& scratch, bf16_t* out) {
  const size_t rows = unpacked_rows(matrix, index), columns = matrix.columns();
  if (matrix.is_in_place()) {
    const auto lines = matrix.lines(index);
    for (size_t row = 0; row < rows; ++row) unpack_line(lines[row], columns, out + row * columns);
    return;
  }
  const std::byte* panel = matrix.panel(index);
  if (matrix.quantised()) return unpack_quantised(panel, *matrix.quantised(), rows, columns, out);
  if (matrix.is_fp8() && columns % 2 == 0) {
    static const Fp8Kernels& kKernels = fp8_kernels(best_kernels());
    MC_ASSERT_LE(columns * kPanelColumns, scratch.pairs_.size());
    kKernels.widen_bf16(panel, columns, matrix.fp8_group(), scratch.pairs_.data());
    return unpack_pairs(scratch.pairs_.data(), rows, columns, out);
  }
  if (!matrix.is_fp8() && matrix.dtype() == Dtype::bf16)
    return unpack_pairs(reinterpret_cast<const bf16_t*>(panel), rows, columns, out);
  MC_ASSERT_LE(columns, scratch.row_.size());
  float* const wide = scratch.row_.data();
  for (size_t row = 0; row < rows; ++row) {
    matrix.row(index * kPanelColumns + row, wide);
    std::transform(wide, wide + columns, out + row * columns, to_narrow);
  }
}

void unpack_codes(const PackedMatrix& matrix, size_t index, uint8_t* out) {
  MC_ASSERT(matrix.is_fp8());
  const size_t rows = unpacked_rows(matrix, index), columns = matrix.columns();
  const std::byte* panel = matrix.panel(index);
  for (size_t row = 0; row < rows; ++row, out += columns) {
    const std::byte* pairs = panel + 2 * row;
    for (size_t pair = 0; pair < columns / 2; ++pair) std::memcpy(out + 2 * pair, pairs + pair * 2 * kPanelColumns, 2);
    if (columns % 2 != 0) out[columns - 1] = fp8_code(panel, row, columns - 1);
  }
}

float scale_of(const PackedMatrix& matrix, size_t row, size_t column) {
  MC_ASSERT(matrix.is_fp8() && row < matrix.rows() && column < matrix.columns());
  const float* scales = fp8_scales(matrix.panel(row / kPanelColumns), matrix.columns());
  return scales[column / matrix.fp8_group() * kPanelColumns + row % kPanelColumns];
}

}  // namespace mc::ops

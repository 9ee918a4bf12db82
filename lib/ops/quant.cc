// The table of quant.h, the definition of its kernels, and the filling of panels.
#include "ops/quant.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "ops/matmul.h"
#include "ops/quant_pack.h"
#include "ops/quant_variants.h"

namespace mc::ops {
namespace {

constexpr float kF16Max = 65504;

/// The place of an input's code inside its group: bytes from the group's start, and whether it is the high half.
struct CodePlace {
  size_t byte;
  bool high;
};
CodePlace code_place(QuantForm bits, size_t lane, size_t in_group) {
  const size_t step = in_group / 4, input = in_group % 4;
  if (bits == QuantForm::eight) return {(step * kPanelColumns + lane) * 4 + input, false};
  return {(step / 2 * kPanelColumns + lane) * 4 + input, step % 2 == 1};
}

int code_at(const std::byte* panel, QuantForm bits, size_t lane, size_t column) {
  const std::byte* group = panel + column / kQuantGroup * quant_group_bytes(bits);
  const CodePlace place = code_place(bits, lane, column % kQuantGroup);
  const int byte = static_cast<uint8_t>(group[place.byte]);
  return bits == QuantForm::eight ? byte : place.high ? byte >> 4 : byte & 15;
}

float factor_at(const std::byte* panel, QuantForm bits, size_t lane, size_t group, bool minimum) {
  uint16_t half;
  const std::byte* factors = panel + group * quant_group_bytes(bits) + quant_code_bytes(bits);
  std::memcpy(&half, factors + (minimum * kPanelColumns + lane) * sizeof half, sizeof half);
  return f16_to_f32(half);
}

void quantise_row_ref(const float* x, size_t k, std::byte* out) {
  const size_t groups = quant_groups(k);
  auto* codes = reinterpret_cast<int16_t*>(out);
  auto* factors = reinterpret_cast<float*>(out + groups * kQuantGroup * sizeof(int16_t));
  for (size_t g = 0; g < groups; ++g) {
    const size_t first = g * kQuantGroup, last = std::min(k, first + kQuantGroup);
    float largest = 0;
    for (size_t i = first; i < last; ++i) largest = std::isfinite(x[i]) ? std::max(largest, std::abs(x[i])) : INFINITY;
    const InputScale scale = input_scale(largest);
    int32_t sum = 0;
    for (size_t i = first; i < first + kQuantGroup; ++i) {
      codes[i] = i < last && scale.inverse > 0 ? static_cast<int16_t>(std::lrintf(x[i] * scale.inverse)) : int16_t{0};
      sum += codes[i];
    }
    factors[2 * g] = scale.scale;
    factors[2 * g + 1] = scale.scale * static_cast<float>(sum);
  }
}

void panel_ref(const std::byte* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, QuantForm bits,
               float* y, size_t y_stride, size_t columns) {
  const size_t groups = quant_groups(k);
  for (size_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    const auto* codes = reinterpret_cast<const int16_t*>(x);
    const auto* factors = reinterpret_cast<const float*>(x + groups * kQuantGroup * sizeof(int16_t));
    for (size_t column = 0; column < columns; ++column) {
      double sum = 0;
      for (size_t g = 0; g < groups; ++g) {
        int64_t dot = 0;
        for (size_t i = g * kQuantGroup; i < (g + 1) * kQuantGroup; ++i)
          dot += int64_t{codes[i]} * code_at(panel, bits, column, i);
        sum += double{factors[2 * g]} * factor_at(panel, bits, column, g, false) * static_cast<double>(dot) +
               double{factors[2 * g + 1]} * factor_at(panel, bits, column, g, true);
      }
      y[column] = static_cast<float>(sum);
    }
  }
}

constexpr QuantKernels kQuantRef = {"ref", [] { return true; }, quantise_row_ref, panel_ref};

constexpr const QuantKernels* kQuantVariants[] = {
    &kQuantRef,
#if defined(__x86_64__)
    &kQuantAvx2,
    &kQuantAvx512Vnni,
#endif
};

uint16_t f16_down(float value) {
  const uint16_t half = f32_to_f16(value);
  if (!(f16_to_f32(half) > value)) return half;
  // The next value below: towards zero from a positive one, away from zero from a negative one or zero.
  return half == 0 ? uint16_t{0x8001} : static_cast<uint16_t>(half >> 15 ? half + 1 : half - 1);
}
uint16_t f16_up(float value) {
  return f16_down(-value) ^ 0x8000;
}

/// Writes codes, scale and minimum of one group of one lane.
class GroupWriter {
 public:
  GroupWriter(std::byte* panel, QuantForm bits, size_t lane, size_t group)
      : group_(panel + group * quant_group_bytes(bits)), bits_(bits), lane_(lane) {}
  void code(size_t in_group, int code) {
    MC_ASSERT(code >= 0 && code < 1 << static_cast<int>(bits_));
    const CodePlace place = code_place(bits_, lane_, in_group);
    group_[place.byte] |= static_cast<std::byte>(place.high ? code << 4 : code);
  }
  void factors(uint16_t scale, uint16_t minimum) {
    std::byte* at = group_ + quant_code_bytes(bits_);
    std::memcpy(at + lane_ * sizeof scale, &scale, sizeof scale);
    std::memcpy(at + (kPanelColumns + lane_) * sizeof minimum, &minimum, sizeof minimum);
  }

 private:
  std::byte* group_;
  QuantForm bits_;
  size_t lane_;
};

constexpr uint16_t kF16NaN = 0x7e00;

/// Codes from 0 for the codes of a kept type, which begin at this number.
int first_code(gguf::Type type) {
  switch (type) {
    case gguf::Type::q4_0: return -8;
    case gguf::Type::q5_0: return -16;
    case gguf::Type::q8_0:
    case gguf::Type::iq4_nl: return -128;  // a power of two, so that scale * first_code is an f16
    default: return 0;
  }
}

}  // namespace

std::span<const QuantKernels* const> quant_variants() {
  return kQuantVariants;
}

const QuantKernels& quant_kernels(const Kernels& kernels) {
  const std::string_view name(kernels.name);
  const QuantKernels* best = &kQuantRef;
  for (const QuantKernels* variant : kQuantVariants)
    if ((name == variant->name || name.starts_with("avx512")) && variant->supported()) best = variant;
  return *best;
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float size = std::abs(value);
  if (std::isnan(value)) return sign | kF16NaN;
  if (size >= 65520) return sign | 0x7c00;
  if (size < 0x1p-14f) return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::lrintf(size * 0x1p24f)));
  const uint32_t exponent = (bits >> 23 & 255) - 112, mantissa = bits & 0x7fffff;
  const uint32_t joined = exponent << 23 | mantissa;  // a carry out of the mantissa raises the exponent
  return static_cast<uint16_t>(sign | (joined + 0xfff + (joined >> 13 & 1)) >> 13);
}

float quant_weight(const std::byte* panel, QuantForm bits, size_t lane, size_t column) {
  const size_t group = column / kQuantGroup;
  return static_cast<float>(double{factor_at(panel, bits, lane, group, false)} * code_at(panel, bits, lane, column) +
                            factor_at(panel, bits, lane, group, true));
}

std::optional<QuantForm> kept_form(gguf::Type type) {
  switch (type) {
    case gguf::Type::f32:
    case gguf::Type::f16:
    case gguf::Type::bf16: return std::nullopt;
    case gguf::Type::q4_0:
    case gguf::Type::q4_1:
    case gguf::Type::q4_k: return QuantForm::four;
    case gguf::Type::q5_0:
    case gguf::Type::q5_1:
    case gguf::Type::q8_0:
    case gguf::Type::q2_k:
    case gguf::Type::q3_k:
    case gguf::Type::q5_k:
    case gguf::Type::q6_k:
    case gguf::Type::iq4_nl: return QuantForm::eight;
  }
  return std::nullopt;
}

void pack_floats(const float* row, size_t k, QuantForm bits, size_t lane, std::byte* panel) {
  MC_ASSERT_LT(lane, kPanelColumns);
  const int levels = (1 << static_cast<int>(bits)) - 1;
  for (size_t first = 0; first < k; first += kQuantGroup) {
    const size_t last = std::min(k, first + kQuantGroup);
    GroupWriter group(panel, bits, lane, first / kQuantGroup);
    float least = row[first], largest = row[first];
    bool held = true;
    for (size_t i = first; i < last; ++i) {
      least = std::min(least, row[i]);
      largest = std::max(largest, row[i]);
      held &= std::abs(row[i]) <= kF16Max;  // false for NaN
    }
    if (!held) {
      group.factors(kF16NaN, 0);
      continue;
    }
    const uint16_t minimum = f16_down(least);
    const float base = f16_to_f32(minimum);
    const uint16_t scale = f16_up((largest - base) / static_cast<float>(levels));
    group.factors(scale, minimum);
    const float step = f16_to_f32(scale);
    if (step == 0) continue;
    for (size_t i = first; i < last; ++i)
      group.code(i - first, std::clamp(static_cast<int>(std::lrint((double{row[i]} - base) / step)), 0, levels));
  }
}

void pack_blocks(gguf::Type type, const std::byte* row, size_t k, QuantForm bits, size_t lane, std::byte* panel) {
  const gguf::TypeInfo& info = gguf::info(type);
  const auto kept = kept_form(type);
  const bool narrow_groups = type == gguf::Type::q2_k || type == gguf::Type::q3_k || type == gguf::Type::q6_k;
  if (!kept || narrow_groups || *kept > bits) {
    std::vector<float> wide(k);
    gguf::widen_row(type, row, k, wide.data());
    return pack_floats(wide.data(), k, bits, lane, panel);
  }
  MC_ASSERT_EQ(k % info.weights, 0u);
  const int base = first_code(type);
  gguf::Block block;
  for (size_t first = 0; first < k; first += info.weights, row += info.bytes) {
    info.unpack(row, block);
    MC_ASSERT_EQ(block.group, kQuantGroup);
    for (size_t g = 0; g < info.weights / kQuantGroup; ++g) {
      GroupWriter group(panel, bits, lane, first / kQuantGroup + g);
      const uint16_t scale = f32_to_f16(static_cast<float>(block.scale[g]));
      const uint16_t minimum = f32_to_f16(static_cast<float>(block.minimum[g] + block.scale[g] * base));
      const bool held = std::isfinite(f16_to_f32(scale)) && std::isfinite(f16_to_f32(minimum));
      group.factors(held ? scale : kF16NaN, held ? minimum : 0);
      for (size_t i = 0; i < kQuantGroup; ++i) group.code(i, block.codes[g * kQuantGroup + i] - base);
    }
  }
}

}  // namespace mc::ops

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

constexpr size_t kLineBytes = kPanelColumns * 4;  // four codes of 8 bits, or eight of 4, of each output

int byte_of(const std::byte* at) {
  return static_cast<uint8_t>(*at);
}

int code_at(const std::byte* panel, QuantForm form, size_t lane, size_t column) {
  const std::byte* group = panel + quant_group_offset(form, column / kQuantGroup);
  const size_t in_group = column % kQuantGroup, step = in_group / 4, place = lane * 4 + in_group % 4;
  if (form == QuantForm::eight) return byte_of(group + step * kLineBytes + place);
  const int low = byte_of(group + step / 2 * kLineBytes + place) >> (step % 2 * 4) & 15;
  if (quant_code_bits(form) == 4) return low;
  return low | (byte_of(group + (4 + step / 4) * kLineBytes + place) >> (step % 4 * 2) & 3) << 4;
}

double half_at(const std::byte* at, size_t index) {
  uint16_t half;
  std::memcpy(&half, at + index * sizeof half, sizeof half);
  return f16_to_f32(half);
}

struct Factors {
  double scale, minimum;
};

/// The factors of half a group: of 16 inputs.
Factors factors_at(const std::byte* panel, QuantForm form, size_t lane, size_t group, size_t half) {
  const std::byte* factors = panel + quant_group_offset(form, group) + quant_code_bytes(form);
  if (quant_block_groups(form) == 1) return {half_at(factors, lane), half_at(factors, kPanelColumns + lane)};
  const std::byte* head = panel + group / quant_block_groups(form) * quant_block_bytes(form);
  const double d = half_at(head, lane);
  if (form == QuantForm::six_k) {
    const double scale = d * static_cast<int8_t>(factors[half * kPanelColumns + lane]);
    return {scale, -32 * scale};
  }
  return {d * byte_of(factors + lane), -half_at(head, kPanelColumns + lane) * byte_of(factors + kPanelColumns + lane)};
}

/// The scale of inputs [first, last).
InputScale input_scale_ref(const float* x, size_t first, size_t last, QuantForm form) {
  float largest = 0;
  for (size_t i = first; i < last; ++i) largest = std::isfinite(x[i]) ? std::max(largest, std::abs(x[i])) : INFINITY;
  return input_scale(largest, form);
}

void quantise_row_ref(const float* x, size_t k, QuantForm form, size_t row, std::byte* rows) {
  std::byte* out = rows + row * quant_row_bytes(k);
  const size_t groups = quant_groups(k), shared = quant_block_groups(form) * kQuantGroup;
  auto* codes = reinterpret_cast<int16_t*>(out);
  auto* group = reinterpret_cast<QuantInputGroup*>(out + groups * kQuantGroup * sizeof(int16_t));
  for (size_t g = 0; g < groups; ++g, ++group) {
    const size_t first = g * kQuantGroup, last = std::min(k, first + kQuantGroup), block = first / shared * shared;
    const InputScale scale = input_scale_ref(x, block, std::min(k, block + shared), form);
    group->half_sum[0] = group->half_sum[1] = 0;
    for (size_t i = first; i < first + kQuantGroup; ++i) {
      codes[i] = i < last && scale.inverse > 0 ? static_cast<int16_t>(std::lrintf(x[i] * scale.inverse)) : int16_t{0};
      group->half_sum[(i - first) / 16] += codes[i];
    }
    group->scale = scale.scale;
    group->sum = scale.scale * static_cast<float>(group->half_sum[0] + group->half_sum[1]);
  }
}

void panel_ref(const std::byte* x, size_t rows, const std::byte* panel, size_t k, QuantForm form, float* y,
               size_t y_stride, size_t columns) {
  const size_t groups = quant_groups(k);
  for (size_t row = 0; row < rows; ++row, x += quant_row_bytes(k), y += y_stride) {
    const auto* codes = reinterpret_cast<const int16_t*>(x);
    const auto* inputs = reinterpret_cast<const QuantInputGroup*>(x + groups * kQuantGroup * sizeof(int16_t));
    for (size_t column = 0; column < columns; ++column) {
      double sum = 0;
      for (size_t g = 0; g < groups; ++g)
        for (size_t half = 0; half < 2; ++half) {
          int64_t dot = 0;
          for (size_t i = g * kQuantGroup + 16 * half; i < g * kQuantGroup + 16 * (half + 1); ++i)
            dot += int64_t{codes[i]} * code_at(panel, form, column, i);
          const Factors factors = factors_at(panel, form, column, g, half);
          sum += double{inputs[g].scale} *
                 (factors.scale * static_cast<double>(dot) + factors.minimum * inputs[g].half_sum[half]);
        }
      y[column] = static_cast<float>(sum);
    }
  }
}

void lines_ref(const std::byte* x, size_t rows, const std::byte* const* lines, size_t k, float* y, size_t y_stride,
               size_t columns) {
  std::vector<std::byte> panel(quant_panel_bytes(k, QuantForm::eight));
  for (size_t lane = 0; lane < columns; ++lane)
    pack_blocks(gguf::Type::q8_0, lines[lane], k, QuantForm::eight, lane, panel.data());
  panel_ref(x, rows, panel.data(), k, QuantForm::eight, y, y_stride, columns);
}

constexpr QuantKernels kQuantRef = {.name = "ref",
                                    .supported = [] { return true; },
                                    .rows_min = 1,
                                    .lines_min = 1,
                                    .lines_max = std::numeric_limits<size_t>::max(),
                                    .quantise_row = quantise_row_ref,
                                    .panel = panel_ref,
                                    .lines = lines_ref};

constexpr const QuantKernels* kQuantVariants[] = {
    &kQuantRef,
#if defined(__x86_64__)
    &kQuantAvx2,
    &kQuantAvx512Vnni,
    &kQuantAvx512VnniTiles,
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

/// Writes the codes and factors of one lane.
class LaneWriter {
 public:
  LaneWriter(std::byte* panel, QuantForm form, size_t lane) : panel_(panel), form_(form), lane_(lane) {}

  /// The codes of a group, each less `base`.
  void codes(size_t group, const int16_t* codes, int base) {
    std::byte* out = panel_ + quant_group_offset(form_, group) + lane_ * 4;
    uint8_t narrow[kQuantGroup];
    uint32_t words[kQuantGroup / 4], seen = 0;  // words: of a step each
    for (size_t i = 0; i < kQuantGroup; ++i) {
      const auto code = static_cast<uint32_t>(codes[i] - base);
      seen |= code;
      narrow[i] = static_cast<uint8_t>(code);
    }
    MC_ASSERT_EQ(seen >> quant_code_bits(form_), 0u);
    std::memcpy(words, narrow, sizeof words);
    if (form_ == QuantForm::eight) {
      for (size_t step = 0; step < 8; ++step) put(out + step * kLineBytes, words[step]);
      return;
    }
    constexpr uint32_t kLow = 0x0f0f0f0f, kPair = 0x03030303;
    for (size_t pair = 0; pair < 4; ++pair)
      put(out + pair * kLineBytes, (words[2 * pair] & kLow) | (words[2 * pair + 1] & kLow) << 4);
    if (quant_code_bits(form_) == 4) return;
    for (size_t half = 0; half < 2; ++half) {
      uint32_t tops = 0;
      for (size_t i = 0; i < 4; ++i) tops |= (words[4 * half + i] >> 4 & kPair) << 2 * i;
      put(out + (4 + half) * kLineBytes, tops);
    }
  }
  /// The factors of a group: f16 in four and eight, whole numbers in the K forms.
  template <class T>
  void factors(size_t group, T first, T second) {
    MC_ASSERT_EQ(sizeof(T), quant_block_groups(form_) == 1 ? 2u : 1u);
    std::byte* at = panel_ + quant_group_offset(form_, group) + quant_code_bytes(form_);
    put(at + lane_ * sizeof(T), first);
    put(at + (kPanelColumns + lane_) * sizeof(T), second);
  }
  /// The factors of the block that begins with group `group`.
  void head(size_t group, uint16_t d, uint16_t least) {
    std::byte* at = panel_ + group / quant_block_groups(form_) * quant_block_bytes(form_);
    put(at + lane_ * sizeof d, d);
    if (form_ != QuantForm::six_k) put(at + (kPanelColumns + lane_) * sizeof least, least);
  }

 private:
  template <class T>
  static void put(std::byte* at, T value) {
    std::memcpy(at, &value, sizeof value);
  }

  std::byte* panel_;
  QuantForm form_;
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

QuantChoice::QuantChoice(const Kernels& kernels) : tables_{&kQuantRef} {
  const std::string_view name(kernels.name);
  for (const QuantKernels* variant : kQuantVariants)
    if ((name == variant->name || name.starts_with("avx512")) && variant->supported()) tables_.push_back(variant);
}

const QuantKernels& QuantChoice::table(size_t rows, bool in_place) const {
  const auto usable = [&](const QuantKernels* of) { return rows >= (in_place ? of->lines_min : of->rows_min); };
  const auto last = std::find_if(tables_.rbegin(), tables_.rend(), usable);
  return last == tables_.rend() ? kQuantRef : **last;
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

float quant_weight(const std::byte* panel, QuantForm form, size_t lane, size_t column) {
  const Factors factors = factors_at(panel, form, lane, column / kQuantGroup, column % kQuantGroup / 16);
  return static_cast<float>(factors.scale * code_at(panel, form, lane, column) + factors.minimum);
}

std::optional<QuantForm> kept_form(gguf::Type type) {
  switch (type) {
    case gguf::Type::f32:
    case gguf::Type::f16:
    case gguf::Type::bf16: return std::nullopt;
    case gguf::Type::q4_0:
    case gguf::Type::q4_1: return QuantForm::four;
    case gguf::Type::q5_0:
    case gguf::Type::q5_1:
    case gguf::Type::q8_0:
    case gguf::Type::q2_k:
    case gguf::Type::q3_k:
    case gguf::Type::iq4_nl: return QuantForm::eight;
    case gguf::Type::q4_k: return QuantForm::four_k;
    case gguf::Type::q5_k: return QuantForm::five_k;
    case gguf::Type::q6_k: return QuantForm::six_k;
  }
  return std::nullopt;
}

QuantForm common_form(QuantForm left, QuantForm right) {
  if (left == right) return left;
  const bool four = quant_code_bits(left) == 4 && quant_code_bits(right) == 4;
  return four ? QuantForm::four : QuantForm::eight;
}

void pack_floats(const float* row, size_t k, QuantForm form, size_t lane, std::byte* panel) {
  MC_ASSERT_LT(lane, kPanelColumns);
  MC_ASSERT_EQ(quant_block_groups(form), 1u);
  const int levels = (1 << quant_code_bits(form)) - 1;
  LaneWriter writer(panel, form, lane);
  for (size_t first = 0; first < k; first += kQuantGroup) {
    const size_t last = std::min(k, first + kQuantGroup), group = first / kQuantGroup;
    float least = row[first], largest = row[first];
    bool held = true;
    for (size_t i = first; i < last; ++i) {
      least = std::min(least, row[i]);
      largest = std::max(largest, row[i]);
      held &= std::abs(row[i]) <= kF16Max;  // false for NaN
    }
    if (!held) {
      writer.factors<uint16_t>(group, kF16NaN, 0);
      continue;
    }
    const uint16_t minimum = f16_down(least);
    const float base = f16_to_f32(minimum);
    const uint16_t scale = f16_up((largest - base) / static_cast<float>(levels));
    writer.factors(group, scale, minimum);
    const float step = f16_to_f32(scale);
    if (step == 0) continue;
    int16_t codes[kQuantGroup] = {};
    for (size_t i = first; i < last; ++i) {
      const auto code = static_cast<int>(std::lrint((double{row[i]} - base) / step));
      codes[i - first] = static_cast<int16_t>(std::clamp(code, 0, levels));
    }
    writer.codes(group, codes, 0);
  }
}

namespace {

/// Puts the blocks of a K type into its own form.
void pack_k(const gguf::TypeInfo& info, const std::byte* row, size_t k, QuantForm form, LaneWriter writer) {
  const int base = form == QuantForm::six_k ? -32 : 0;
  gguf::Block block;
  for (size_t first = 0; first < k; first += info.weights, row += info.bytes) {
    info.unpack(row, block);
    const size_t group = first / kQuantGroup;
    const bool held = std::isfinite(block.d) && std::isfinite(block.least);
    const auto half = [&](double value) { return held ? f32_to_f16(static_cast<float>(value)) : kF16NaN; };
    writer.head(group, half(block.d), half(block.least));
    for (size_t g = 0; g < info.weights / kQuantGroup; ++g) {
      writer.codes(group + g, block.codes.data() + g * kQuantGroup, base);
      if (form == QuantForm::six_k)
        writer.factors(group + g, static_cast<int8_t>(block.steps[2 * g]), static_cast<int8_t>(block.steps[2 * g + 1]));
      else
        writer.factors(group + g, static_cast<uint8_t>(block.steps[g]), static_cast<uint8_t>(block.least_steps[g]));
    }
  }
}

}  // namespace

void pack_blocks(gguf::Type type, const std::byte* row, size_t k, QuantForm form, size_t lane, std::byte* panel) {
  const gguf::TypeInfo& info = gguf::info(type);
  const auto kept = kept_form(type);
  const bool narrow_groups = type == gguf::Type::q2_k || type == gguf::Type::q3_k || type == gguf::Type::q6_k;
  LaneWriter writer(panel, form, lane);
  if (quant_block_groups(form) > 1) {
    MC_ASSERT(kept == form);
    return pack_k(info, row, k, form, writer);
  }
  if (!kept || narrow_groups || quant_code_bits(*kept) > quant_code_bits(form)) {
    std::vector<float> wide(k);
    gguf::widen_row(type, row, k, wide.data());
    return pack_floats(wide.data(), k, form, lane, panel);
  }
  MC_ASSERT_EQ(k % info.weights, 0u);
  const int base = first_code(type);
  gguf::Block block;
  for (size_t first = 0; first < k; first += info.weights, row += info.bytes) {
    info.unpack(row, block);
    MC_ASSERT_EQ(block.group, kQuantGroup);
    for (size_t g = 0; g < info.weights / kQuantGroup; ++g) {
      const uint16_t scale = f32_to_f16(static_cast<float>(block.scale[g]));
      const uint16_t minimum = f32_to_f16(static_cast<float>(block.minimum[g] + block.scale[g] * base));
      const bool held = std::isfinite(f16_to_f32(scale)) && std::isfinite(f16_to_f32(minimum));
      const size_t group = first / kQuantGroup + g;
      writer.factors(group, held ? scale : kF16NaN, held ? minimum : uint16_t{0});
      writer.codes(group, block.codes.data() + g * kQuantGroup, base);
    }
  }
}

std::span<const PackKernels* const> pack_variants() {
#if defined(__x86_64__)
  static constexpr const PackKernels* kVariants[] = {&kPackAvx2, &kPackAvx512};
  return kVariants;
#else
  return {};
#endif
}

void pack_rows(gguf::Type type, std::span<const std::byte* const> rows, size_t k, QuantForm form, size_t lane,
               std::byte* panel) {
  MC_ASSERT_LE(lane + rows.size(), kPanelColumns);
  size_t packed = 0;
  for (auto at = pack_variants().rbegin(); at != pack_variants().rend() && kept_form(type) == form; ++at) {
    const PackKernels& variant = **at;
    const PackRows pack = variant.supported() ? variant.rows_of(type) : nullptr;
    const size_t count = (rows.size() - packed) / variant.lanes * variant.lanes;
    if (!pack || count == 0) continue;
    MC_ASSERT_EQ(k % gguf::info(type).weights, 0u);
    pack(rows.data() + packed, count, k, lane + packed, panel);
    packed += count;
  }
  for (; packed < rows.size(); ++packed) pack_blocks(type, rows[packed], k, form, lane + packed, panel);
}

}  // namespace mc::ops

// The table of fp8.h, the definition of its kernels, and the packing of codes.
#include "ops/fp8.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "ops/fp8_variants.h"

namespace mc::ops {
namespace {

float scale_of(const std::byte* panel, size_t k, size_t group, size_t column, size_t i) {
  return fp8_scales(panel, k)[i / group * kPanelColumns + column];
}

void panel_ref(const float* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, size_t group, float* y,
               size_t y_stride, size_t columns) {
  const std::array<float, 256>& values = e4m3_values();
  std::vector<double> weights(k), scales(k);  // of a column
  for (size_t column = 0; column < columns; ++column) {
    for (size_t i = 0; i < k; ++i) {
      weights[i] = static_cast<double>(values[fp8_code(panel, column, i)]);
      scales[i] = static_cast<double>(scale_of(panel, k, group, column, i));
    }
    for (size_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (size_t i = 0; i < k; ++i) sum += static_cast<double>(x[row * x_stride + i]) * weights[i] * scales[i];
      y[row * y_stride + column] = static_cast<float>(sum);
    }
  }
}

void widen_ref(const std::byte* panel, size_t k, size_t group, float* out) {
  for (size_t i = 0; i < k; ++i)
    for (size_t column = 0; column < kPanelColumns; ++column)
      out[i * kPanelColumns + column] = e4m3_to_f32(fp8_code(panel, column, i)) * scale_of(panel, k, group, column, i);
}

void widen_bf16_ref(const std::byte* panel, size_t k, size_t group, bf16_t* out) {
  for (size_t i = 0; i < k; ++i)
    for (size_t column = 0; column < kPanelColumns; ++column)
      out[(i / 2 * kPanelColumns + column) * 2 + i % 2] =
          f32_to_bf16(e4m3_to_f32(fp8_code(panel, column, i)) * scale_of(panel, k, group, column, i));
}

constexpr Fp8Kernels kFp8Ref = {"ref", [] { return true; }, panel_ref, widen_ref, widen_bf16_ref};

constexpr const Fp8Kernels* kFp8Variants[] = {
    &kFp8Ref,
#if defined(__x86_64__)
    &kFp8Avx2,
    &kFp8Avx512,
#endif
};

}  // namespace

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> values{};
    for (size_t code = 0; code < values.size(); ++code) values[code] = e4m3_to_f32(static_cast<uint8_t>(code));
    return values;
  }();
  return kValues;
}

std::span<const Fp8Kernels* const> fp8_variants() {
  return kFp8Variants;
}

const Fp8Kernels& fp8_kernels(const Kernels& kernels) {
  const std::string_view name(kernels.name);
  for (const Fp8Kernels* variant : kFp8Variants)
    if (name == variant->name || (name.starts_with("avx512") && std::string_view(variant->name) == "avx512"))
      return variant->supported() ? *variant : kFp8Ref;
  return kFp8Ref;
}

void fp8_fill_panel(std::span<const uint8_t* const> codes, std::span<const float> scales, size_t k, size_t group,
                    std::byte* panel) {
  MC_ASSERT(codes.size() <= kPanelColumns && (group % 2 == 0 || group >= k));
  const size_t groups = fp8_groups(k, group);
  MC_ASSERT_EQ(scales.size(), codes.size() * groups);
  std::memset(panel, 0, fp8_panel_bytes(k, group));
  auto* out = reinterpret_cast<float*>(panel + kPanelColumns * 2 * fp8_pairs(k));
  for (size_t row = 0; row < codes.size(); ++row)
    for (size_t g = 0; g < groups; ++g) {
      const uint8_t* const first = codes[row] + g * group;
      const bool nan = std::any_of(first, codes[row] + std::min(k, (g + 1) * group),
                                   [](uint8_t code) { return (code & 0x7f) == 0x7f; });
      out[g * kPanelColumns + row] = nan ? std::numeric_limits<float>::quiet_NaN() : scales[row * groups + g];
    }
  for (size_t i = 0; i + 1 < k; i += 2)
    for (size_t row = 0; row < codes.size(); ++row) std::memcpy(panel + i * kPanelColumns + 2 * row, codes[row] + i, 2);
  if (k % 2 != 0)
    for (size_t row = 0; row < codes.size(); ++row)
      panel[(k - 1) * kPanelColumns + 2 * row] = static_cast<std::byte>(codes[row][k - 1]);
}

}  // namespace mc::ops

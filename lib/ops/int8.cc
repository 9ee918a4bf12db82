// The table of int8.h, the definition of its kernels, and quantising.
#include "ops/int8.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "ops/int8_variants.h"

namespace mc::ops {
namespace {

int8_t code(const std::byte* panel, size_t i, size_t column) {
  return static_cast<int8_t>(panel[i * kPanelColumns + column]);
}

void panel_ref(const float* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, float* y,
               size_t y_stride, size_t columns) {
  const float* scales = int8_scales(panel, k);
  for (size_t row = 0; row < rows; ++row)
    for (size_t column = 0; column < columns; ++column) {
      double sum = 0;
      for (size_t i = 0; i < k; ++i)
        sum += static_cast<double>(x[row * x_stride + i]) * code(panel, i, column) *
               scales[i / kInt8Group * kPanelColumns + column];
      y[row * y_stride + column] = static_cast<float>(sum);
    }
}

void widen_ref(const std::byte* panel, size_t k, float* out) {
  const float* scales = int8_scales(panel, k);
  for (size_t i = 0; i < k; ++i)
    for (size_t column = 0; column < kPanelColumns; ++column)
      out[i * kPanelColumns + column] =
          static_cast<float>(code(panel, i, column)) * scales[i / kInt8Group * kPanelColumns + column];
}

constexpr Int8Kernels kInt8Ref = {"ref", [] { return true; }, panel_ref, widen_ref};

constexpr const Int8Kernels* kInt8Variants[] = {
    &kInt8Ref,
#if defined(__x86_64__)
    &kInt8Avx2,
    &kInt8Avx512,
#endif
};

}  // namespace

std::span<const Int8Kernels* const> int8_variants() {
  return kInt8Variants;
}

const Int8Kernels& int8_kernels(const Kernels& kernels) {
  const std::string_view name(kernels.name);
  for (const Int8Kernels* variant : kInt8Variants)
    if (name == variant->name || (name.starts_with("avx512") && std::string_view(variant->name) == "avx512"))
      return *variant;
  return kInt8Ref;
}

void quantise_panel(const float* weights, size_t rows, size_t k, std::byte* panel) {
  MC_ASSERT(rows <= kPanelColumns);
  auto* scales = reinterpret_cast<float*>(panel + kPanelColumns * k);
  std::vector<int8_t> codes(rows * k);  // row-major; a panel is its transposition
  for (size_t row = 0; row < rows; ++row)
    for (size_t first = 0; first < k; first += kInt8Group) {
      const float* source = weights + row * k;
      const size_t last = std::min(k, first + kInt8Group);
      float largest = 0;
      bool finite = true;
      for (size_t i = first; i < last; ++i) {
        largest = std::max(largest, std::abs(source[i]));
        finite &= std::isfinite(source[i]);
      }
      float& scale = scales[first / kInt8Group * kPanelColumns + row];
      scale = finite ? largest / 127 : std::numeric_limits<float>::quiet_NaN();
      if (!finite || scale < std::numeric_limits<float>::min()) continue;  // codes stay 0; denormal scales lose little
      const float inverse = 1 / scale;
      for (size_t i = first; i < last; ++i)
        codes[row * k + i] = static_cast<int8_t>(std::clamp(std::lrintf(source[i] * inverse), -127L, 127L));
    }
  for (size_t i = 0; i < k; ++i)
    for (size_t row = 0; row < rows; ++row) panel[i * kPanelColumns + row] = static_cast<std::byte>(codes[row * k + i]);
}

}  // namespace mc::ops

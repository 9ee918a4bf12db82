// The definition of every operator: scalar, written as the formula, accumulated in double. Never
// optimised; the property tests hold the other variants against it.
#include <cmath>

#include "ops/variants.h"

namespace mc::ops {
namespace {

void rms_norm(const float* x, const float* weight, float epsilon, size_t n, float* out) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(n) + epsilon);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i] * scale * weight[i]);
}

void silu_mul(const float* gate, const float* up, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) {
    const double g = gate[i];
    out[i] = static_cast<float>(g / (1.0 + std::exp(-g)) * up[i]);
  }
}

void add(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] += x[i];
}

void rope(float* x, const float* cosine, const float* sine, size_t half) {
  for (size_t i = 0; i < half; ++i) {
    const double low = x[i], high = x[i + half];
    x[i] = static_cast<float>(low * cosine[i] - high * sine[i]);
    x[i + half] = static_cast<float>(high * cosine[i] + low * sine[i]);
  }
}

void to_bf16(const float* x, size_t n, bf16_t* out) {
  for (size_t i = 0; i < n; ++i) out[i] = f32_to_bf16(x[i]);
}

void from_bf16(const bf16_t* x, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = bf16_to_f32(x[i]);
}

void widen_pairs(const bf16_t* panel, size_t pairs, float* out) {
  for (size_t i = 0; i < pairs; ++i)
    for (size_t half = 0; half < 2; ++half)
      out[(i / kPanelColumns * 2 + half) * kPanelColumns + i % kPanelColumns] = bf16_to_f32(panel[2 * i + half]);
}

float max(const float* x, size_t n) {
  float best = x[0];
  for (size_t i = 1; i < n; ++i)
    if (x[i] > best || std::isnan(best)) best = x[i];
  return best;
}

double sum_exp(const float* x, float shift, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i)
    if (const float d = x[i] - shift; !(d < -87.0f)) sum += std::exp(static_cast<double>(d));
  return sum;
}

void panel_f32(const float* x, size_t x_stride, size_t rows, const float* panel, size_t k, float* y, size_t y_stride,
               size_t columns) {
  for (size_t row = 0; row < rows; ++row)
    for (size_t column = 0; column < columns; ++column) {
      double sum = 0;
      for (size_t i = 0; i < k; ++i)
        sum += static_cast<double>(x[row * x_stride + i]) * panel[i * kPanelColumns + column];
      y[row * y_stride + column] = static_cast<float>(sum);
    }
}

void panel_bf16(const bf16_t* x, size_t x_stride, size_t rows, const bf16_t* panel, size_t k, float* y, size_t y_stride,
                size_t columns) {
  for (size_t row = 0; row < rows; ++row)
    for (size_t column = 0; column < columns; ++column) {
      double sum = 0;
      for (size_t i = 0; i < k; ++i)
        sum += static_cast<double>(bf16_to_f32(x[row * x_stride + i])) *
               bf16_to_f32(panel[(i / 2 * kPanelColumns + column) * 2 + i % 2]);
      y[row * y_stride + column] = static_cast<float>(sum);
    }
}

}  // namespace

const Kernels kRef = {"ref",   [] { return true; }, TileGemm::panels, rms_norm, silu_mul, add,       rope,
                      to_bf16, from_bf16,           widen_pairs,      max,      sum_exp,  panel_f32, panel_bf16,
                      nullptr};

}  // namespace mc::ops

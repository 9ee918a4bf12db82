// The kernels of quant.h over a vector type V; each file that includes this gets its own copy, compiled for its
// instruction set. V is `lanes` outputs wide and has
//   ireg, freg             registers of 32-bit whole numbers and of floats
//   Dots                   the sums of one row and one register of outputs within a group: start, add(w, x), total
//   load(bytes)            codes of 8 bits; low(codes), high(codes): the halves of codes of 4 bits
//   load_f16, store, store_some, set1, zero, mul, fma, to_float(ireg)
//   vectors(rows)          how many registers of outputs go with so many rows, so that all sums fit the registers
//   quantise_group         32 inputs to whole numbers, in the order that Dots wants
#pragma once

#include "ops/quant.h"

namespace mc::ops {
namespace {  // NOLINT: every including file must own its copy

/// The prefetch distance of weights. The bytes behind a panel are those of the next one. With three rows or more the
/// core is the limit, and prefetches would only take its load slots.
constexpr size_t kQuantAheadBytes = 4096;
constexpr size_t kInputStepBytes = 4 * sizeof(int16_t);  // four inputs

template <class V>
void quant_rows(const float* x, size_t k, std::byte* out) {
  const size_t groups = quant_groups(k);
  auto* factors = reinterpret_cast<float*>(out + groups * kQuantGroup * sizeof(int16_t));
  for (size_t g = 0; g < groups; ++g, out += kQuantGroup * sizeof(int16_t)) {
    float padded[kQuantGroup] = {};
    const float* source = x + g * kQuantGroup;
    if ((g + 1) * kQuantGroup > k) {
      for (size_t i = g * kQuantGroup; i < k; ++i) padded[i % kQuantGroup] = x[i];
      source = padded;
    }
    V::quantise_group(source, out, factors + 2 * g);
  }
}

template <class V, QuantForm kBits, int kRows>
void quant_strip(const std::byte* x, size_t x_stride, const std::byte* panel, size_t k, float* y, size_t y_stride,
                 size_t columns) {
  constexpr int kVectors = V::vectors(kRows);
  constexpr size_t kRegisterBytes = V::lanes * 4;  // four codes of each output
  const size_t groups = quant_groups(k);
  for (size_t column = 0; column < columns; column += kVectors * V::lanes) {
    typename V::freg total[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) total[r][v] = V::zero();
    const std::byte* group = panel + column * 4;
    for (size_t g = 0; g < groups; ++g, group += quant_group_bytes(kBits)) {
      typename V::Dots dots[kRows][kVectors];
      const std::byte* inputs = x + g * kQuantGroup * sizeof(int16_t);
      constexpr size_t kSteps = kBits == QuantForm::eight ? 8 : 4;
      for (size_t step = 0; step < kSteps; ++step) {
        const std::byte* codes = group + step * kPanelColumns * 4;
        typename V::ireg w[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          if constexpr (kRows <= 2) __builtin_prefetch(codes + v * kRegisterBytes + kQuantAheadBytes);
          w[v] = V::load(codes + v * kRegisterBytes);
        }
        if constexpr (kBits == QuantForm::eight) {
          for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVectors; ++v) dots[r][v].add(w[v], inputs + r * x_stride + step * kInputStepBytes);
        } else {
          typename V::ireg half[kVectors];
          for (int v = 0; v < kVectors; ++v) half[v] = V::low(w[v]);
          for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVectors; ++v)
              dots[r][v].add(half[v], inputs + r * x_stride + 2 * step * kInputStepBytes);
          for (int v = 0; v < kVectors; ++v) half[v] = V::high(w[v]);
          for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVectors; ++v)
              dots[r][v].add(half[v], inputs + r * x_stride + (2 * step + 1) * kInputStepBytes);
        }
      }
      const std::byte* halves = group - column * 4 + quant_code_bytes(kBits) + column * sizeof(uint16_t);
      for (int v = 0; v < kVectors; ++v) {
        const auto scale = V::load_f16(halves + v * V::lanes * sizeof(uint16_t));
        const auto minimum = V::load_f16(halves + (kPanelColumns + v * V::lanes) * sizeof(uint16_t));
        for (int r = 0; r < kRows; ++r) {
          const auto* factors =
              reinterpret_cast<const float*>(x + r * x_stride + groups * kQuantGroup * sizeof(int16_t)) + 2 * g;
          const auto scaled = V::mul(scale, V::set1(factors[0]));
          total[r][v] = V::fma(V::to_float(dots[r][v].total()), scaled, total[r][v]);
          total[r][v] = V::fma(minimum, V::set1(factors[1]), total[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) {
        const size_t at = column + v * V::lanes;
        if (at >= columns) break;
        if (columns - at < V::lanes)
          V::store_some(y + r * y_stride + at, columns - at, total[r][v]);
        else
          V::store(y + r * y_stride + at, total[r][v]);
      }
  }
}

/// Strips of at most four rows, of equal size as nearly as can be.
template <class V, QuantForm kBits>
void quant_strips(const std::byte* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, float* y,
                  size_t y_stride, size_t columns) {
  while (rows > 0) {
    const size_t strips = (rows + 3) / 4;
    const size_t now = (rows + strips - 1) / strips;
    switch (now) {
      case 4: quant_strip<V, kBits, 4>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 3: quant_strip<V, kBits, 3>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 2: quant_strip<V, kBits, 2>(x, x_stride, panel, k, y, y_stride, columns); break;
      default: quant_strip<V, kBits, 1>(x, x_stride, panel, k, y, y_stride, columns); break;
    }
    x += now * x_stride;
    y += now * y_stride;
    rows -= now;
  }
}

template <class V>
void quant_panel(const std::byte* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, QuantForm bits,
                 float* y, size_t y_stride, size_t columns) {
  if (bits == QuantForm::eight)
    quant_strips<V, QuantForm::eight>(x, x_stride, rows, panel, k, y, y_stride, columns);
  else
    quant_strips<V, QuantForm::four>(x, x_stride, rows, panel, k, y, y_stride, columns);
}

}  // namespace
}  // namespace mc::ops

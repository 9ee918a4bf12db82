// The kernels of quant.h over a vector type V; each file that includes this gets its own copy, compiled for its
// instruction set. V is `lanes` outputs wide and has
//   ireg, freg             registers of 32-bit whole numbers and of floats
//   Dots                   the sums of one row and one register of outputs within a group: start(sum), add(w, x), total
//   load(bytes)            codes of 8 bits; low(codes), high(codes): the halves of codes of 4 bits
//   joined<i>(low, pairs)  codes of 6 bits: their low four, and the bits 2 i and 2 i + 1 of a byte as the high two
//   load_f16, load_u8, load_i8, store, store_some, set1, zero, mul, fma, to_float(ireg)
//   vectors(rows)          how many registers of outputs go with so many rows, so that all sums fit the registers
//   quantise_group         32 inputs to whole numbers, in the order that Dots wants, and their QuantInputGroup
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
  auto* group = reinterpret_cast<QuantInputGroup*>(out + groups * kQuantGroup * sizeof(int16_t));
  for (size_t g = 0; g < groups; ++g, out += kQuantGroup * sizeof(int16_t)) {
    float padded[kQuantGroup] = {};
    const float* source = x + g * kQuantGroup;
    if ((g + 1) * kQuantGroup > k) {
      for (size_t i = g * kQuantGroup; i < k; ++i) padded[i % kQuantGroup] = x[i];
      source = padded;
    }
    V::quantise_group(source, out, group[g]);
  }
}

/// One register of codes of each of kVectors registers of outputs, times the inputs of their step.
template <class V, int kRows, int kVectors>
inline void add_step(typename V::Dots (&dots)[kRows][kVectors], const typename V::ireg (&codes)[kVectors],
                     const std::byte* x, size_t x_stride) {
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) dots[r][v].add(codes[v], x + r * x_stride);
}

/// The products of half a group: 16 inputs, four steps. `codes` are those of the group from the first output on, x the
/// inputs of the group.
template <class V, QuantForm kForm, int kRows, int kVectors>
inline void add_half(typename V::Dots (&dots)[kRows][kVectors], const std::byte* codes, size_t half, const std::byte* x,
                     size_t x_stride) {
  constexpr size_t kLineBytes = kPanelColumns * 4, kRegisterBytes = V::lanes * 4;
  const auto load = [&](const std::byte* at, typename V::ireg(&to)[kVectors]) {
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kRows <= 2) __builtin_prefetch(at + v * kRegisterBytes + kQuantAheadBytes);
      to[v] = V::load(at + v * kRegisterBytes);
    }
  };
  x += 4 * half * kInputStepBytes;
  typename V::ireg line[kVectors], now[kVectors];
  if constexpr (quant_code_bits(kForm) == 8) {
    for (size_t step = 0; step < 4; ++step) {
      load(codes + (4 * half + step) * kLineBytes, line);
      add_step<V, kRows, kVectors>(dots, line, x + step * kInputStepBytes, x_stride);
    }
  } else if constexpr (quant_code_bits(kForm) == 4) {
    for (size_t pair = 0; pair < 2; ++pair) {
      load(codes + (2 * half + pair) * kLineBytes, line);
      for (int v = 0; v < kVectors; ++v) now[v] = V::low(line[v]);
      add_step<V, kRows, kVectors>(dots, now, x + 2 * pair * kInputStepBytes, x_stride);
      for (int v = 0; v < kVectors; ++v) now[v] = V::high(line[v]);
      add_step<V, kRows, kVectors>(dots, now, x + (2 * pair + 1) * kInputStepBytes, x_stride);
    }
  } else {
    typename V::ireg top[kVectors];
    load(codes + (4 + half) * kLineBytes, top);
    load(codes + 2 * half * kLineBytes, line);
    for (int v = 0; v < kVectors; ++v) now[v] = V::template joined<0>(V::low(line[v]), top[v]);
    add_step<V, kRows, kVectors>(dots, now, x, x_stride);
    for (int v = 0; v < kVectors; ++v) now[v] = V::template joined<1>(V::high(line[v]), top[v]);
    add_step<V, kRows, kVectors>(dots, now, x + kInputStepBytes, x_stride);
    load(codes + (2 * half + 1) * kLineBytes, line);
    for (int v = 0; v < kVectors; ++v) now[v] = V::template joined<2>(V::low(line[v]), top[v]);
    add_step<V, kRows, kVectors>(dots, now, x + 2 * kInputStepBytes, x_stride);
    for (int v = 0; v < kVectors; ++v) now[v] = V::template joined<3>(V::high(line[v]), top[v]);
    add_step<V, kRows, kVectors>(dots, now, x + 3 * kInputStepBytes, x_stride);
  }
}

/// Scale and minimum of a group for one register of outputs, of which `column` is the first.
template <class V, QuantForm kForm>
inline void load_factors(const std::byte* group, const std::byte* head, size_t column, typename V::freg& scale,
                         typename V::freg& minimum) {
  const std::byte* factors = group + quant_code_bytes(kForm);
  if constexpr (quant_block_groups(kForm) == 1) {
    scale = V::load_f16(factors + column * sizeof(uint16_t));
    minimum = V::load_f16(factors + (kPanelColumns + column) * sizeof(uint16_t));
  } else {
    scale = V::mul(V::load_f16(head + column * sizeof(uint16_t)), V::load_u8(factors + column));
    const auto least = V::mul(V::load_f16(head + (kPanelColumns + column) * sizeof(uint16_t)), V::set1(-1.0f));
    minimum = V::mul(least, V::load_u8(factors + kPanelColumns + column));
  }
}

/// Adds one group to the outputs from `column` on.
template <class V, QuantForm kForm, int kRows, int kVectors>
inline void add_group(typename V::freg (&total)[kRows][kVectors], const std::byte* group, const std::byte* head,
                      size_t column, const std::byte* x, const std::byte* x_groups, size_t x_stride) {
  const std::byte* codes = group + column * 4;
  const auto input = [&](int row) { return reinterpret_cast<const QuantInputGroup*>(x_groups + row * x_stride); };
  if constexpr (kForm == QuantForm::six_k) {
    for (size_t half = 0; half < 2; ++half) {
      typename V::Dots dots[kRows][kVectors];
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) dots[r][v].start(-32 * input(r)->half_sum[half]);
      add_half<V, kForm, kRows, kVectors>(dots, codes, half, x, x_stride);
      for (int v = 0; v < kVectors; ++v) {
        const size_t at = column + v * V::lanes;
        const auto scale = V::mul(V::load_f16(head + at * sizeof(uint16_t)),
                                  V::load_i8(group + quant_code_bytes(kForm) + half * kPanelColumns + at));
        for (int r = 0; r < kRows; ++r)
          total[r][v] = V::fma(V::to_float(dots[r][v].total()), V::mul(scale, V::set1(input(r)->scale)), total[r][v]);
      }
    }
  } else {
    typename V::Dots dots[kRows][kVectors];
    for (size_t half = 0; half < 2; ++half) add_half<V, kForm, kRows, kVectors>(dots, codes, half, x, x_stride);
    for (int v = 0; v < kVectors; ++v) {
      typename V::freg scale, minimum;
      load_factors<V, kForm>(group, head, column + v * V::lanes, scale, minimum);
      for (int r = 0; r < kRows; ++r) {
        const auto scaled = V::mul(scale, V::set1(input(r)->scale));
        total[r][v] = V::fma(V::to_float(dots[r][v].total()), scaled, total[r][v]);
        total[r][v] = V::fma(minimum, V::set1(input(r)->sum), total[r][v]);
      }
    }
  }
}

template <class V, QuantForm kForm, int kRows>
void quant_strip(const std::byte* x, size_t x_stride, const std::byte* panel, size_t k, float* y, size_t y_stride,
                 size_t columns) {
  constexpr int kVectors = V::vectors(kRows);
  const size_t groups = quant_groups(k), in_block = quant_block_groups(kForm);
  const std::byte* x_groups = x + groups * kQuantGroup * sizeof(int16_t);
  for (size_t column = 0; column < columns; column += kVectors * V::lanes) {
    typename V::freg total[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) total[r][v] = V::zero();
    for (size_t g = 0; g < groups; ++g) {
      const std::byte* head = panel + g / in_block * quant_block_bytes(kForm);
      add_group<V, kForm, kRows, kVectors>(total, panel + quant_group_offset(kForm, g), head, column,
                                           x + g * kQuantGroup * sizeof(int16_t),
                                           x_groups + g * sizeof(QuantInputGroup), x_stride);
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
template <class V, QuantForm kForm>
void quant_strips(const std::byte* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, float* y,
                  size_t y_stride, size_t columns) {
  while (rows > 0) {
    const size_t strips = (rows + 3) / 4;
    const size_t now = (rows + strips - 1) / strips;
    switch (now) {
      case 4: quant_strip<V, kForm, 4>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 3: quant_strip<V, kForm, 3>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 2: quant_strip<V, kForm, 2>(x, x_stride, panel, k, y, y_stride, columns); break;
      default: quant_strip<V, kForm, 1>(x, x_stride, panel, k, y, y_stride, columns); break;
    }
    x += now * x_stride;
    y += now * y_stride;
    rows -= now;
  }
}

template <class V>
void quant_panel(const std::byte* x, size_t x_stride, size_t rows, const std::byte* panel, size_t k, QuantForm form,
                 float* y, size_t y_stride, size_t columns) {
  switch (form) {
    case QuantForm::four: return quant_strips<V, QuantForm::four>(x, x_stride, rows, panel, k, y, y_stride, columns);
    case QuantForm::eight: return quant_strips<V, QuantForm::eight>(x, x_stride, rows, panel, k, y, y_stride, columns);
    case QuantForm::four_k:
      return quant_strips<V, QuantForm::four_k>(x, x_stride, rows, panel, k, y, y_stride, columns);
    case QuantForm::five_k:
      return quant_strips<V, QuantForm::five_k>(x, x_stride, rows, panel, k, y, y_stride, columns);
    case QuantForm::six_k: return quant_strips<V, QuantForm::six_k>(x, x_stride, rows, panel, k, y, y_stride, columns);
  }
}

}  // namespace
}  // namespace mc::ops

// The kernels of quant.h over a vector type V; each file that includes this gets its own copy, compiled for its
// instruction set. V is `lanes` outputs wide and has
//   ireg, freg             registers of 32-bit whole numbers and of floats
//   Dots                   the sums of one row and one register of outputs within a group: start(sum), add(w, x), total
//   load(bytes)            codes of 8 bits; low(codes), high(codes): the halves of codes of 4 bits
//   joined<i>(low, pairs)  codes of 6 bits: their low four, and the bits 2 i and 2 i + 1 of a byte as the high two
//   load_u8, load_i8       bytes as 32-bit whole numbers; zero_whole, add_product(a, b, sum) of these
//   load_f16, store, store_some, set1, zero, mul, fma, to_float(ireg)
//   vectors(rows)          how many registers of outputs go with so many rows, so that all sums fit the registers
//   largest_bits           the largest magnitude of 32 inputs, as the bits of a float
//   quantise_group         32 inputs to whole numbers, in the order that Dots wants, and their QuantInputGroup
#pragma once

#include <algorithm>
#include <bit>

#include "ops/quant_variants.h"
#include "ops/simd_strip.h"

namespace mc::ops {
namespace {  // NOLINT: every including file must own its copy

/// The prefetch distance of weights. The bytes after a panel are those of the next one. With three rows or more the
/// core is the limit, and prefetches would only take its load slots.
constexpr size_t kQuantAheadBytes = 4096;
constexpr size_t kInputStepBytes = 4 * sizeof(int16_t);  // four inputs

/// The places of a row: its first group's codes and numbers, and the bytes from a group to the next.
struct RowPlaces {
  std::byte* codes;
  size_t code_step;
  std::byte* groups;
  size_t group_step;
};
/// Rows one after another. In each row the codes precede the numbers of the groups.
inline RowPlaces row_alone(std::byte* rows, size_t row, size_t k) {
  std::byte* begin = rows + row * quant_row_bytes(k);
  const size_t code_bytes = kQuantGroup * sizeof(int16_t);
  return {begin, code_bytes, begin + quant_groups(k) * code_bytes, sizeof(QuantInputGroup)};
}

template <class V, RowPlaces (*kPlaces)(std::byte*, size_t, size_t)>
void quant_row(const float* x, size_t k, QuantForm form, size_t row, std::byte* rows) {
  const size_t groups = quant_groups(k), shared = quant_block_groups(form);
  RowPlaces at = kPlaces(rows, row, k);
  float padded[kQuantGroup] = {};  // the last group, if x has a part of it
  for (size_t i = k / kQuantGroup * kQuantGroup; i < k; ++i) padded[i % kQuantGroup] = x[i];
  const auto source = [&](size_t g) { return (g + 1) * kQuantGroup <= k ? x + g * kQuantGroup : padded; };
  for (size_t first = 0; first < groups; first += shared) {
    // As whole numbers the bits of magnitudes are in the order of the values, with infinity and NaN above all others.
    uint32_t most = 0;
    for (size_t g = first; g < first + shared; ++g) most = std::max(most, V::largest_bits(source(g)));
    const InputScale scale =
        input_scale(most < 0x7f800000 ? std::bit_cast<float>(most) : std::numeric_limits<float>::infinity(), form);
    for (size_t g = first; g < first + shared; ++g, at.codes += at.code_step, at.groups += at.group_step)
      V::quantise_group(source(g), scale, at.codes, *reinterpret_cast<QuantInputGroup*>(at.groups));
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

/// The minima of the groups of a block of a K type for one register of outputs, of which `column` is the first.
template <class V, QuantForm kForm>
class BlockMinima {
 public:
  BlockMinima(const std::byte* block, size_t column)
      : steps_(block + quant_head_bytes(kForm) + quant_code_bytes(kForm) + kPanelColumns + column),
        least_(V::mul(V::load_f16(block + (kPanelColumns + column) * sizeof(uint16_t)), V::set1(-1.0f))) {}
  typename V::freg of(size_t group) const {
    return V::mul(least_, V::to_float(V::load_u8(steps_ + group * quant_group_bytes(kForm))));
  }

 private:
  const std::byte* steps_;
  typename V::freg least_;
};

inline const QuantInputGroup* input_of(const std::byte* x_groups, size_t row, size_t x_stride) {
  return reinterpret_cast<const QuantInputGroup*>(x_groups + row * x_stride);
}

/// Adds one group of four or eight to the outputs from `column` on.
template <class V, QuantForm kForm, int kRows, int kVectors>
inline void add_group(typename V::freg (&total)[kRows][kVectors], const std::byte* group, size_t column,
                      const std::byte* x, const std::byte* x_groups, size_t x_stride) {
  typename V::Dots dots[kRows][kVectors];
  for (size_t half = 0; half < 2; ++half)
    add_half<V, kForm, kRows, kVectors>(dots, group + column * 4, half, x, x_stride);
  const std::byte* factors = group + quant_code_bytes(kForm);
  for (int v = 0; v < kVectors; ++v) {
    const size_t at = column + v * V::lanes;
    const auto scale = V::load_f16(factors + at * sizeof(uint16_t));
    const auto minimum = V::load_f16(factors + (kPanelColumns + at) * sizeof(uint16_t));
    for (int r = 0; r < kRows; ++r) {
      const QuantInputGroup* input = input_of(x_groups, r, x_stride);
      const auto scaled = V::mul(scale, V::set1(input->scale));
      total[r][v] = V::fma(V::to_float(dots[r][v].total()), scaled, total[r][v]);
      total[r][v] = V::fma(minimum, V::set1(input->sum), total[r][v]);
    }
  }
}

/// Adds the codes of half a group of a K type, or of all of it, times their scale.
template <class V, QuantForm kForm, int kRows, int kVectors>
inline void add_scaled(typename V::ireg (&sums)[kRows][kVectors], const std::byte* group, size_t half, size_t column,
                       const std::byte* x, const std::byte* x_groups, size_t x_stride) {
  typename V::Dots dots[kRows][kVectors];
  const std::byte* scales = group + quant_code_bytes(kForm) + half * kPanelColumns + column;
  if constexpr (kForm == QuantForm::six_k) {
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) dots[r][v].start(-32 * input_of(x_groups, r, x_stride)->half_sum[half]);
    add_half<V, kForm, kRows, kVectors>(dots, group + column * 4, half, x, x_stride);
  } else {
    for (size_t i = 0; i < 2; ++i) add_half<V, kForm, kRows, kVectors>(dots, group + column * 4, i, x, x_stride);
  }
  for (int v = 0; v < kVectors; ++v) {
    const auto scale =
        kForm == QuantForm::six_k ? V::load_i8(scales + v * V::lanes) : V::load_u8(scales + v * V::lanes);
    for (int r = 0; r < kRows; ++r) sums[r][v] = V::add_product(dots[r][v].total(), scale, sums[r][v]);
  }
}

/// Adds the minima of a block of a K type to the outputs from `column` on.
template <class V, QuantForm kForm, int kRows, int kVectors>
inline void add_block_minima(typename V::freg (&total)[kRows][kVectors], const std::byte* block, size_t column,
                             const std::byte* x_groups, size_t x_stride) {
  for (int v = 0; v < kVectors; ++v) {
    const BlockMinima<V, kForm> minima(block, column + v * V::lanes);
    for (size_t g = 0; g < quant_block_groups(kForm); ++g) {
      const auto minimum = minima.of(g);
      for (int r = 0; r < kRows; ++r)
        total[r][v] = V::fma(minimum, V::set1(input_of(x_groups, r, x_stride)[g].sum), total[r][v]);
    }
  }
}

/// Adds one block of a K type to the outputs from `column` on.
template <class V, QuantForm kForm, int kRows, int kVectors>
inline void add_block(typename V::freg (&total)[kRows][kVectors], const std::byte* block, size_t column,
                      const std::byte* x, const std::byte* x_groups, size_t x_stride) {
  constexpr size_t kRun = quant_run_groups(kForm), kStep = kForm == QuantForm::six_k ? 1 : 2;  // in halves of groups
  for (size_t first = 0; first < quant_block_groups(kForm); first += kRun) {
    typename V::ireg sums[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = V::zero_whole();
    for (size_t half = 2 * first; half < 2 * (first + kRun); half += kStep)
      add_scaled<V, kForm, kRows, kVectors>(sums, block + quant_group_offset(kForm, half / 2), half % 2, column,
                                            x + half / 2 * kQuantGroup * sizeof(int16_t),
                                            x_groups + half / 2 * sizeof(QuantInputGroup), x_stride);
    for (int v = 0; v < kVectors; ++v) {
      const auto scale = V::load_f16(block + (column + v * V::lanes) * sizeof(uint16_t));
      for (int r = 0; r < kRows; ++r) {
        const auto scaled = V::mul(scale, V::set1(input_of(x_groups, r, x_stride)->scale));
        total[r][v] = V::fma(V::to_float(sums[r][v]), scaled, total[r][v]);
      }
    }
  }
  if constexpr (kForm != QuantForm::six_k)
    add_block_minima<V, kForm, kRows, kVectors>(total, block, column, x_groups, x_stride);
}

template <class V, QuantForm kForm, int kRows>
void quant_strip(const std::byte* x, const std::byte* panel, size_t k, float* y, size_t y_stride, size_t columns) {
  constexpr int kVectors = V::vectors(kRows);
  constexpr size_t kStep = quant_block_groups(kForm);
  const size_t groups = quant_groups(k), x_stride = quant_row_bytes(k);
  const std::byte* x_groups = x + groups * kQuantGroup * sizeof(int16_t);
  for (size_t column = 0; column < columns; column += kVectors * V::lanes) {
    typename V::freg total[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) total[r][v] = V::zero();
    for (size_t g = 0; g < groups; g += kStep) {
      const std::byte* at = panel + g / kStep * quant_block_bytes(kForm);
      const std::byte* inputs = x + g * kQuantGroup * sizeof(int16_t);
      const std::byte* input_groups = x_groups + g * sizeof(QuantInputGroup);
      if constexpr (kStep == 1)
        add_group<V, kForm, kRows, kVectors>(total, at, column, inputs, input_groups, x_stride);
      else
        add_block<V, kForm, kRows, kVectors>(total, at, column, inputs, input_groups, x_stride);
    }
    store_strip<V, kRows, kVectors>(total, column, columns, y, y_stride);
  }
}

/// Strips of at most four rows, of equal size as nearly as can be.
template <class V, QuantForm kForm>
void quant_strips(const std::byte* x, size_t rows, const std::byte* panel, size_t k, float* y, size_t y_stride,
                  size_t columns) {
  while (rows > 0) {
    const size_t strips = (rows + 3) / 4;
    const size_t now = (rows + strips - 1) / strips;
    switch (now) {
      case 4: quant_strip<V, kForm, 4>(x, panel, k, y, y_stride, columns); break;
      case 3: quant_strip<V, kForm, 3>(x, panel, k, y, y_stride, columns); break;
      case 2: quant_strip<V, kForm, 2>(x, panel, k, y, y_stride, columns); break;
      default: quant_strip<V, kForm, 1>(x, panel, k, y, y_stride, columns); break;
    }
    x += now * quant_row_bytes(k);
    y += now * y_stride;
    rows -= now;
  }
}

template <class V>
void quant_panel(const std::byte* x, size_t rows, const std::byte* panel, size_t k, QuantForm form, float* y,
                 size_t y_stride, size_t columns) {
  switch (form) {
    case QuantForm::four: return quant_strips<V, QuantForm::four>(x, rows, panel, k, y, y_stride, columns);
    case QuantForm::eight: return quant_strips<V, QuantForm::eight>(x, rows, panel, k, y, y_stride, columns);
    case QuantForm::four_k: return quant_strips<V, QuantForm::four_k>(x, rows, panel, k, y, y_stride, columns);
    case QuantForm::five_k: return quant_strips<V, QuantForm::five_k>(x, rows, panel, k, y, y_stride, columns);
    case QuantForm::six_k: return quant_strips<V, QuantForm::six_k>(x, rows, panel, k, y, y_stride, columns);
  }
}

}  // namespace
}  // namespace mc::ops

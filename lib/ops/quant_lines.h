// Products of rows of Q8_0 blocks where they lie in a file (QuantKernels::lines), over a vector type V of quant_simd.h.
// Each file that includes this gets its own copy. The codes are raised to 0 .. 255, and scale and minimum are those of
// a panel of form eight, so that sums are the same, in the same order.
#pragma once

#include <cstring>
#include <utility>

#include "ops/quant_simd.h"

namespace mc::ops {
namespace {  // NOLINT: every including file must own its copy

/// A block: an f16 scale and 32 signed bytes.
constexpr size_t kLineBlockBytes = sizeof(uint16_t) + kQuantGroup;
/// Outputs of a strip.
constexpr size_t kLineStrip = 32;

inline void copy_scale(const std::byte* block, uint16_t* to) {
  std::memcpy(to, block, sizeof *to);
}

/// The codes of the block at byte `at` of V::lanes rows, by steps. W has the same registers as V, and puts the words of
/// neighbouring rows side by side (quant_words_avx2.h).
template <class V, class W>
inline void line_codes(const std::byte* const* lines, size_t at, typename V::ireg (&codes)[2][4]) {
  W::eight_words(lines, at + sizeof(uint16_t), codes[0], codes[1]);
  for (auto& half : codes)
    for (auto& code : half) code = W::flip(code, W::set1(static_cast<int>(0x80808080u)));
}

template <class V>
struct LineFactors {
  typename V::freg scale, minimum;
};
/// The factors of V::lanes blocks. A minimum beyond f16 (65504) makes the scale no number, as in a panel: it overflows
/// here too, and infinity times zero is no number.
template <class V>
inline LineFactors<V> line_factors(const uint16_t* scales) {
  const auto scale = V::load_f16(reinterpret_cast<const std::byte*>(scales));
  const auto minimum = V::mul(scale, V::set1(-128.0f));
  return {V::fma(V::mul(minimum, V::set1(0x1p112f)), V::zero(), scale), minimum};
}

template <class V>
inline void add_line_sums(typename V::freg& total, typename V::ireg sums, const LineFactors<V>& factors,
                          const QuantInputGroup& input) {
  total = V::fma(V::to_float(sums), V::mul(factors.scale, V::set1(input.scale)), total);
  total = V::fma(factors.minimum, V::set1(input.sum), total);
}

/// Calls body(g, at, next, now, then) for each group g of the rows of a strip: the bytes at which its blocks and those
/// of the next group begin in a row, and the scales of both. The body copies the scales of the next group, so that they
/// are in memory by the time they are loaded together. The rows of a strip lie together in a file as a rule. So while a
/// strip is read group by group, the next strip is fetched in the order of memory, a run of as many bytes for each
/// group.
template <class Body>
inline void for_line_blocks(const std::byte* const* lines, size_t groups, const Body& body) {
  alignas(64) uint16_t scales[2][kLineStrip];
  for (size_t i = 0; i < kLineStrip; ++i) copy_scale(lines[i], &scales[0][i]);
  const std::byte* ahead = lines[0] + kLineStrip * groups * kLineBlockBytes;
  for (size_t g = 0, at = 0; g < groups; ++g, ahead += kLineStrip * kLineBlockBytes) {
    for (size_t byte = 0; byte < kLineStrip * kLineBlockBytes; byte += 64) __builtin_prefetch(ahead + byte, 0, 2);
    const size_t next = g + 1 < groups ? at + kLineBlockBytes : at;  // nothing is read after a row
    body(g, at, next, scales[g % 2], scales[(g + 1) % 2]);
    at = next;
  }
}

/// Calls f with the constants 0 .. kCount - 1. GCC 12 keeps arrays of sums in registers only where every index is a
/// constant from the start, which it is not in a loop that is unrolled later.
template <int kCount, class F>
[[gnu::always_inline]] inline void unrolled(const F& f) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, kIndex>()), ...);
  }(std::make_integer_sequence<int, kCount>());
}

/// The outputs of kRows rows of inputs. Sums<kRows> has the inputs of a group, of all rows, and
///   multiply(lines, at, next, scales, out)   the sums of the blocks at byte `at` of V::lanes rows of weights, of each
///                                            row of inputs. Copies the scales of the blocks at byte `next` besides.
///   is_unrolled                              whether the code of all registers of a strip fits the cache of decoded
///                                            instructions
template <class V, template <int> class Sums, int kRows>
void line_strips(const std::byte* x, const std::byte* const* lines, size_t k, float* y, size_t y_stride,
                 size_t columns) {
  constexpr int kVectors = kLineStrip / V::lanes;
  const size_t groups = quant_groups(k), x_stride = quant_row_bytes(k);
  const std::byte* x_groups = x + groups * kQuantGroup * sizeof(int16_t);
  for (size_t column = 0; column < columns; column += kLineStrip) {
    const std::byte* const* strip = lines + column;
    typename V::freg total[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) total[r][v] = V::zero();
    for_line_blocks(strip, groups, [&](size_t g, size_t at, size_t next, const uint16_t* now, uint16_t* then) {
      const Sums<kRows> inputs(x + g * kQuantGroup * sizeof(int16_t), x_stride);
      const auto add = [&](auto v) __attribute__((always_inline)) {
        const size_t first = static_cast<size_t>(v) * V::lanes;
        typename V::ireg sums[kRows];
        inputs.multiply(strip + first, at, next, then + first, sums);
        const LineFactors<V> factors = line_factors<V>(now + first);
        unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
          add_line_sums<V>(total[r][v], sums[r], factors, input_of(x_groups, r, x_stride)[g]);
        });
      };
      if constexpr (Sums<kRows>::is_unrolled)
        unrolled<kVectors>(add);
      else
        for (int v = 0; v < kVectors; ++v) add(v);
    });
    store_strip<V, kRows, kVectors>(total, column, columns, y, y_stride);
  }
}

/// Strips of at most four rows, of equal size as nearly as can be.
template <class V, template <int> class Sums>
void quant_lines(const std::byte* x, size_t rows, const std::byte* const* lines, size_t k, float* y, size_t y_stride,
                 size_t columns) {
  while (rows > 0) {
    const size_t strips = (rows + 3) / 4, now = (rows + strips - 1) / strips;
    switch (now) {
      case 1: line_strips<V, Sums, 1>(x, lines, k, y, y_stride, columns); break;
      case 2: line_strips<V, Sums, 2>(x, lines, k, y, y_stride, columns); break;
      case 3: line_strips<V, Sums, 3>(x, lines, k, y, y_stride, columns); break;
      default: line_strips<V, Sums, 4>(x, lines, k, y, y_stride, columns); break;
    }
    x += now * quant_row_bytes(k);
    y += now * y_stride;
    rows -= now;
  }
}

}  // namespace
}  // namespace mc::ops

// Words of 16 neighbouring rows side by side, with AVX-512: for packing (quant_pack_simd.h) and for products of rows in
// place (quant_lines.h). Each file that includes this gets its own copy.
#pragma once

#include <cstddef>

#include "ops/simd_avx512.h"

namespace mc::ops {
namespace {  // NOLINT: every including file must own its copy

struct Avx512Words {
  using ireg = __m512i;
  using freg = __m512;
  static constexpr size_t lanes = 16;

  static __m128i quad(const std::byte* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
  static void words(const std::byte* const* rows, size_t at, ireg (&to)[4]) {
    __m512i r[4];  // rows i, i + 4, i + 8 and i + 12: each quarter of a register has four neighbouring rows
    for (size_t i = 0; i < 4; ++i) {
      r[i] = _mm512_castsi128_si512(quad(rows[i] + at));
      r[i] = _mm512_inserti32x4(r[i], quad(rows[i + 4] + at), 1);
      r[i] = _mm512_inserti32x4(r[i], quad(rows[i + 8] + at), 2);
      r[i] = _mm512_inserti32x4(r[i], quad(rows[i + 12] + at), 3);
    }
    transpose(r, to);
  }
  /// The words of bytes [at, at + 32) of each row.
  static void eight_words(const std::byte* const* rows, size_t at, ireg (&first)[4], ireg (&second)[4]) {
    __m512i r[4], s[4];
    for (size_t i = 0; i < 4; ++i) {
      const std::byte* const from[4] = {rows[i] + at, rows[i + 4] + at, rows[i + 8] + at, rows[i + 12] + at};
      r[i] = _mm512_castsi128_si512(quad(from[0]));
      s[i] = _mm512_castsi128_si512(quad(from[0] + 16));
      r[i] = _mm512_inserti32x4(r[i], quad(from[1]), 1);
      s[i] = _mm512_inserti32x4(s[i], quad(from[1] + 16), 1);
      r[i] = _mm512_inserti32x4(r[i], quad(from[2]), 2);
      s[i] = _mm512_inserti32x4(s[i], quad(from[2] + 16), 2);
      r[i] = _mm512_inserti32x4(r[i], quad(from[3]), 3);
      s[i] = _mm512_inserti32x4(s[i], quad(from[3] + 16), 3);
    }
    transpose(r, first);
    transpose(s, second);
  }
  static void transpose(const ireg (&r)[4], ireg (&to)[4]) {
    const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    const __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    to[0] = _mm512_unpacklo_epi64(a, c);
    to[1] = _mm512_unpackhi_epi64(a, c);
    to[2] = _mm512_unpacklo_epi64(b, d);
    to[3] = _mm512_unpackhi_epi64(b, d);
  }
  static ireg set1(int v) { return _mm512_set1_epi32(v); }
  static ireg flip(ireg a, ireg b) { return _mm512_xor_si512(a, b); }
  static freg wide(ireg halves) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(halves)); }
};

}  // namespace
}  // namespace mc::ops

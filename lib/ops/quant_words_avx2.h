// Words of eight neighbouring rows side by side, with AVX2: for packing (quant_pack_simd.h) and for products of rows in
// place (quant_lines.h). Each file that includes this gets its own copy.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace mc::ops {
namespace {  // NOLINT: every including file must own its copy

struct Avx2Words {
  using ireg = __m256i;
  using freg = __m256;
  static constexpr size_t lanes = 8;

  static __m128i quad(const std::byte* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
  static void words(const std::byte* const* rows, size_t at, ireg (&to)[4]) {
    __m256i r[4];  // rows i and i + 4: one half of a register has rows 0 to 3, the other 4 to 7
    for (size_t i = 0; i < 4; ++i)
      r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(quad(rows[i] + at)), quad(rows[i + 4] + at), 1);
    transpose(r, to);
  }
  /// The words of bytes [at, at + 32) of each row.
  static void eight_words(const std::byte* const* rows, size_t at, ireg (&first)[4], ireg (&second)[4]) {
    words(rows, at, first);
    words(rows, at + 16, second);
  }
  static void transpose(const ireg (&r)[4], ireg (&to)[4]) {
    const __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    const __m256i c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    to[0] = _mm256_unpacklo_epi64(a, c);
    to[1] = _mm256_unpackhi_epi64(a, c);
    to[2] = _mm256_unpacklo_epi64(b, d);
    to[3] = _mm256_unpackhi_epi64(b, d);
  }
  static ireg set1(int v) { return _mm256_set1_epi32(v); }
  static ireg flip(ireg a, ireg b) { return _mm256_xor_si256(a, b); }
  static __m128i low_u16(ireg v) {
    const ireg low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  }
  static freg wide(ireg halves) { return _mm256_cvtph_ps(low_u16(halves)); }
};

}  // namespace
}  // namespace mc::ops

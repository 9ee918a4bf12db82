// Packing with AVX2: eight rows at a time.
#include <immintrin.h>

#include "ops/quant_pack_simd.h"
#include "ops/quant_variants.h"

namespace mc::ops {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}

struct Avx2Pack {
  using ireg = __m256i;
  using freg = __m256;
  static constexpr size_t lanes = 8;

  static __m128i quad(const std::byte* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
  static void words(const std::byte* const* rows, size_t at, ireg (&to)[4]) {
    __m256i r[4];  // rows i and i + 4: one half of a register has rows 0 to 3, the other 4 to 7
    for (size_t i = 0; i < 4; ++i)
      r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(quad(rows[i] + at)), quad(rows[i + 4] + at), 1);
    const __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    const __m256i c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    to[0] = _mm256_unpacklo_epi64(a, c);
    to[1] = _mm256_unpackhi_epi64(a, c);
    to[2] = _mm256_unpacklo_epi64(b, d);
    to[3] = _mm256_unpackhi_epi64(b, d);
  }
  static ireg set1(int v) { return _mm256_set1_epi32(v); }
  static ireg both(ireg a, ireg b) { return _mm256_and_si256(a, b); }
  static ireg either(ireg a, ireg b) { return _mm256_or_si256(a, b); }
  static ireg flip(ireg a, ireg b) { return _mm256_xor_si256(a, b); }
  template <int kBits>
  static ireg left(ireg v) {
    return _mm256_slli_epi32(v, kBits);
  }
  template <int kBits>
  static ireg right(ireg v) {
    return _mm256_srli_epi32(v, kBits);
  }
  static ireg chosen(ireg a, ireg b, ireg yes, ireg no) {
    return _mm256_blendv_epi8(no, yes, _mm256_cmpeq_epi32(a, b));
  }
  static __m128i low_u16(ireg v) {
    const ireg low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  }
  static freg wide(ireg halves) { return _mm256_cvtph_ps(low_u16(halves)); }
  static ireg half(freg v) {
    return _mm256_cvtepu16_epi32(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static freg splat(int v) { return _mm256_set1_ps(static_cast<float>(v)); }
  static freg mul(freg a, freg b) { return _mm256_mul_ps(a, b); }
  static freg add(freg a, freg b) { return _mm256_add_ps(a, b); }
  static void store(std::byte* at, ireg v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v); }
  static void store_u16(std::byte* at, ireg v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(at), low_u16(v)); }
  static void store_u8(std::byte* at, ireg v) {
    const ireg low = _mm256_and_si256(v, _mm256_set1_epi32(0xff));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(at), _mm_packus_epi16(words, words));
  }
};

}  // namespace

const PackKernels kPackAvx2 = {"avx2", supported, Avx2Pack::lanes, pack_rows_for<Avx2Pack>};

}  // namespace mc::ops

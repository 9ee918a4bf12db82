// Packing with AVX2: eight rows at a time.
#include "ops/has_f16c.h"
#include "ops/quant_pack_simd.h"
#include "ops/quant_variants.h"
#include "ops/quant_words_avx2.h"

namespace mc::ops {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx2") && has_f16c();
}

struct Avx2Pack : Avx2Words {
  static ireg both(ireg a, ireg b) { return _mm256_and_si256(a, b); }
  static ireg either(ireg a, ireg b) { return _mm256_or_si256(a, b); }
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

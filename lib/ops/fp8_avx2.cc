// AVX2, FMA and F16C: 32 codes at a time.
#include <immintrin.h>

#include "ops/fp8_simd.h"
#include "ops/fp8_variants.h"
#include "ops/has_f16c.h"

namespace mc::ops {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

struct Line256 {
  using reg = __m256;
  using freg = reg;
  static constexpr size_t lanes = 8;
  static reg load(const float* x) { return _mm256_loadu_ps(x); }
  static void widen(__m256i halves, reg (&out)[2]) {
    out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  }
  static void load_line(const std::byte* codes, reg (&even)[2], reg (&odd)[2]) {
    // A word is a pair: even k below, odd k above. Signs go to bit 15, exponents and mantissas to bits 13..7; what
    // the arithmetic shift leaves in bit 14, and of the other code, is masked.
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i mask = _mm256_set1_epi16(static_cast<short>(0xbf80));
    widen(_mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(pairs, 8), 1), mask), even);
    widen(_mm256_and_si256(_mm256_srai_epi16(pairs, 1), mask), odd);
  }
  static void store(float* x, reg v) { _mm256_storeu_ps(x, v); }
  static void store_some(float* x, size_t n, reg v) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane), v);
  }
  static __m256i rounded(reg v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  }
  static void store_pairs(bf16_t* out, reg even, reg odd) {
    const __m256i high = _mm256_and_si256(rounded(odd), _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    const __m256i both = _mm256_or_si256(_mm256_srli_epi32(rounded(even), 16), high);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), both);
  }
  static reg set1(float v) { return _mm256_set1_ps(v); }
  static reg zero() { return _mm256_setzero_ps(); }
  static reg mul(reg a, reg b) { return _mm256_mul_ps(a, b); }
  static reg fma(reg a, reg b, reg c) { return _mm256_fmadd_ps(a, b, c); }
  static constexpr int vectors(int rows) { return rows == 1 ? 4 : 2; }
};

}  // namespace

const Fp8Kernels kFp8Avx2 = {"avx2", supported, fp8_panel<Line256>, fp8_widen<Line256>, fp8_widen_bf16<Line256>};

}  // namespace mc::ops

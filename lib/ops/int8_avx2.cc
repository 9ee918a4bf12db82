// AVX2 + FMA: 8 codes at a time.
#include <immintrin.h>

#include "ops/int8_simd.h"
#include "ops/int8_variants.h"

namespace mc::ops {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

struct Codes256 {
  using reg = __m256;
  static constexpr size_t lanes = 8;
  static reg load(const float* x) { return _mm256_loadu_ps(x); }
  static reg load_codes(const std::byte* codes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))));
  }
  static void store(float* x, reg v) { _mm256_storeu_ps(x, v); }
  static void store_some(float* x, size_t n, reg v) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane), v);
  }
  static reg set1(float v) { return _mm256_set1_ps(v); }
  static reg zero() { return _mm256_setzero_ps(); }
  static reg mul(reg a, reg b) { return _mm256_mul_ps(a, b); }
  static reg fma(reg a, reg b, reg c) { return _mm256_fmadd_ps(a, b, c); }
  static constexpr int vectors(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
};

}  // namespace

const Int8Kernels kInt8Avx2 = {"avx2", supported, int8_panel<Codes256>, int8_widen<Codes256>};

}  // namespace mc::ops

// The AVX-512 vector type of simd_kernels.h, shared by cpu_avx512.cc and cpu_avx512bf16.cc; each
// includes it into its own unnamed namespace.
#pragma once

// GCC 12 takes the undefined operand of its own intrinsics for an uninitialised variable (PR 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>

#include "ops/ops.h"

namespace mc::ops {
namespace {  // NOLINT: every including file must own its copy

struct Avx512 {
  using reg = __m512;
  static constexpr size_t lanes = 16;

  static __mmask16 first(size_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static reg load(const float* x) { return _mm512_loadu_ps(x); }
  static void store(float* x, reg v) { _mm512_storeu_ps(x, v); }
  static reg load_some(const float* x, size_t n) { return _mm512_maskz_loadu_ps(first(n), x); }
  static void store_some(float* x, size_t n, reg v) { _mm512_mask_storeu_ps(x, first(n), v); }
  static reg set1(float v) { return _mm512_set1_ps(v); }
  static reg zero() { return _mm512_setzero_ps(); }
  static reg add(reg a, reg b) { return _mm512_add_ps(a, b); }
  static reg sub(reg a, reg b) { return _mm512_sub_ps(a, b); }
  static reg mul(reg a, reg b) { return _mm512_mul_ps(a, b); }
  static reg div(reg a, reg b) { return _mm512_div_ps(a, b); }
  static reg min(reg a, reg b) { return _mm512_min_ps(a, b); }
  static reg max(reg a, reg b) { return _mm512_max_ps(a, b); }
  static reg fma(reg a, reg b, reg c) { return _mm512_fmadd_ps(a, b, c); }
  static reg round(reg a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static reg pow2(reg n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  }
  static reg less_to_zero(reg x, reg limit, reg value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), value);
  }
  static float sum(reg v) { return _mm512_reduce_add_ps(v); }
  static double sum_f64(reg v) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
    return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
  }
  static float hmax(reg v) { return _mm512_reduce_max_ps(v); }
  static reg load_bf16(const bf16_t* x) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
  }
  static void store_bf16(bf16_t* out, reg v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(chosen));
  }
  static reg load_even(const bf16_t* pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16));
  }
  static reg load_odd(const bf16_t* pairs) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs), high));
  }
  static constexpr int vectors(int) { return 4; }
};

}  // namespace
}  // namespace mc::ops

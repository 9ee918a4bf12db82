// AVX-512: 64 codes at a time. Widening is fifteen vector operations of two ports for 64 weights, whatever the
// number of rows; their products are four a row.
#include "ops/fp8_simd.h"
#include "ops/fp8_variants.h"
#include "ops/simd_avx512.h"

namespace mc::ops {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

struct Line512 : Avx512 {
  using freg = reg;
  static constexpr int vectors(int) { return 4; }
  static void widen(__m512i halves, reg (&out)[2]) {
    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
  }
  static void load_line(const std::byte* codes, reg (&even)[2], reg (&odd)[2]) {
    // As in fp8_avx2.cc.
    const __m512i pairs = _mm512_loadu_si512(codes);
    const __m512i mask = _mm512_set1_epi16(static_cast<short>(0xbf80));
    widen(_mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(pairs, 8), 1), mask), even);
    widen(_mm512_and_si512(_mm512_srai_epi16(pairs, 1), mask), odd);
  }
  static __m512i rounded(reg v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  }
  static void store_pairs(bf16_t* out, reg even, reg odd) {
    const __m512i high = _mm512_and_si512(rounded(odd), _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    _mm512_storeu_si512(out, _mm512_or_si512(_mm512_srli_epi32(rounded(even), 16), high));
  }
};

}  // namespace

const Fp8Kernels kFp8Avx512 = {"avx512", supported, fp8_panel<Line512>, fp8_widen<Line512>, fp8_widen_bf16<Line512>};

}  // namespace mc::ops

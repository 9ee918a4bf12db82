// AVX-512: 16 codes at a time, sign-extended and converted; six vector operations of two ports for 64
// weights of one row, so that memory and not the core bounds a decode step.
#include "ops/int8_simd.h"
#include "ops/int8_variants.h"
#include "ops/simd_avx512.h"

namespace mc::ops {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

struct Codes512 : Avx512 {
  static constexpr int vectors(int) { return 4; }  // totals wait in memory, once a group
  static reg load_codes(const std::byte* codes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
  }
};

}  // namespace

const Int8Kernels kInt8Avx512 = {"avx512", supported, int8_panel<Codes512>, int8_widen<Codes512>};

}  // namespace mc::ops

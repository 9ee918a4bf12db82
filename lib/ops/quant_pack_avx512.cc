// Packing with AVX-512: 16 rows at a time, whole cache lines.
#include "ops/quant_pack_simd.h"
#include "ops/quant_variants.h"
#include "ops/quant_words_avx512.h"

namespace mc::ops {
namespace {

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

struct Avx512Pack : Avx512Words {
  static ireg both(ireg a, ireg b) { return _mm512_and_si512(a, b); }
  static ireg either(ireg a, ireg b) { return _mm512_or_si512(a, b); }
  template <int kBits>
  static ireg left(ireg v) {
    return _mm512_slli_epi32(v, kBits);
  }
  template <int kBits>
  static ireg right(ireg v) {
    return _mm512_srli_epi32(v, kBits);
  }
  static ireg chosen(ireg a, ireg b, ireg yes, ireg no) {
    return _mm512_mask_mov_epi32(no, _mm512_cmpeq_epi32_mask(a, b), yes);
  }
  static ireg half(freg v) {
    return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static freg splat(int v) { return _mm512_set1_ps(static_cast<float>(v)); }
  static freg mul(freg a, freg b) { return _mm512_mul_ps(a, b); }
  static freg add(freg a, freg b) { return _mm512_add_ps(a, b); }
  static void store(std::byte* at, ireg v) { _mm512_storeu_si512(at, v); }
  static void store_u16(std::byte* at, ireg v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(v));
  }
  static void store_u8(std::byte* at, ireg v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtepi32_epi8(v));
  }
};

}  // namespace

const PackKernels kPackAvx512 = {"avx512", supported, Avx512Pack::lanes, pack_rows_for<Avx512Pack>};

}  // namespace mc::ops

// AVX2 leaves: 8 f32 lanes, 6 x 16 register tiles (12 accumulators of 16 registers).
#include <immintrin.h>

#include "attn/tile_f32.h"

namespace mc::attn {
namespace {

struct V256 {
  using reg = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kColumns = 2;

  MC_INLINE static reg zero() { return _mm256_setzero_ps(); }
  MC_INLINE static reg set1(float value) { return _mm256_set1_ps(value); }
  MC_INLINE static reg load(const float* from) { return _mm256_loadu_ps(from); }
  MC_INLINE static reg load_bf16(const uint16_t* from) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  /// Loads 16 elements and splits them into the even and the odd ones.
  MC_INLINE static void load_bf16_pairs(const uint16_t* from, reg* even, reg* odd) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-0x10000)));
  }
  /// Splits the 16 elements of a and b into the even and the odd ones; join() is the inverse.
  MC_INLINE static void split(reg a, reg b, reg* even, reg* odd) {
    const reg evens = _mm256_shuffle_ps(a, b, 0x88), odds = _mm256_shuffle_ps(a, b, 0xdd);
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(evens), 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odds), 0xd8));
  }
  MC_INLINE static void join(reg even, reg odd, reg* a, reg* b) {
    const reg low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    *a = _mm256_permute2f128_ps(low, high, 0x20);
    *b = _mm256_permute2f128_ps(low, high, 0x31);
  }
  MC_INLINE static void store(float* to, reg value) { _mm256_storeu_ps(to, value); }
  /// Round to nearest even, NaN kept: `narrow` of tile.h.
  MC_INLINE static void store_bf16(uint16_t* to, reg value) {
    alignas(32) float lanes[kWidth];
    _mm256_store_ps(lanes, value);
    for (int i = 0; i < kWidth; ++i) to[i] = narrow(lanes[i]);
  }
  MC_INLINE static reg div(reg a, reg b) { return _mm256_div_ps(a, b); }
  MC_INLINE static reg add(reg a, reg b) { return _mm256_add_ps(a, b); }
  MC_INLINE static reg sub(reg a, reg b) { return _mm256_sub_ps(a, b); }
  MC_INLINE static reg mul(reg a, reg b) { return _mm256_mul_ps(a, b); }
  MC_INLINE static reg fma(reg a, reg b, reg c) { return _mm256_fmadd_ps(a, b, c); }
  MC_INLINE static reg max(reg a, reg b) { return _mm256_max_ps(a, b); }
  /// 2^x (Cephes exp2f: relative error below 2^-22); 0 below -126, as an exponent made of bits has no
  /// denormals. NaN stays NaN.
  MC_INLINE static reg exp2(reg x) {
    const reg clamped = max(set1(-160.0f), x);  // this operand order keeps a NaN in x
    const reg n = _mm256_round_ps(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const reg f = sub(clamped, n);
    reg p = set1(1.535336188319500e-4f);
    p = fma(p, f, set1(1.339887440266574e-3f));
    p = fma(p, f, set1(9.618437357674640e-3f));
    p = fma(p, f, set1(5.550332471162809e-2f));
    p = fma(p, f, set1(2.402264791363012e-1f));
    p = fma(p, f, set1(6.931472028550421e-1f));
    p = fma(p, f, set1(1.0f));
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    const reg scaled = mul(p, _mm256_castsi256_ps(exponent));
    const reg small = _mm256_cmp_ps(n, set1(-126.0f), _CMP_LT_OQ);
    // A NaN has no exponent to add to: pass it on from p.
    return _mm256_blendv_ps(_mm256_andnot_ps(small, scaled), p, _mm256_cmp_ps(p, p, _CMP_UNORD_Q));
  }
  MC_INLINE static __m256i lanes_below(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  MC_INLINE static reg load_first(const float* from, int count, float rest) {
    const __m256i lanes = lanes_below(count);
    return _mm256_blendv_ps(set1(rest), _mm256_maskload_ps(from, lanes), _mm256_castsi256_ps(lanes));
  }
  MC_INLINE static reg keep_first(reg a, int count) {
    return _mm256_and_ps(a, _mm256_castsi256_ps(lanes_below(count)));
  }
  MC_INLINE static float first(reg a) { return _mm256_cvtss_f32(a); }
  MC_INLINE static float reduce_max(reg a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
  }
  MC_INLINE static float reduce_add(reg a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }
  /// acc[4h + n] summed over lanes goes to out[h][at + n], for 2 heads.
  MC_INLINE static void store_sums(const reg* acc, float* const* out, int at) {
    reg quad[2];  // both 128-bit halves: [n] = half of the sum of acc[4h + n]
    MC_UNROLL for (int h = 0; h < 2; ++h) {
      const reg* a = acc + 4 * h;
      const reg low = _mm256_add_ps(_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1]));
      const reg high = _mm256_add_ps(_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3]));
      quad[h] = _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x44), _mm256_shuffle_ps(low, high, 0xee));
    }
    const reg sums =
        _mm256_add_ps(_mm256_permute2f128_ps(quad[0], quad[1], 0x20), _mm256_permute2f128_ps(quad[0], quad[1], 0x31));
    _mm_storeu_ps(out[0] + at, _mm256_castps256_ps128(sums));
    _mm_storeu_ps(out[1] + at, _mm256_extractf128_ps(sums, 1));
  }
};

void pack_k(bool bf16, const void* rows, int valid, int head_dim, int dim, void* panel) {
  float* out = static_cast<float*>(panel);
  for (int i = 0; i < dim; ++i)
    for (int key = 0; key < kRun; ++key) {
      const ptrdiff_t at = static_cast<ptrdiff_t>(key) * head_dim + i;
      const bool used = key < valid && i < head_dim;
      out[i * kRun + key] = !used  ? 0.0f
                            : bf16 ? widen(static_cast<const uint16_t*>(rows)[at])
                                   : static_cast<const float*>(rows)[at];
    }
}

/// The magnitudes below 8 are subnormal: their words come from a table of 16 bytes, the others from their bits.
void widen_e4m3(const uint8_t* codes, int count, int exponent, const void* ahead, uint16_t* out) {
  prefetch_bytes(ahead, count);
  const auto by = static_cast<int16_t>(exponent * 128);
  alignas(16) uint16_t small_words[8];
  for (int i = 0; i < 8; ++i) small_words[i] = static_cast<uint16_t>(e4m3_bits(i) + (i == 0 ? 0 : by));
  const __m256i small = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(small_words)));
  const __m256i rebias = _mm256_set1_epi16(static_cast<int16_t>(120 * 128 + by));
  int i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
    // Bytes 2m and 2m + 1 of the table are the word of magnitude m.
    const __m256i bytes =
        _mm256_add_epi16(_mm256_mullo_epi16(magnitude, _mm256_set1_epi16(0x0202)), _mm256_set1_epi16(0x0100));
    __m256i bits = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), rebias);
    bits = _mm256_blendv_epi8(bits, _mm256_shuffle_epi8(small, bytes),
                              _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude));
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi16(0x7fc0), _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_or_si256(bits, sign));
  }
  widen_e4m3_rest(codes, i, count, exponent, out);
}

}  // namespace

constinit const Kernels kAvx2Kernels = F32Leaves<V256>::table(widen_e4m3, pack_k, nullptr);

}  // namespace mc::attn

// The 512-bit vector type of the tile templates, and a 16 x 16 transpose (internal; only for files that are compiled
// for AVX-512).
#pragma once

// g++ 12 reports the undefined source operand inside its own intrinsics as uninitialised.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "attn/tile.h"

namespace mc::attn {
namespace {

struct V512 {
  using reg = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kColumns = 4;

  MC_INLINE static reg zero() { return _mm512_setzero_ps(); }
  MC_INLINE static reg set1(float value) { return _mm512_set1_ps(value); }
  MC_INLINE static reg load(const float* from) { return _mm512_loadu_ps(from); }
  MC_INLINE static reg load_bf16(const uint16_t* from) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  /// Loads 32 elements and splits them into the even and the odd ones.
  MC_INLINE static void load_bf16_pairs(const uint16_t* from, reg* even, reg* odd) {
    const __m512i both = _mm512_loadu_si512(from);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-0x10000)));
  }
  /// Splits the 32 elements of a and b into the even and the odd ones; join() is the inverse.
  MC_INLINE static void split(reg a, reg b, reg* even, reg* odd) {
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(a, order, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(order, _mm512_set1_epi32(1)), b);
  }
  MC_INLINE static void join(reg even, reg odd, reg* a, reg* b) {
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *a = _mm512_permutex2var_ps(even, order, odd);
    *b = _mm512_permutex2var_ps(even, _mm512_add_epi32(order, _mm512_set1_epi32(8)), odd);
  }
  MC_INLINE static void store(float* to, reg value) { _mm512_storeu_ps(to, value); }
  /// Round to nearest even, NaN kept: `narrow` of tile.h.
  MC_INLINE static void store_bf16(uint16_t* to, reg value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i words = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(words));
  }
  MC_INLINE static reg div(reg a, reg b) { return _mm512_div_ps(a, b); }
  MC_INLINE static reg add(reg a, reg b) { return _mm512_add_ps(a, b); }
  MC_INLINE static reg sub(reg a, reg b) { return _mm512_sub_ps(a, b); }
  MC_INLINE static reg mul(reg a, reg b) { return _mm512_mul_ps(a, b); }
  MC_INLINE static reg fma(reg a, reg b, reg c) { return _mm512_fmadd_ps(a, b, c); }
  MC_INLINE static reg max(reg a, reg b) { return _mm512_max_ps(a, b); }
  /// 2^x: minimax polynomial of degree 5 on [0, 1) with p(0) = 1 (relative error below 2^-22 with rounding), scaled by
  /// 2^floor(x). The instructions handle the limits: -inf gives 0, NaN stays NaN.
  MC_INLINE static reg exp2(reg x) {
    const reg f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x - floor(x)
    reg p = set1(1.867130050e-3f);
    p = fma(p, f, set1(9.017030708e-3f));
    p = fma(p, f, set1(5.579991266e-2f));
    p = fma(p, f, set1(2.401644439e-1f));
    p = fma(p, f, set1(6.931512952e-1f));
    p = fma(p, f, set1(1.0f));
    return _mm512_scalef_ps(p, x);
  }
  MC_INLINE static __mmask16 lanes_below(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
  MC_INLINE static reg load_first(const float* from, int count, float rest) {
    return _mm512_mask_loadu_ps(_mm512_set1_ps(rest), lanes_below(count), from);
  }
  MC_INLINE static reg keep_first(reg a, int count) { return _mm512_maskz_mov_ps(lanes_below(count), a); }
  MC_INLINE static float first(reg a) { return _mm512_cvtss_f32(a); }
  MC_INLINE static float reduce_max(reg a) { return _mm512_reduce_max_ps(a); }
  MC_INLINE static float reduce_add(reg a) { return _mm512_reduce_add_ps(a); }
  /// acc[4h + n] summed over lanes goes to out[h][at + n], for 4 heads: first inside 128-bit lanes, which
  /// leaves [n] in each, then across lanes.
  MC_INLINE static void store_sums(const reg* acc, float* const* out, int at) {
    reg quad[4];
    MC_UNROLL for (int h = 0; h < 4; ++h) {
      const reg* a = acc + 4 * h;
      const reg low = _mm512_add_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
      const reg high = _mm512_add_ps(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
      quad[h] = _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xee));
    }
    const reg a =
        _mm512_add_ps(_mm512_shuffle_f32x4(quad[0], quad[1], 0x44), _mm512_shuffle_f32x4(quad[0], quad[1], 0xee));
    const reg b =
        _mm512_add_ps(_mm512_shuffle_f32x4(quad[2], quad[3], 0x44), _mm512_shuffle_f32x4(quad[2], quad[3], 0xee));
    const reg sums = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    _mm_storeu_ps(out[0] + at, _mm512_castps512_ps128(sums));
    _mm_storeu_ps(out[1] + at, _mm512_extractf32x4_ps(sums, 1));
    _mm_storeu_ps(out[2] + at, _mm512_extractf32x4_ps(sums, 2));
    _mm_storeu_ps(out[3] + at, _mm512_extractf32x4_ps(sums, 3));
  }
};

/// The magnitudes of all codes in four registers of 32 words: two lookups of 64 and a choice between them.
inline void widen_e4m3(const uint8_t* codes, int count, int exponent, const void* ahead, uint16_t* out) {
  alignas(64) static constexpr struct Table {
    uint16_t bits[128];
    constexpr Table() : bits() {
      for (int i = 0; i < 128; ++i) bits[i] = e4m3_bits(i);
    }
  } kTable;
  const __m512i by = _mm512_set1_epi16(static_cast<int16_t>(exponent * 128));
  __m512i table[4];
  MC_UNROLL for (int i = 0; i < 4; ++i) {
    const __m512i bits = _mm512_load_si512(kTable.bits + 32 * i);
    const __mmask32 scaled = i == 0 ? ~1u : i == 3 ? ~0u >> 1 : ~0u;  // neither zero nor NaN
    table[i] = _mm512_mask_add_epi16(bits, scaled, bits, by);
  }
  const __m512i sign = _mm512_set1_epi16(0x80), upper = _mm512_set1_epi16(0x40);
  int i = 0;
  for (; i + 32 <= count; i += 32) {
    // One line at a time: more at once would wait for the buffers of the lines under way.
    if (ahead != nullptr && i % 64 == 0) __builtin_prefetch(static_cast<const char*>(ahead) + i, 0, 2);
    const __m512i code = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
    const __m512i low = _mm512_permutex2var_epi16(table[0], code, table[1]);
    const __m512i high = _mm512_permutex2var_epi16(table[2], code, table[3]);
    const __m512i bits = _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(code, upper), high);
    _mm512_storeu_si512(out + i, _mm512_or_si512(bits, _mm512_slli_epi16(_mm512_and_si512(code, sign), 8)));
  }
  widen_e4m3_rest(codes, i, count, exponent, out);
}

/// rows[i] lane j  <->  rows[j] lane i, in three rounds of 16 shuffles and one of 128-bit lanes.
MC_INLINE void transpose16(__m512i* rows) {
  __m512i a[16], b[16];
  MC_UNROLL for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
  MC_UNROLL for (int i = 0; i < 4; ++i) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  // b[4g + j], 128-bit lane l: column 4l + j of rows 4g .. 4g + 3.
  MC_UNROLL for (int j = 0; j < 4; ++j) {
    const __m512i low01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);   // lanes 0, 2 of groups 0 and 1
    const __m512i high01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);  // lanes 1, 3
    const __m512i low23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
    rows[j] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    rows[4 + j] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    rows[8 + j] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    rows[12 + j] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}

/// Scores of M rows with up to 64 centroids, 16 at a time. Pairs of dims of 16 centroids are transposed into registers,
/// and each sum grows in the order of dim, as in a panel. step(acc, pairs, q, i) adds dims i and i + 1.
template <int M, class Element, class Step>
MC_INLINE void score_strip(const Element* const* q, int head_dim, int dim, const CentroidRows& centroids,
                           const CentroidRows& ahead, float* const* out, const Step& step) {
  for (int run = 0; run < kStripKeys; run += kRun) {
    __m512 acc[M];
    MC_UNROLL for (int r = 0; r < M; ++r) acc[r] = V512::zero();
    const int valid = min_int(kRun, centroids.count - run), asked = min_int(kRun, ahead.count - run);
    for (int i = 0; i < dim && valid > 0; i += 2 * kRun) {
      const int left = min_int(2 * kRun, head_dim - i);
      const __mmask32 lanes = left < 2 * kRun ? (1u << max_int(left, 0)) - 1u : ~0u;
      __m512i block[kRun];
      MC_UNROLL for (int key = 0; key < kRun; ++key) block[key] =
          key < valid ? _mm512_maskz_loadu_epi16(lanes, centroids.rows[run + key] + i) : _mm512_setzero_si512();
      for (int key = 0; key < asked; ++key) __builtin_prefetch(ahead.rows[run + key] + i);
      transpose16(block);
      const int pairs = min_int(kRun, (dim - i) / 2);  // dim may be an odd multiple of 16
      for (int pair = 0; pair < pairs; ++pair) step(acc, block[pair], q, i + 2 * pair);
    }
    MC_UNROLL for (int r = 0; r < M; ++r) V512::store(out[r] + run, acc[r]);
  }
}

template <class Element, class Step>
MC_INLINE void score_rows_with(const ScoreArgs& args, int head_dim, const CentroidRows& centroids,
                               const CentroidRows& ahead, const Step& step) {
  for_row_groups(args.row_count, [&]<int M>(int first) MC_INLINE_LAMBDA {
    const Element* q[M];
    float* out[M];
    MC_UNROLL for (int r = 0; r < M; ++r) {
      q[r] = static_cast<const Element*>(args.q) + static_cast<ptrdiff_t>(args.rows[first + r]) * args.dim;
      out[r] = args.scores + (first + r) * args.stride;
    }
    score_strip<M>(q, head_dim, args.dim, centroids, ahead, out, step);
    for (int r = 0; r < M; ++r) args.top[(first + r) * args.top_stride] = strip_max<V512>(out[r]);
  });
}

}  // namespace
}  // namespace mc::attn

// AVX-512-BF16 leaves: 6 x 64 register tiles of vdpbf16ps, pairs along dim for scores and along keys for the output.
// Scores, maxima and sums are f32; weights are rounded to bf16 once, before they meet V. Only for head_dim a multiple
// of 32 (kAvx512Bf16Dims); dispatch.cc sends others to the f32 leaves.
#include "attn/simd_avx512.h"

namespace mc::attn {
namespace {

using V = V512;

MC_INLINE __m512bh as_bh(__m512i a) {
  __m512bh out;
  __builtin_memcpy(&out, &a, sizeof(out));
  return out;
}

MC_INLINE __m512bh load_pairs(const uint16_t* from) {
  return as_bh(_mm512_loadu_si512(from));
}

MC_INLINE __m512bh broadcast_pair(const uint16_t* from) {
  int pair;
  __builtin_memcpy(&pair, from, 4);
  return as_bh(_mm512_set1_epi32(pair));
}

void pack_q(const float* q, int head_dim, int, bool, void* row) {
  uint16_t* out = static_cast<uint16_t*>(row);
  for (int i = 0; i < head_dim; ++i) out[i] = narrow(q[i]);
}

/// Transposes pairs: 16 keys x 16 pairs at a time.
void pack_k(bool, const void* rows, int valid, int head_dim, int dim, void* panel) {
  uint16_t* out = static_cast<uint16_t*>(panel);
  for (int i = 0; i < dim; i += 2 * kRun) {
    const int count = min_int(2 * kRun, max_int(head_dim - i, 0));
    const __mmask32 lanes = static_cast<__mmask32>((uint64_t{1} << count) - 1);
    __m512i block[kRun];
    MC_UNROLL for (int key = 0; key < kRun; ++key) block[key] = _mm512_maskz_loadu_epi16(
        key < valid ? lanes : 0, static_cast<const uint16_t*>(rows) + static_cast<ptrdiff_t>(key) * head_dim + i);
    transpose16(block);
    const int pairs = min_int(kRun, (dim - i) / 2);  // dim may be an odd multiple of 16
    for (int pair = 0; pair < pairs; ++pair) _mm512_storeu_si512(out + (i / 2 + pair) * 2 * kRun, block[pair]);
  }
}

/// Interleaves keys 2n and 2n + 1.
void pack_v(bool, const void* rows, int valid, int head_dim, int dim, int first_key, int keys, void* tile) {
  for (int column = 0; column < dim; column += kRun) {
    const __mmask16 lanes = V::lanes_below(min_int(kRun, max_int(head_dim - column, 0)));
    uint16_t* out = static_cast<uint16_t*>(tile) + static_cast<ptrdiff_t>(column) * keys + first_key * kRun;
    MC_UNROLL for (int key = 0; key < kRun; key += 2) {
      const uint16_t* at = static_cast<const uint16_t*>(rows) + static_cast<ptrdiff_t>(key) * head_dim + column;
      const __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(key < valid ? lanes : 0, at));
      const __m512i odd = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(key + 1 < valid ? lanes : 0, at + head_dim));
      _mm512_storeu_si512(out + key * kRun, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
    }
  }
}

template <int M>
__attribute__((noinline)) void qk_strip(const uint16_t* const* q, int dim, const uint16_t* panels, float* const* out,
                                        int at) {
  const ptrdiff_t panel = static_cast<ptrdiff_t>(dim) * kRun;
  __m512 acc[M][4];
  MC_UNROLL for (int r = 0; r < M; ++r) {
    MC_UNROLL for (int c = 0; c < 4; ++c) acc[r][c] = V::zero();
  }
  for (int i = 0; i < dim; i += 2) {
    __m512bh keys[4];
    MC_UNROLL for (int c = 0; c < 4; ++c) keys[c] = load_pairs(panels + c * panel + i * kRun);
    MC_UNROLL for (int r = 0; r < M; ++r) {
      const __m512bh pair = broadcast_pair(q[r] + i);
      MC_UNROLL for (int c = 0; c < 4; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], keys[c], pair);
    }
  }
  MC_UNROLL for (int r = 0; r < M; ++r) {
    MC_UNROLL for (int c = 0; c < 4; ++c) V::store(out[r] + at + c * kRun, acc[r][c]);
  }
}

/// C panels of 16 columns; keys [key, key + keys) of the tile, keys even. keep null = 1.
template <int M, int C>
__attribute__((noinline)) void pv_strip(const uint16_t* const* p, const float* keep, int key, int keys,
                                        const uint16_t* v, ptrdiff_t panel, float* const* o, int column) {
  __m512 acc[M][C];
  MC_UNROLL for (int r = 0; r < M; ++r) {
    MC_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = V::load(o[r] + column + c * kRun);
  }
  if (keep != nullptr) {
    MC_UNROLL for (int r = 0; r < M; ++r) {
      MC_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = V::mul(acc[r][c], V::set1(keep[r]));
    }
  }
  const uint16_t* weights[M];
  MC_UNROLL for (int r = 0; r < M; ++r) weights[r] = p[r] + key;
  for (int n = 0; n < keys; n += 2) {
    __m512bh columns[C];
    MC_UNROLL for (int c = 0; c < C; ++c) columns[c] = load_pairs(v + c * panel + n * kRun);
    MC_UNROLL for (int r = 0; r < M; ++r) {
      const __m512bh pair = broadcast_pair(weights[r] + n);
      MC_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], columns[c], pair);
    }
  }
  MC_UNROLL for (int r = 0; r < M; ++r) {
    MC_UNROLL for (int c = 0; c < C; ++c) V::store(o[r] + column + c * kRun, acc[r][c]);
  }
}

/// Weights f32 [count] to bf16.
MC_INLINE void round_weights(const float* s, int count, uint16_t* p) {
  for (int i = 0; i < count; i += kRun) {
    const __m256bh half = _mm512_cvtneps_pbh(V::load(s + i));
    __builtin_memcpy(p + i, &half, sizeof(half));
  }
}

/// The parts that run_tile needs.
struct Leaves {
  using V = V512;
  using element = uint16_t;
  static constexpr int kChunk = 4 * kRun;

  static void qk(int rows, const uint16_t* const* q, int dim, const uint16_t* panels, float* const* out, int at) {
    with_rows(rows, [&]<int M>() MC_INLINE_LAMBDA { qk_strip<M>(q, dim, panels, out, at); });
  }

  MC_INLINE static const uint16_t* weights(const float* s, int limit, uint16_t* p) {
    round_weights(s, limit, p);
    return p;
  }

  static void pv(int rows, const uint16_t* const* p, const float* keep, int key, int keys, const TileArgs& args,
                 int column, float* const* o) {
    const ptrdiff_t panel = static_cast<ptrdiff_t>(args.keys) * kRun;
    const uint16_t* v = static_cast<const uint16_t*>(args.v) + column / kRun * panel + key * kRun;
    const bool whole = column + kChunk <= args.dim;
    with_rows(rows, [&]<int M>() MC_INLINE_LAMBDA {
      if (whole) return pv_strip<M, 4>(p, keep, key, keys, v, panel, o, column);
      pv_strip<M, 2>(p, keep, key, keys, v, panel, o, column);  // dim is a multiple of 32
    });
  }
};

void scores(const ScoreArgs& args) {
  for_row_groups(args.row_count, [&]<int M>(int first) MC_INLINE_LAMBDA {
    const uint16_t* q[M];
    float* out[M];
    MC_UNROLL for (int r = 0; r < M; ++r) {
      q[r] = static_cast<const uint16_t*>(args.q) + static_cast<ptrdiff_t>(args.rows[first + r]) * args.dim;
      out[r] = args.scores + (first + r) * args.stride;
    }
    qk_strip<M>(q, args.dim, static_cast<const uint16_t*>(args.panels), out, 0);
    for (int r = 0; r < M; ++r) args.top[(first + r) * args.top_stride] = strip_max<V>(out[r]);
  });
}

void score_rows(const ScoreArgs& args, int head_dim, const CentroidRows& centroids, const CentroidRows& ahead) {
  score_rows_with<uint16_t>(args, head_dim, centroids, ahead,
                            [](auto& acc, __m512i pairs, const uint16_t* const* q, int i) MC_INLINE_LAMBDA {
                              constexpr int kRows = sizeof(acc) / sizeof(acc[0]);
                              MC_UNROLL for (int r = 0; r < kRows; ++r) acc[r] =
                                  _mm512_dpbf16_ps(acc[r], as_bh(pairs), broadcast_pair(q[r] + i));
                            });
}

void tile(const TileArgs& args) {
  run_tile<Leaves>(args);
}

// Decode reads K and V rows in place, in whole 64-byte vectors, because head_dim is a multiple of 32.

MC_INLINE const uint16_t* run_row(const void* const* runs, int key, ptrdiff_t stride) {
  return static_cast<const uint16_t*>(runs[key / kRun]) + (key % kRun) * stride;
}

/// Scores of 4 heads with the tile's keys, 4 keys at a time; see F32Leaves::dots.
template <bool kAhead>
MC_INLINE void dots(const DecodeTileArgs& args, const uint16_t* const* q, float* const* out) {
  for (int key = 0; key < args.keys; key += 4) {
    const uint16_t* k[4];
    MC_UNROLL for (int n = 0; n < 4; ++n) k[n] = run_row(args.k_runs, key + n, args.head_dim);
    if constexpr (kAhead)
      for (int n = 0; n < 4; ++n) prefetch_row(args.k_ahead, args.ahead_runs, key + n, args.head_dim * 2);
    __m512 acc[16];
    MC_UNROLL for (int n = 0; n < 16; ++n) acc[n] = V::zero();
    for (int i = 0; i < args.head_dim; i += 2 * kRun) {
      __m512bh keys[4];
      MC_UNROLL for (int n = 0; n < 4; ++n) keys[n] = load_pairs(k[n] + i);
      MC_UNROLL for (int h = 0; h < 4; ++h) {
        const __m512bh pairs = load_pairs(q[h] + i);
        MC_UNROLL for (int n = 0; n < 4; ++n) acc[h * 4 + n] = _mm512_dpbf16_ps(acc[h * 4 + n], keys[n], pairs);
      }
    }
    V::store_sums(acc, out, key);
  }
}

/// Columns [column, column + 32 C), pairs of keys interleaved in registers.
template <int M, int C, bool kAhead>
MC_INLINE void pv_runs(const DecodeTileArgs& args, const uint16_t* const* p, const float* keep, int column,
                       float* const* o) {
  // Words of two rows a and b: a0 b0 a1 b1 ... of the lower and of the upper 16 columns.
  alignas(64) static constexpr struct Order {
    uint16_t low[32], high[32];
    constexpr Order() : low(), high() {
      for (int i = 0; i < 32; ++i) {
        low[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
        high[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32 + 16);
      }
    }
  } kOrder;
  const __m512i low = _mm512_load_si512(kOrder.low), high = _mm512_load_si512(kOrder.high);
  __m512 acc[M][2 * C];
  MC_UNROLL for (int r = 0; r < M; ++r) {
    const __m512 factor = V::set1(keep[r]);
    MC_UNROLL for (int c = 0; c < 2 * C; ++c) acc[r][c] = V::mul(V::load(o[r] + column + c * kRun), factor);
  }
  for (int key = 0; key < args.keys; key += 2) {
    const uint16_t* even = run_row(args.v_runs, key, args.head_dim) + column;
    if constexpr (kAhead)
      for (int n = 0; n < 2; ++n) prefetch_row(args.v_ahead, args.ahead_runs, key + n, args.head_dim * 2);
    __m512bh columns[2 * C];
    MC_UNROLL for (int c = 0; c < C; ++c) {
      const __m512i a = _mm512_loadu_si512(even + c * 2 * kRun);
      const __m512i b =
          key + 1 < args.keys ? _mm512_loadu_si512(even + args.head_dim + c * 2 * kRun) : _mm512_setzero_si512();
      columns[2 * c] = as_bh(_mm512_permutex2var_epi16(a, low, b));
      columns[2 * c + 1] = as_bh(_mm512_permutex2var_epi16(a, high, b));
    }
    MC_UNROLL for (int r = 0; r < M; ++r) {
      const __m512bh weights = broadcast_pair(p[r] + key);
      MC_UNROLL for (int c = 0; c < 2 * C; ++c) acc[r][c] = _mm512_dpbf16_ps(acc[r][c], columns[c], weights);
    }
  }
  MC_UNROLL for (int r = 0; r < M; ++r) {
    MC_UNROLL for (int c = 0; c < 2 * C; ++c) V::store(o[r] + column + c * kRun, acc[r][c]);
  }
}

void decode(const DecodeTileArgs& args) {
  const int limit = round_up_int(args.keys, kRun);
  for (int first = 0; first < args.row_count; first += 4) {
    const uint16_t* q[4];
    float* out[4];
    for (int h = 0; h < 4; ++h) {
      const int r = min_int(first + h, args.row_count - 1);
      q[h] = static_cast<const uint16_t*>(args.q) + static_cast<ptrdiff_t>(args.rows[r]) * args.dim;
      out[h] = args.scratch + r * kDecodeTile;
    }
    first == 0 ? dots<true>(args, q, out) : dots<false>(args, q, out);
  }
  for_row_groups(args.row_count, [&]<int M>(int first) MC_INLINE_LAMBDA {
    uint16_t weights[M][kDecodeTile];
    const uint16_t* p[M];
    float* o[M];
    float keep[M];
    for (int r = 0; r < M; ++r) {
      const int32_t row = args.rows[first + r];
      float* s = args.scratch + (first + r) * kDecodeTile;
      p[r] = weights[r];
      o[r] = args.o + static_cast<ptrdiff_t>(row) * args.dim;
      keep[r] = softmax_row<V>(s, args.keys, limit, args.scale, args.m + row, args.d + row);
      round_weights(s, limit, weights[r]);
    }
    int column = 0;
    for (; column + 64 <= args.dim; column += 64)
      first == 0 && column == 0 ? pv_runs<M, 2, true>(args, p, keep, column, o)
                                : pv_runs<M, 2, false>(args, p, keep, column, o);
    if (column < args.dim) pv_runs<M, 1, false>(args, p, keep, column, o);
  });
}

}  // namespace

constinit const Kernels kAvx512Bf16Kernels = {.element_bytes = 2,
                                              .widen_e4m3 = widen_e4m3,
                                              .pack_q = pack_q,
                                              .pack_k = pack_k,
                                              .pack_v = pack_v,
                                              .scores = scores,
                                              .score_rows = score_rows,
                                              .add_row = add_row<V>,
                                              .mean_row = mean_row<V>,
                                              .tile = tile,
                                              .scale_row = scale_row<V>,
                                              .decode = decode};

}  // namespace mc::attn

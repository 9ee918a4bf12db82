// The f32 leaves over a vector type V, for cpu_avx2.cc and cpu_avx512.cc (internal). bf16 KV is widened while it is
// packed. V::kColumns vectors are accumulated side by side: 4 of 16 lanes or 2 of 8.
#pragma once

#include "attn/tile.h"

namespace mc::attn {
namespace {

template <class Vector>
struct F32Leaves {
  using V = Vector;
  using reg = typename V::reg;
  static constexpr int kWidth = V::kWidth;
  static constexpr int kColumns = V::kColumns;

  static void pack_q(const float* q, int head_dim, int dim, bool bf16_kv, void* row) {
    float* out = static_cast<float*>(row);
    if (bf16_kv)
      for (int i = 0; i < head_dim; ++i) out[i] = widen(narrow(q[i]));
    else
      __builtin_memcpy(out, q, static_cast<size_t>(head_dim) * 4);
    for (int i = head_dim; i < dim; ++i) out[i] = 0;
  }

  static void pack_v(bool bf16, const void* rows, int valid, int head_dim, int dim, int first_key, int, void* tile) {
    float* out = static_cast<float*>(tile) + static_cast<ptrdiff_t>(first_key) * dim;
    for (int key = 0; key < kRun; ++key, out += dim)
      widen_row(bf16, rows, key, key < valid ? head_dim : 0, head_dim, dim, out);
  }

  /// Row `key` of a run, its first `count` elements and zeros up to dim.
  MC_INLINE static void widen_row(bool bf16, const void* rows, int key, int count, int head_dim, int dim, float* out) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(key) * head_dim;
    int i = 0;
    if (bf16) {
      const uint16_t* in = static_cast<const uint16_t*>(rows) + at;
      for (; i + kWidth <= count; i += kWidth) V::store(out + i, V::load_bf16(in + i));
      for (; i < count; ++i) out[i] = widen(in[i]);
    } else {
      const float* in = static_cast<const float*>(rows) + at;
      for (; i + kWidth <= count; i += kWidth) V::store(out + i, V::load(in + i));
      for (; i < count; ++i) out[i] = in[i];
    }
    for (; i < dim; ++i) out[i] = 0;
  }

  /// M rows by kColumns vectors of keys; vectors lie vector_stride floats apart.
  template <int M>
  MC_INLINE static void qk(const float* const* q, int dim, const float* k, ptrdiff_t vector_stride, float* const* out) {
    reg acc[M][kColumns];
    MC_UNROLL for (int r = 0; r < M; ++r) {
      MC_UNROLL for (int c = 0; c < kColumns; ++c) acc[r][c] = V::zero();
    }
    for (int i = 0; i < dim; ++i) {
      reg keys[kColumns];
      MC_UNROLL for (int c = 0; c < kColumns; ++c) keys[c] = V::load(k + c * vector_stride + i * kRun);
      MC_UNROLL for (int r = 0; r < M; ++r) {
        const reg element = V::set1(q[r][i]);
        MC_UNROLL for (int c = 0; c < kColumns; ++c) acc[r][c] = V::fma(element, keys[c], acc[r][c]);
      }
    }
    MC_UNROLL for (int r = 0; r < M; ++r) {
      MC_UNROLL for (int c = 0; c < kColumns; ++c) V::store(out[r] + c * kWidth, acc[r][c]);
    }
  }

  /// 64 keys (4 panels) for M rows, to out[r] + at.
  template <int M>
  __attribute__((noinline)) static void qk_strip(const float* const* q, int dim, const float* panels, float* const* out,
                                                 int at) {
    const ptrdiff_t panel = static_cast<ptrdiff_t>(dim) * kRun;
    constexpr int kKeys = kColumns * kWidth;  // 64 or 16
    for (int key = 0; key < kStripKeys; key += kKeys) {
      float* to[M];
      MC_UNROLL for (int r = 0; r < M; ++r) to[r] = out[r] + at + key;
      // Vectors of one panel are adjacent. With 16 lanes every vector is a panel of its own.
      qk<M>(q, dim, panels + key / kRun * panel, kWidth == kRun ? panel : kWidth, to);
    }
  }

  static void qk(int rows, const float* const* q, int dim, const float* panels, float* const* out, int at) {
    with_rows(rows, [&]<int M>() MC_INLINE_LAMBDA { qk_strip<M>(q, dim, panels, out, at); });
  }

  /// o[r] = o[r] * keep[r] + p[r] . v over C vectors of columns and `keys` rows of V; keep null = 1.
  template <int M, int C>
  __attribute__((noinline)) static void pv_strip(const float* const* p, const float* keep, int key, int keys,
                                                 const float* v, ptrdiff_t v_stride, float* const* o, int column) {
    reg acc[M][C];
    MC_UNROLL for (int r = 0; r < M; ++r) {
      MC_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = V::load(o[r] + column + c * kWidth);
    }
    if (keep != nullptr) {
      MC_UNROLL for (int r = 0; r < M; ++r) {
        MC_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = V::mul(acc[r][c], V::set1(keep[r]));
      }
    }
    const float* weights[M];
    MC_UNROLL for (int r = 0; r < M; ++r) weights[r] = p[r] + key;
    for (int n = 0; n < keys; ++n, v += v_stride) {
      reg row[C];
      MC_UNROLL for (int c = 0; c < C; ++c) row[c] = V::load(v + c * kWidth);
      MC_UNROLL for (int r = 0; r < M; ++r) {
        const reg weight = V::set1(weights[r][n]);
        MC_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = V::fma(weight, row[c], acc[r][c]);
      }
    }
    MC_UNROLL for (int r = 0; r < M; ++r) {
      MC_UNROLL for (int c = 0; c < C; ++c) V::store(o[r] + column + c * kWidth, acc[r][c]);
    }
  }

  // The parts that run_tile needs:
  using element = float;
  static constexpr int kChunk = kColumns * kWidth;

  MC_INLINE static const float* weights(float* s, int, float*) { return s; }

  static void pv(int rows, const float* const* p, const float* keep, int key, int keys, const TileArgs& args,
                 int column, float* const* o) {
    const float* v = static_cast<const float*>(args.v) + static_cast<ptrdiff_t>(key) * args.dim + column;
    const bool whole = column + kChunk <= args.dim;
    with_rows(rows, [&]<int M>() MC_INLINE_LAMBDA {
      if (whole) return pv_strip<M, kColumns>(p, keep, key, keys, v, args.dim, o, column);
      for (int at = 0; column + at < args.dim; at += kWidth)
        pv_strip<M, 1>(p, keep, key, keys, v + at, args.dim, o, column + at);
    });
  }

  static void scores(const ScoreArgs& args) {
    for_row_groups(args.row_count, [&]<int M>(int first) MC_INLINE_LAMBDA {
      const float* q[M];
      float* out[M];
      MC_UNROLL for (int r = 0; r < M; ++r) {
        q[r] = static_cast<const float*>(args.q) + static_cast<ptrdiff_t>(args.rows[first + r]) * args.dim;
        out[r] = args.scores + (first + r) * args.stride;
      }
      qk_strip<M>(q, args.dim, static_cast<const float*>(args.panels), out, 0);
      for (int r = 0; r < M; ++r) args.top[(first + r) * args.top_stride] = strip_max<V>(out[r]);
    });
  }

  static void tile(const TileArgs& args) { run_tile<F32Leaves>(args); }

  // Decode reads K and V rows in place and widens them in registers, once for all heads.

  template <bool kBf16>
  MC_INLINE static reg load_kv(const void* row, ptrdiff_t at) {
    if constexpr (kBf16) return V::load_bf16(static_cast<const uint16_t*>(row) + at);
    return V::load(static_cast<const float*>(row) + at);
  }

  // A whole tile is read in four streams, its runs of 16 keys, one row of each at a time. The hardware prefetcher runs
  // ahead in each stream (two Emerald Rapids cores read 22 GB/s in four streams, 18 in one). Software also prefetches
  // the row kRowsAhead later (27 GB/s; memory gives 33). The order of keys does not matter to softmax.
  static constexpr int kRowsAhead = 4;
  static constexpr int kStreams = kDecodeTile / kRun;

  /// Row `row` of a stream, and the row to prefetch meanwhile, which may be in the next tile.
  struct StreamRow {
    const char* at;
    const char* ahead;
  };
  MC_INLINE static StreamRow stream_row(const void* const* runs, const void* const* next, int next_runs, int stream,
                                        int row, ptrdiff_t row_bytes) {
    const char* at = static_cast<const char*>(runs[stream]) + row * row_bytes;
    if (row + kRowsAhead < kRun) return {at, at + kRowsAhead * row_bytes};
    if (stream >= next_runs) return {at, at};
    return {at, static_cast<const char*>(next[stream]) + (row + kRowsAhead - kRun) * row_bytes};
  }
  /// The n-th key of a tile in the order of its walk.
  template <bool kBf16, bool kWhole>
  MC_INLINE static StreamRow nth_row(const void* const* runs, const void* const* next, int next_runs, int n,
                                     ptrdiff_t stride) {
    constexpr ptrdiff_t kBytes = kBf16 ? 2 : 4;
    if constexpr (kWhole) return stream_row(runs, next, next_runs, n % kStreams, n / kStreams, stride * kBytes);
    const char* at = static_cast<const char*>(runs[n / kRun]) + (n % kRun) * stride * kBytes;
    return {at, at};
  }

  /// Two vectors of a bf16 row from one load and two operations: the even and the odd elements of 2 kWidth. q and o are
  /// brought into the even-odd order (split), and o is restored at the end (join).
  MC_INLINE static void load_pairs(const void* row, ptrdiff_t at, reg* even, reg* odd) {
    V::load_bf16_pairs(static_cast<const uint16_t*>(row) + at, even, odd);
  }

  /// Scores of kWidth / 4 heads with the tile's keys, 4 keys at a time: one tree of shuffles turns kWidth accumulators
  /// into their kWidth sums. out[head] has room for kDecodeTile floats. With bf16, q is in the order of split_row.
  template <bool kBf16, bool kWhole>
  MC_INLINE static void dots(const DecodeTileArgs& args, const float* const* q, float* const* out) {
    constexpr int kHeads = kWidth / 4;
    const ptrdiff_t stride = args.head_dim;
    for (int key = 0; key < args.keys; key += 4) {
      StreamRow k[4];
      MC_UNROLL for (int n = 0; n < 4; ++n) k[n] =
          nth_row<kBf16, kWhole>(args.k_runs, args.k_ahead, args.ahead_runs, key + n, stride);
      reg acc[kWidth];
      MC_UNROLL for (int n = 0; n < kWidth; ++n) acc[n] = V::zero();
      int i = 0;
      if constexpr (kBf16)
        for (; i + 2 * kWidth <= args.dim; i += 2 * kWidth) {
          reg even[4], odd[4];
          MC_UNROLL for (int n = 0; n < 4; ++n) {
            if constexpr (kWhole) __builtin_prefetch(k[n].ahead + i * 2);
            load_pairs(k[n].at, i, even + n, odd + n);
          }
          MC_UNROLL for (int h = 0; h < kHeads; ++h) {
            const reg a = V::load(q[h] + i), b = V::load(q[h] + i + kWidth);
            MC_UNROLL for (int n = 0; n < 4; ++n) acc[h * 4 + n] = V::fma(a, even[n], acc[h * 4 + n]);
            MC_UNROLL for (int n = 0; n < 4; ++n) acc[h * 4 + n] = V::fma(b, odd[n], acc[h * 4 + n]);
          }
        }
      for (; i < args.dim; i += kWidth) {
        reg keys[4];
        MC_UNROLL for (int n = 0; n < 4; ++n) {
          if constexpr (kWhole) __builtin_prefetch(k[n].ahead + i * (kBf16 ? 2 : 4));
          keys[n] = load_kv<kBf16>(k[n].at, i);
        }
        MC_UNROLL for (int h = 0; h < kHeads; ++h) {
          const reg element = V::load(q[h] + i);
          MC_UNROLL for (int n = 0; n < 4; ++n) acc[h * 4 + n] = V::fma(element, keys[n], acc[h * 4 + n]);
        }
      }
      V::store_sums(acc, out, key);
    }
  }

  /// Brings q into the order that `dots` needs for bf16 keys.
  MC_INLINE static void split_row(const float* q, int dim, float* out) {
    int i = 0;
    for (; i + 2 * kWidth <= dim; i += 2 * kWidth) {
      reg even, odd;
      V::split(V::load(q + i), V::load(q + i + kWidth), &even, &odd);
      V::store(out + i, even);
      V::store(out + i + kWidth, odd);
    }
    for (; i < dim; i += kWidth) V::store(out + i, V::load(q + i));
  }

  /// Columns [column, column + C vectors) of M rows; C even with bf16, or 1.
  template <int M, int C, bool kBf16, bool kWhole>
  MC_INLINE static void pv_runs(const DecodeTileArgs& args, const float* const* p, const float* keep, int column,
                                float* const* o) {
    constexpr bool kPairs = kBf16 && C % 2 == 0;
    reg acc[M][C];
    MC_UNROLL for (int r = 0; r < M; ++r) {
      const reg factor = V::set1(keep[r]);
      MC_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = V::mul(V::load(o[r] + column + c * kWidth), factor);
      if constexpr (kPairs)
        MC_UNROLL for (int c = 0; c < C; c += 2) V::split(acc[r][c], acc[r][c + 1], &acc[r][c], &acc[r][c + 1]);
    }
    for (int key = 0; key < args.keys; ++key) {
      const auto [v, ahead] = nth_row<kBf16, kWhole>(args.v_runs, args.v_ahead, args.ahead_runs, key, args.head_dim);
      constexpr int kBytes = kBf16 ? 2 : 4;
      if constexpr (kWhole)
        for (int at = 0; at < C * kWidth * kBytes; at += 64) __builtin_prefetch(ahead + column * kBytes + at);
      reg row[C];
      if constexpr (kPairs) {
        MC_UNROLL for (int c = 0; c < C; c += 2) load_pairs(v, column + c * kWidth, row + c, row + c + 1);
      } else {
        MC_UNROLL for (int c = 0; c < C; ++c) row[c] = load_kv<kBf16>(v, column + c * kWidth);
      }
      MC_UNROLL for (int r = 0; r < M; ++r) {
        const reg weight = V::set1(p[r][key]);
        MC_UNROLL for (int c = 0; c < C; ++c) acc[r][c] = V::fma(weight, row[c], acc[r][c]);
      }
    }
    MC_UNROLL for (int r = 0; r < M; ++r) {
      if constexpr (kPairs)
        MC_UNROLL for (int c = 0; c < C; c += 2) V::join(acc[r][c], acc[r][c + 1], &acc[r][c], &acc[r][c + 1]);
      MC_UNROLL for (int c = 0; c < C; ++c) V::store(o[r] + column + c * kWidth, acc[r][c]);
    }
  }

  template <bool kBf16, bool kWhole>
  static void decode_runs(const DecodeTileArgs& args) {
    constexpr int kHeads = kWidth / 4;
    float* ordered = args.scratch + kDecodeRowsMax * kDecodeTile;  // unused when K and V are not widened
    for (int first = 0; first < args.row_count; first += kHeads) {
      const float* q[kHeads];
      float* out[kHeads];
      for (int h = 0; h < kHeads; ++h) {
        // Past the last head, the last head is repeated; a row's sum is equal at every index.
        const int r = min_int(first + h, args.row_count - 1);
        q[h] = static_cast<const float*>(args.q) + static_cast<ptrdiff_t>(args.rows[r]) * args.dim;
        if constexpr (kBf16) {
          split_row(q[h], args.dim, ordered + h * kDimMax);
          q[h] = ordered + h * kDimMax;
        }
        out[h] = args.scratch + r * kDecodeTile;
      }
      dots<kBf16, kWhole>(args, q, out);
    }
    for_row_groups(args.row_count, [&]<int M>(int first) MC_INLINE_LAMBDA {
      float* s[M];
      float* o[M];
      float keep[M];
      for (int r = 0; r < M; ++r) {
        const int32_t row = args.rows[first + r];
        s[r] = args.scratch + (first + r) * kDecodeTile;
        o[r] = args.o + static_cast<ptrdiff_t>(row) * args.dim;
        keep[r] = softmax_row<V>(s[r], args.keys, args.keys, args.scale, args.m + row, args.d + row);
      }
      int column = 0;
      constexpr int kChunk = kColumns * kWidth;
      for (; column + kChunk <= args.dim; column += kChunk)
        pv_runs<M, kColumns, kBf16, kWhole>(args, s, keep, column, o);
      for (; column < args.dim; column += kWidth) pv_runs<M, 1, kBf16, kWhole>(args, s, keep, column, o);
    });
  }

  static void decode(const DecodeTileArgs& args) {
    if (args.head_dim == args.dim) {
      if (args.keys == kDecodeTile) return args.bf16 ? decode_runs<true, true>(args) : decode_runs<false, true>(args);
      return args.bf16 ? decode_runs<true, false>(args) : decode_runs<false, false>(args);
    }
    // Rows that end inside a vector: widen and pad the tile first.
    DecodeTileArgs wide = args;
    const void* k_runs[kDecodeTile / kRun];
    const void* v_runs[kDecodeTile / kRun];
    float* at = args.scratch + kDecodeRowsMax * kDecodeTile;
    for (int key = 0; key < args.keys; key += kRun)
      for (int part = 0; part < 2; ++part) {
        const void* from = part == 0 ? args.k_runs[key / kRun] : args.v_runs[key / kRun];
        (part == 0 ? k_runs : v_runs)[key / kRun] = at;
        for (int n = 0; n < kRun; ++n, at += args.dim)
          widen_row(args.bf16, from, n, key + n < args.keys ? args.head_dim : 0, args.head_dim, args.dim, at);
      }
    wide.k_runs = k_runs;
    wide.v_runs = v_runs;
    wide.ahead_runs = 0;
    wide.head_dim = args.dim;
    decode_runs<false, false>(wide);
  }

  /// The table of these leaves. Each file provides the others: pack_k and score_rows transpose.
  static constexpr Kernels table(decltype(Kernels::widen_e4m3) widen_e4m3, decltype(Kernels::pack_k) pack_k,
                                 decltype(Kernels::score_rows) score_rows) {
    return {.element_bytes = 4,
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
  }
};

}  // namespace
}  // namespace mc::attn

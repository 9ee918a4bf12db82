// Tile arithmetic shared by the cpu_*.cc files, written once over a vector type V (internal). All functions have
// internal linkage, so each file compiles a copy for its own instruction set.
//
// A register tile is kRowTile rows by 64 keys (scores) or by up to 64 columns (output). Every element is one
// accumulator that adds in ascending order of dim or key. So the bits of a row do not depend on how many rows share the
// tile.
#pragma once

#include "attn/kernels.h"

#define MC_INLINE inline __attribute__((always_inline))
#define MC_INLINE_LAMBDA __attribute__((always_inline))
#define MC_UNROLL _Pragma("GCC unroll 16")

namespace mc::attn {
namespace {

constexpr float kNone = -__builtin_inff();

MC_INLINE int round_up_int(int value, int step) {
  return (value + step - 1) / step * step;
}
MC_INLINE int min_int(int a, int b) {
  return a < b ? a : b;
}
MC_INLINE int max_int(int a, int b) {
  return a > b ? a : b;
}

MC_INLINE float widen(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float out;
  __builtin_memcpy(&out, &bits, 4);
  return out;
}

/// Rounds to nearest even and keeps NaN, by the rule of base/dtype.h.
MC_INLINE uint16_t narrow(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// The bf16 bits of the magnitude of a code of E4M3, at scale 1.
constexpr uint16_t e4m3_bits(int magnitude) {
  if (magnitude == 0) return 0;
  if (magnitude == 0x7f) return 0x7fc0;
  if (magnitude >= 8) return static_cast<uint16_t>((magnitude << 4) + (120 << 7));
  const int top = magnitude >= 4 ? 2 : magnitude >= 2 ? 1 : 0;
  return static_cast<uint16_t>(((127 - 9 + top) << 7) + ((magnitude << (7 - top)) & 0x7f));
}

/// The definition of widen_e4m3, for the codes that fill no vector.
MC_INLINE void widen_e4m3_rest(const uint8_t* codes, int first, int count, int exponent, uint16_t* out) {
  for (int i = first; i < count; ++i) {
    const int magnitude = codes[i] & 0x7f, by = magnitude != 0 && magnitude != 0x7f ? exponent * 128 : 0;
    out[i] = static_cast<uint16_t>((codes[i] & 0x80) << 8 | (e4m3_bits(magnitude) + by));
  }
}

MC_INLINE void prefetch_bytes(const void* at, int count) {
  if (at == nullptr) return;
  for (int i = 0; i < count; i += 64) __builtin_prefetch(static_cast<const char*>(at) + i, 0, 2);
}

/// Online softmax of one row over s[0, visible): weights replace the scores, and zeros follow up to `limit` (a multiple
/// of 16). Updates m and d. Returns the factor for the row's output so far.
template <class V>
MC_INLINE float softmax_row(float* s, int visible, int limit, float scale, float* m, float* d) {
  using reg = typename V::reg;
  constexpr int kWidth = V::kWidth;
  const int whole = visible / kWidth * kWidth;
  // Four chains, because one would wait for the latency of each comparison.
  reg top = V::set1(kNone), top1 = top, top2 = top, top3 = top;
  int i = 0;
  for (; i + 4 * kWidth <= whole; i += 4 * kWidth) {
    top = V::max(V::load(s + i), top);
    top1 = V::max(V::load(s + i + kWidth), top1);
    top2 = V::max(V::load(s + i + 2 * kWidth), top2);
    top3 = V::max(V::load(s + i + 3 * kWidth), top3);
  }
  top = V::max(V::max(top, top1), V::max(top2, top3));
  for (; i < whole; i += kWidth) top = V::max(V::load(s + i), top);
  if (whole < visible) top = V::max(V::load_first(s + whole, visible - whole, kNone), top);
  const float tile_max = V::reduce_max(top) * scale;
  const float m_old = *m;
  const float m_new = tile_max > m_old ? tile_max : m_old;
  if (m_new == kNone) {
    for (i = 0; i < limit; i += kWidth) V::store(s + i, V::zero());
    return 1.0f;
  }
  const reg minus_m = V::set1(-m_new);
  const reg factor = V::set1(scale);
  reg sum = V::zero(), sum1 = sum;
  for (i = 0; i + 2 * kWidth <= whole; i += 2 * kWidth) {
    const reg p = V::exp2(V::fma(V::load(s + i), factor, minus_m));
    const reg p1 = V::exp2(V::fma(V::load(s + i + kWidth), factor, minus_m));
    sum = V::add(sum, p);
    sum1 = V::add(sum1, p1);
    V::store(s + i, p);
    V::store(s + i + kWidth, p1);
  }
  sum = V::add(sum, sum1);
  for (; i < whole; i += kWidth) {
    const reg p = V::exp2(V::fma(V::load(s + i), factor, minus_m));
    sum = V::add(sum, p);
    V::store(s + i, p);
  }
  if (whole < visible) {
    const reg p = V::keep_first(V::exp2(V::fma(V::load(s + i), factor, minus_m)), visible - whole);
    sum = V::add(sum, p);
    V::store(s + i, p);
    i += kWidth;
  }
  for (; i < limit; i += kWidth) V::store(s + i, V::zero());
  const float keep = V::first(V::exp2(V::set1(m_old - m_new)));
  *m = m_new;
  *d = *d * keep + V::reduce_add(sum);
  return keep;
}

template <class V>
MC_INLINE void scale_row(const float* o, float factor, int head_dim, float* out) {
  int i = 0;
  for (; i + V::kWidth <= head_dim; i += V::kWidth) V::store(out + i, V::mul(V::load(o + i), V::set1(factor)));
  for (; i < head_dim; ++i) out[i] = o[i] * factor;
}

template <class V>
MC_INLINE void add_row(const float* row, int head_dim, bool first, float* sum) {
  int i = 0;
  for (; i + V::kWidth <= head_dim; i += V::kWidth)
    V::store(sum + i, first ? V::load(row + i) : V::add(V::load(sum + i), V::load(row + i)));
  for (; i < head_dim; ++i) sum[i] = first ? row[i] : sum[i] + row[i];
}

template <class V>
MC_INLINE void mean_row(const float* sum, float tokens, int head_dim, uint16_t* mean) {
  int i = 0;
  for (; i + V::kWidth <= head_dim; i += V::kWidth) V::store_bf16(mean + i, V::div(V::load(sum + i), V::set1(tokens)));
  for (; i < head_dim; ++i) mean[i] = narrow(sum[i] / tokens);
}

/// Largest of 64 scores, NaN left out.
template <class V>
MC_INLINE float strip_max(const float* s) {
  typename V::reg best = V::set1(kNone);
  for (int i = 0; i < kStripKeys; i += V::kWidth) best = V::max(V::load(s + i), best);
  return V::reduce_max(best);
}

/// Prefetches row `key` of the next decode tile, if the tile has it.
MC_INLINE void prefetch_row(const void* const* runs, int run_count, int key, int row_bytes) {
  if (key / kRun >= run_count) return;
  const char* row = static_cast<const char*>(runs[key / kRun]) + static_cast<ptrdiff_t>(key % kRun) * row_bytes;
  for (int at = 0; at < row_bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
}

/// Calls step<M>() for groups of M = kRowTile rows and one smaller group at the end.
template <class Step>
MC_INLINE void for_row_groups(int row_count, const Step& step) {
  int row = 0;
  for (; row + kRowTile <= row_count; row += kRowTile) step.template operator()<kRowTile>(row);
  switch (row_count - row) {
    case 1: step.template operator()<1>(row); break;
    case 2: step.template operator()<2>(row); break;
    case 3: step.template operator()<3>(row); break;
    case 4: step.template operator()<4>(row); break;
    case 5: step.template operator()<5>(row); break;
  }
}

/// Calls step<M>() with M = count, which is in 1 .. kRowTile.
template <class Step>
MC_INLINE void with_rows(int count, const Step& step) {
  switch (count) {
    case 1: step.template operator()<1>(); break;
    case 2: step.template operator()<2>(); break;
    case 3: step.template operator()<3>(); break;
    case 4: step.template operator()<4>(); break;
    case 5: step.template operator()<5>(); break;
    default: step.template operator()<kRowTile>(); break;
  }
}

/// A prefill tile over leaves L, which provide:
///   element                                    of packed q, K, V and of the weights
///   qk<M>(q, dim, panels, out)                 scores of M rows with a strip of 64 keys
///   weights(s, limit, p)                       the row's weights as elements, in p or where they are
///   pv(M, C columns of 16, ...)                o = o * keep + p . v
/// Rows go in groups of kRowTile. kRowGroups groups share every 64 keys of K and every 64 x 64 of V. Otherwise K and V
/// would come from L2 once for every 6 rows (21 bytes a clock when two vector products issue in a clock). The order of
/// a row's additions does not depend on the grouping.
template <class L>
MC_INLINE void run_tile(const TileArgs& args) {
  using element = typename L::element;
  constexpr int kRows = kRowTile * kRowGroups;
  const element* all_q = static_cast<const element*>(args.q);
  element* p_space = reinterpret_cast<element*>(args.scratch + kRows * kKeyTile);
  for (int first = 0; first < args.row_count; first += kRows) {
    const int count = min_int(kRows, args.row_count - first);
    const element* q[kRows];
    const element* p[kRows];
    float* s[kRows];
    float* o[kRows];
    float keep[kRows];
    int limit[kRowGroups] = {};
    for (int r = 0; r < count; ++r) {
      const ptrdiff_t row = args.rows[first + r];
      q[r] = all_q + row * args.dim;
      o[r] = args.o + row * args.dim;
      s[r] = args.scratch + r * kKeyTile;
      limit[r / kRowTile] = max_int(limit[r / kRowTile], round_up_int(args.visible[first + r], kRun));
    }
    const auto groups = [&](int key, const auto& step) MC_INLINE_LAMBDA {
      for (int g = 0; g * kRowTile < count; ++g)
        if (key < limit[g]) step(g, g * kRowTile, min_int(kRowTile, count - g * kRowTile));
    };
    for (int key = 0; key < args.keys; key += kStripKeys) {
      const element* panels = static_cast<const element*>(args.k) + static_cast<ptrdiff_t>(key) * args.dim;
      groups(key,
             [&](int, int row, int rows) MC_INLINE_LAMBDA { L::qk(rows, q + row, args.dim, panels, s + row, key); });
    }
    for (int r = 0; r < count; ++r) {
      const int32_t row = args.rows[first + r];
      const int row_limit = limit[r / kRowTile];
      if (args.hidden != nullptr)
        for (int key = 0; key < args.hidden[first + r]; ++key) s[r][key] = kNone;
      keep[r] =
          softmax_row<typename L::V>(s[r], args.visible[first + r], row_limit, args.scale, args.m + row, args.d + row);
      p[r] = L::weights(s[r], row_limit, p_space + r * kKeyTile);
    }
    for (int column = 0; column < args.dim; column += L::kChunk)
      for (int key = 0; key < args.keys; key += kStripKeys)
        groups(key, [&](int g, int row, int rows) MC_INLINE_LAMBDA {
          L::pv(rows, p + row, key == 0 ? keep + row : nullptr, key, min_int(kStripKeys, limit[g] - key), args, column,
                o + row);
        });
  }
}

}  // namespace
}  // namespace mc::attn

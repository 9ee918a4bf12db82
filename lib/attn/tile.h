// Tile arithmetic shared by the cpu_*.cc files, written once over a vector type V (internal). Everything
// has internal linkage: each file compiles its own copy for its own instruction set.
//
// A register tile is kRowTile rows by 64 keys (scores) or by up to 64 columns (output). Every element is
// one accumulator fed in ascending order of dim or key, so a row's bits do not depend on how many rows
// share the tile.
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

/// Round to nearest even, NaN kept: the same rule as base/dtype.h.
MC_INLINE uint16_t narrow(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// 2^x for x <= 0 or a little above (Cephes exp2f: relative error below 2^-22); 0 below -126 or so,
/// NaN stays NaN.
template <class V>
MC_INLINE typename V::reg exp2_of(typename V::reg x) {
  using reg = typename V::reg;
  const reg clamped = V::max(V::set1(-160.0f), x);  // this operand order keeps a NaN in x
  const reg n = V::round(clamped);
  const reg f = V::sub(clamped, n);
  reg p = V::set1(1.535336188319500e-4f);
  p = V::fma(p, f, V::set1(1.339887440266574e-3f));
  p = V::fma(p, f, V::set1(9.618437357674640e-3f));
  p = V::fma(p, f, V::set1(5.550332471162809e-2f));
  p = V::fma(p, f, V::set1(2.402264791363012e-1f));
  p = V::fma(p, f, V::set1(6.931472028550421e-1f));
  p = V::fma(p, f, V::set1(1.0f));
  return V::scale2(p, n);
}

/// Online softmax of one row over s[0, visible): weights replace the scores, zeros follow up to `limit`
/// (a multiple of 16). Updates m and d, returns what the row's output so far must be multiplied by.
template <class V>
MC_INLINE float softmax_row(float* s, int visible, int limit, float scale, float* m, float* d) {
  using reg = typename V::reg;
  const int whole = visible / V::kWidth * V::kWidth;
  reg top = V::set1(kNone);
  for (int i = 0; i < whole; i += V::kWidth) top = V::max(V::load(s + i), top);
  if (whole < visible) top = V::max(V::load_first(s + whole, visible - whole, kNone), top);
  const float tile_max = V::reduce_max(top) * scale;
  const float m_old = *m;
  const float m_new = tile_max > m_old ? tile_max : m_old;
  if (m_new == kNone) {
    for (int i = 0; i < limit; i += V::kWidth) V::store(s + i, V::zero());
    return 1.0f;
  }
  const reg minus_m = V::set1(-m_new);
  const reg factor = V::set1(scale);
  reg sum = V::zero();
  int i = 0;
  for (; i < whole; i += V::kWidth) {
    const reg p = exp2_of<V>(V::fma(V::load(s + i), factor, minus_m));
    sum = V::add(sum, p);
    V::store(s + i, p);
  }
  if (whole < visible) {
    const reg p = V::keep_first(exp2_of<V>(V::fma(V::load(s + i), factor, minus_m)), visible - whole);
    sum = V::add(sum, p);
    V::store(s + i, p);
    i += V::kWidth;
  }
  for (; i < limit; i += V::kWidth) V::store(s + i, V::zero());
  const float keep = V::first(exp2_of<V>(V::set1(m_old - m_new)));
  *m = m_new;
  *d = *d * keep + V::reduce_add(sum);
  return keep;
}

/// Largest of 64 scores, NaN left out.
template <class V>
MC_INLINE float strip_max(const float* s) {
  typename V::reg best = V::set1(kNone);
  for (int i = 0; i < kStripKeys; i += V::kWidth) best = V::max(V::load(s + i), best);
  return V::reduce_max(best);
}

/// Asks for one row of the next decode tile: row `key` of its runs, if there is one.
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

}  // namespace
}  // namespace mc::attn

// The vector kernels, written once over a vector type V and included by the cpu_*.cc files alone,
// each of which defines its own V in an unnamed namespace (so that no instruction of one variant can
// be linked into another; for the same reason nothing of the standard library is called here).
//
// V gives: lanes, reg, load, store, load_some, store_some (first n lanes; zeros are loaded beyond),
// set1, zero, add, sub, mul, div, min, max, fma(a, b, c) = a * b + c, round (to integer), pow2 (2^n for
// an integral n in [-126, 127]), less_to_zero(x, limit, value) = x < limit ? 0 : value, sum (fixed
// tree), sum_f64, hmax, load_bf16, store_bf16, load_even and load_odd
// (of `lanes` bf16 pairs, widened), vectors(rows) = vectors of sums a strip of that many rows keeps.
//
// Each element of a result is made by one chain of operations whose order depends on n (or k) alone.
#pragma once

#include <cstddef>

#include "ops/ops.h"

namespace mc::ops {
namespace {  // NOLINT: every including file must own its copy

/// exp(x), relative error below 2e-7 for x in [-87, 88]; clamps outside (Cephes expf).
template <class V>
inline typename V::reg exp_ps(typename V::reg x) {
  x = V::min(V::max(x, V::set1(-87.0f)), V::set1(88.0f));
  const auto n = V::round(V::mul(x, V::set1(1.44269504088896341f)));
  auto r = V::fma(n, V::set1(-0.693359375f), x);
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  auto p = V::set1(1.9875691500e-4f);
  p = V::fma(p, r, V::set1(1.3981999507e-3f));
  p = V::fma(p, r, V::set1(8.3334519073e-3f));
  p = V::fma(p, r, V::set1(4.1665795894e-2f));
  p = V::fma(p, r, V::set1(1.6666665459e-1f));
  p = V::fma(p, r, V::set1(5.0000001201e-1f));
  p = V::fma(p, V::mul(r, r), V::add(r, V::set1(1.0f)));
  return V::mul(p, V::pow2(n));
}

/// Calls body(i, lanes) for whole vectors and once for the rest; lanes < V::lanes only in the last call.
template <class V, class Body>
inline void for_lanes(size_t n, Body body) {
  size_t i = 0;
  for (; i + V::lanes <= n; i += V::lanes) body(i, V::lanes);
  if (i < n) body(i, n - i);
}

template <class V>
inline typename V::reg load(const float* x, size_t lanes) {
  return lanes == V::lanes ? V::load(x) : V::load_some(x, lanes);
}

template <class V>
inline void store(float* x, size_t lanes, typename V::reg value) {
  if (lanes == V::lanes)
    V::store(x, value);
  else
    V::store_some(x, lanes, value);
}

template <class V>
void rms_norm(const float* x, const float* weight, float epsilon, size_t n, float* out) {
  // Four chains hide the latency of fma; they are joined in a fixed tree.
  typename V::reg sum[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  size_t i = 0;
  for (; i + 4 * V::lanes <= n; i += 4 * V::lanes)
    for (size_t c = 0; c < 4; ++c) {
      const auto v = V::load(x + i + c * V::lanes);
      sum[c] = V::fma(v, v, sum[c]);
    }
  for_lanes<V>(n - i, [&](size_t j, size_t lanes) {
    const auto v = load<V>(x + i + j, lanes);
    sum[0] = V::fma(v, v, sum[0]);
  });
  const float total = V::sum(V::add(V::add(sum[0], sum[1]), V::add(sum[2], sum[3])));
  const auto scale = V::set1(1.0f / __builtin_sqrtf(total / static_cast<float>(n) + epsilon));
  for_lanes<V>(n, [&](size_t j, size_t lanes) {
    store<V>(out + j, lanes, V::mul(V::mul(load<V>(x + j, lanes), scale), load<V>(weight + j, lanes)));
  });
}

template <class V>
void silu_mul(const float* gate, const float* up, size_t n, float* out) {
  for_lanes<V>(n, [&](size_t i, size_t lanes) {
    const auto g = load<V>(gate + i, lanes);
    const auto denominator = V::add(V::set1(1.0f), exp_ps<V>(V::sub(V::zero(), g)));
    store<V>(out + i, lanes, V::mul(V::div(g, denominator), load<V>(up + i, lanes)));
  });
}

template <class V>
void add(const float* x, size_t n, float* y) {
  for_lanes<V>(
      n, [&](size_t i, size_t lanes) { store<V>(y + i, lanes, V::add(load<V>(y + i, lanes), load<V>(x + i, lanes))); });
}

template <class V>
void rope(float* x, const float* cosine, const float* sine, size_t half) {
  for_lanes<V>(half, [&](size_t i, size_t lanes) {
    const auto low = load<V>(x + i, lanes), high = load<V>(x + i + half, lanes);
    const auto c = load<V>(cosine + i, lanes), s = load<V>(sine + i, lanes);
    store<V>(x + i, lanes, V::sub(V::mul(low, c), V::mul(high, s)));
    store<V>(x + i + half, lanes, V::add(V::mul(high, c), V::mul(low, s)));
  });
}

template <class V>
void to_bf16(const float* x, size_t n, bf16_t* out) {
  size_t i = 0;
  for (; i + V::lanes <= n; i += V::lanes) V::store_bf16(out + i, V::load(x + i));
  if (i == n) return;
  bf16_t rest[V::lanes];
  V::store_bf16(rest, V::load_some(x + i, n - i));
  for (size_t j = 0; i + j < n; ++j) out[i + j] = rest[j];
}

template <class V>
void from_bf16(const bf16_t* x, size_t n, float* out) {
  size_t i = 0;
  for (; i + V::lanes <= n; i += V::lanes) V::store(out + i, V::load_bf16(x + i));
  for (; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(x[i]) << 16;
    __builtin_memcpy(out + i, &bits, 4);
  }
}

template <class V>
void widen_pairs(const bf16_t* panel, size_t pairs, float* out) {
  for (size_t i = 0; i < pairs; i += V::lanes) {
    float* row = out + i / kPanelColumns * 2 * kPanelColumns + i % kPanelColumns;
    V::store(row, V::load_even(panel + 2 * i));
    V::store(row + kPanelColumns, V::load_odd(panel + 2 * i));
  }
}

template <class V>
float max(const float* x, size_t n) {
  // x86 max returns its second operand when one is NaN, so a NaN in `v` is dropped.
  const float lowest = -__builtin_inff();
  auto best = V::set1(lowest);
  size_t i = 0;
  for (; i + V::lanes <= n; i += V::lanes) best = V::max(V::load(x + i), best);
  float result = V::hmax(best);
  bool any = false;
  for (; i < n; ++i)
    if (x[i] > result) result = x[i];
  if (result != lowest) return result;
  for (i = 0; i < n; ++i) any = any || x[i] == x[i];
  return any ? lowest : __builtin_nanf("");
}

template <class V>
double sum_exp(const float* x, float shift, size_t n) {
  double sum = 0;  // vector sums are exact enough at 16 lanes; the long sum is in double
  const auto minus = V::set1(shift);
  for_lanes<V>(n, [&](size_t i, size_t lanes) {
    const auto d = V::sub(load<V>(x + i, lanes), minus);
    auto e = V::less_to_zero(d, V::set1(-87.0f), exp_ps<V>(d));
    if (lanes < V::lanes) {
      float part[V::lanes];
      V::store(part, e);
      for (size_t j = 0; j < lanes; ++j) sum += part[j];
      return;
    }
    sum += V::sum_f64(e);
  });
  return sum;
}

/// Asks for `bytes` of weights some way ahead: the hardware prefetcher alone reads a panel at 27 GB/s where memory
/// gives 33 (two Emerald Rapids cores). Beyond the panel lies the next one.
inline void ask_ahead(const void* weights, size_t bytes) {
  constexpr size_t kAheadBytes = 4096;
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(weights) + kAheadBytes + at);
}

/// One block of a panel product: kRows x kVectors registers accumulate over all of k, one chain each.
template <class V>
struct PanelF32 {
  using Row = float;
  using Weight = float;
  static constexpr size_t kScale = 1;  // panel elements per column and step of the k loop

  template <int kRows, int kVectors>
  static inline void accumulate(const float* x, size_t x_stride, const float* panel, size_t k,
                                typename V::reg (&sum)[kRows][kVectors]) {
    for (size_t i = 0; i < k; ++i) {
      ask_ahead(panel + i * kPanelColumns, kVectors * V::lanes * sizeof(float));
      typename V::reg w[kVectors];
      for (int v = 0; v < kVectors; ++v) w[v] = V::load(panel + i * kPanelColumns + v * V::lanes);
      for (int r = 0; r < kRows; ++r) {
        const auto a = V::set1(x[r * x_stride + i]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = V::fma(a, w[v], sum[r][v]);
      }
    }
  }
};

/// bf16 weights, f32 rows that hold bf16 values: pairs are split into even and odd k, widened exactly and
/// added in k order, the same chain as an f32 product of the widened values. The pairs are loaded twice
/// (from L1) to spare the registers that would hold them.
template <class V>
struct PanelBf16 {
  using Row = float;
  using Weight = bf16_t;
  static constexpr size_t kScale = 2;

  template <int kRows, int kVectors>
  static inline void accumulate(const float* x, size_t x_stride, const bf16_t* panel, size_t k,
                                typename V::reg (&sum)[kRows][kVectors]) {
    for (size_t i = 0; i < k; i += 2) {
      const bf16_t* pairs = panel + i * kPanelColumns;
      ask_ahead(pairs, 2 * kVectors * V::lanes * sizeof(bf16_t));
      typename V::reg w[kVectors];
      for (int v = 0; v < kVectors; ++v) w[v] = V::load_even(pairs + 2 * v * V::lanes);
      for (int r = 0; r < kRows; ++r) {
        const auto a = V::set1(x[r * x_stride + i]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = V::fma(a, w[v], sum[r][v]);
      }
      for (int v = 0; v < kVectors; ++v) w[v] = V::load_odd(pairs + 2 * v * V::lanes);
      for (int r = 0; r < kRows; ++r) {
        const auto a = V::set1(x[r * x_stride + i + 1]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = V::fma(a, w[v], sum[r][v]);
      }
    }
  }
};

/// kRows rows against all columns of the panel, as many vectors at a time as the registers hold.
template <class V, class Block, int kRows>
inline void panel_strip(const typename Block::Row* x, size_t x_stride, const typename Block::Weight* panel, size_t k,
                        float* y, size_t y_stride, size_t columns) {
  constexpr int kVectors = V::vectors(kRows);
  constexpr size_t kStep = kVectors * V::lanes;
  for (size_t column = 0; column < columns; column += kStep) {
    typename V::reg sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) sum[r][v] = V::zero();
    Block::template accumulate<kRows, kVectors>(x, x_stride, panel + column * Block::kScale, k, sum);
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) {
        const size_t first = column + v * V::lanes;
        if (first >= columns) break;
        store<V>(y + r * y_stride + first, columns - first < V::lanes ? columns - first : V::lanes, sum[r][v]);
      }
  }
}

/// Strips of at most six rows, of equal size as nearly as can be. A row's sums are the same in every
/// strip: each is one chain over k.
template <class V, class Block>
void panel_product(const typename Block::Row* x, size_t x_stride, size_t rows, const typename Block::Weight* panel,
                   size_t k, float* y, size_t y_stride, size_t columns) {
  while (rows > 0) {
    const size_t strips = (rows + 5) / 6;
    const size_t now = (rows + strips - 1) / strips;
    switch (now) {
      case 6: panel_strip<V, Block, 6>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 5: panel_strip<V, Block, 5>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 4: panel_strip<V, Block, 4>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 3: panel_strip<V, Block, 3>(x, x_stride, panel, k, y, y_stride, columns); break;
      case 2: panel_strip<V, Block, 2>(x, x_stride, panel, k, y, y_stride, columns); break;
      default: panel_strip<V, Block, 1>(x, x_stride, panel, k, y, y_stride, columns); break;
    }
    x += now * x_stride;
    y += now * y_stride;
    rows -= now;
  }
}

}  // namespace
}  // namespace mc::ops

// Partial attention that can be merged: the running maximum and sum of online softmax (Milakov and Gimelshein,
// arXiv:1805.02867). For one row over any set of keys with scaled scores x_i = log2(e) * scale * (q . k_i):
//   m = max x_i        d = sum 2^(x_i - m)        o = sum 2^(x_i - m) v_i
// all f32. m is in base 2, which the kernels use, so merging loses nothing. No key: m = -inf, d = 0, o = 0. The merge
// of two disjoint sets is exact up to f32 rounding, so split-KV, remote and cascade attention all use it.
#pragma once

#include <cstdint>

namespace mc::attn {

/// Borrowed arrays of `rows` rows; a row is one query head of one token.
struct StateView {
  float* o = nullptr;  // [rows, head_dim], unnormalised
  float* m = nullptr;  // [rows], base 2
  float* d = nullptr;  // [rows]
  explicit operator bool() const { return o != nullptr; }
};

/// The state of no keys.
void clear(const StateView& state, int64_t rows, int head_dim);
/// into = the merge of into and from. A side with m = -inf has weight exactly 0 for any content of its o.
void merge(const StateView& into, const StateView& from, int64_t rows, int head_dim);
/// out [rows, head_dim] = o / d; rows without keys are 0.
void normalise(const StateView& state, int64_t rows, int head_dim, float* out);
/// Natural log-sum-exp of the scaled scores; -inf without keys. For tests.
float lse(float m, float d);

}  // namespace mc::attn

// The merge of a row's splits, as attention_combine and the clusters do it: the weights follow from the largest maximum
// of all splits, and the weighted sums are taken in the order of the splits.
#pragma once

#include "gpu/kernels/attention.h"
#include "gpu/ptx/arithmetic.cuh"

namespace mc::gpu {

/// The weight of a split of a row: `top` is the largest maximum of its splits.
MC_DEVICE float split_weight(float m, float top) {
  return ptx::exp2_approx(m - (top == kMinusInf ? 0 : top));
}

/// Elements of a row's output: the weighted sums of its splits, in their order. No product is fused with a sum, so a
/// row has equal bits in every kernel that merges.
template <int kColumns>
struct Merged {
  float d = 0, o[kColumns] = {};

  /// `their_d` is weighed already.
  MC_DEVICE void add(float weight, float their_d, const float (&their_o)[kColumns]) {
    d = ptx::add_rn(d, their_d);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) o[i] = ptx::add_rn(o[i], ptx::mul_rn(their_o[i], weight));
  }
  MC_DEVICE float inverse() const {
    return d > 0 ? 1 / d : 0;
  }
};

}  // namespace mc::gpu

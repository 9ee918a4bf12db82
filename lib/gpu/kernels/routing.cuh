// Where the index of MoBA prefill lies (Routing in attention.h), for the kernels that make it and those that use it.
#pragma once

#include "gpu/kernels/attention.h"
#include "gpu/ptx/memory.cuh"

namespace mc::gpu {

/// The range of a KV head in an array that has `each` elements for a head.
template <class T>
MC_DEVICE T* of_head(T* array, int kv_head, int64_t each) {
  return array + kv_head * each;
}

MC_DEVICE int32_t rows_of(const AttentionArgs& args, const Sequence& sequence) {
  return sequence.tokens * (args.q_heads / args.pool.kv_heads);
}

/// Items that the list of a block is cut into.
MC_DEVICE int32_t items_of(int32_t rows) {
  return (rows + kItemRows - 1) / kItemRows;
}

}  // namespace mc::gpu

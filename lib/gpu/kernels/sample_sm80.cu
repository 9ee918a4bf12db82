// The greedy draw: the largest logit of each row, as ops::argmax defines it.
#include "gpu/kernels/layer.h"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {
namespace {

/// Takes `other` when it is larger, or equal with a lower index. Nothing is larger than itself, so NaN never wins.
MC_DEVICE void take_larger(Largest& best, Largest other) {
  if (other.index < 0) return;
  if (best.index < 0 || other.value > best.value || (other.value == best.value && other.index < best.index))
    best = other;
}

}  // namespace

MC_KERNEL(largest_of_rows, (kThreads))(MC_PARAM(LargestArgs) args) {
  const int thread = ptx::tid_x();
  const uint32_t shared = ptx::dynamic_shared<16>();
  const float* row = args.x + int64_t{ptx::ctaid_x()} * args.columns;
  Largest best{kMinusInf, -1};
  for (int i = thread; i < args.columns; i += kThreads) {
    const float value = ptx::load(row + i);
    if (value > best.value) best = {value, i};
  }
#pragma unroll
  for (uint32_t by = 16; by > 0; by /= 2) {
    const float value = ptx::shuffle_xor(best.value, by);
    take_larger(best, {value, ptx::shuffle_xor(best.index, by)});
  }
  if (thread % 32 == 0) {
    ptx::store_shared_f32(shared + thread / 4, best.value);
    ptx::store_shared_u32(shared + thread / 4 + 4, static_cast<uint32_t>(best.index));
  }
  ptx::barrier_all();
  if (thread > 0) return;
  for (uint32_t warp = 1; warp < kThreads / 32; ++warp)
    take_larger(best, {ptx::load_shared_f32(shared + warp * 8),
                       static_cast<int32_t>(ptx::load_shared_u32(shared + warp * 8 + 4))});
  ptx::store(args.out + ptx::ctaid_x(), best);
}

}  // namespace mc::gpu

// The portable attention kernels (attend.cuh): prefill and decode for head dimensions 64 and 128, and the merge of
// splits. PTX for sm_80, which the driver of every later chip compiles.
#include "gpu/kernels/attend.cuh"

using namespace mc::gpu;

extern "C" __global__ void __launch_bounds__(kThreads)
    attention_prefill_d64(__grid_constant__ const AttentionArgs args) {
  attend<64, 4>(args);
}
extern "C" __global__ void __launch_bounds__(kThreads)
    attention_prefill_d128(__grid_constant__ const AttentionArgs args) {
  attend<128, 4>(args);
}
extern "C" __global__ void __launch_bounds__(kThreads)
    attention_decode_d64(__grid_constant__ const AttentionArgs args) {
  attend<64, 1>(args);
}
extern "C" __global__ void __launch_bounds__(kThreads)
    attention_decode_d128(__grid_constant__ const AttentionArgs args) {
  attend<128, 1>(args);
}

/// Merges the splits of one row: grid (total_tokens * q_heads), one thread for each two elements of the head.
extern "C" __global__ void __launch_bounds__(kThreads) attention_combine(__grid_constant__ const AttentionArgs args,
                                                                         int32_t head_dim) {
  const int64_t row = blockIdx.x, rows = int64_t{args.total_tokens} * args.q_heads;
  const int column = 2 * threadIdx.x;
  if (column >= head_dim) return;
  float m = kMinusInf, d = 0, low = 0, high = 0;
  for (int split = 0; split < args.splits; ++split) {
    const int64_t at = split * rows + row;
    const float their_m = args.split_m[at];
    const float top = fmaxf(m, their_m), base = top == kMinusInf ? 0 : top;
    const float keep = ptx::exp2_approx(m - base), add = ptx::exp2_approx(their_m - base);
    m = top;
    d = d * keep + args.split_d[at] * add;
    low = low * keep + args.split_o[at * head_dim + column] * add;
    high = high * keep + args.split_o[at * head_dim + column + 1] * add;
  }
  const float inverse = d > 0 ? 1 / d : 0;
  *reinterpret_cast<uint32_t*>(args.out + row * head_dim + column) = ptx::pack_bf16(low * inverse, high * inverse);
}

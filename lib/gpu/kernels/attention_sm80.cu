// The portable attention kernels (attend.cuh): prefill and decode for head dimensions 64 and 128, and the merge of
// splits. PTX for sm_80, which the driver of every later chip compiles.
#include "gpu/kernels/attend.cuh"
#include "gpu/kernels/merged.cuh"

namespace mc::gpu {

MC_KERNEL(attention_prefill_d64, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend<64, 4>(args);
}
MC_KERNEL(attention_prefill_d128, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend<128, 4>(args);
}
MC_KERNEL(attention_decode_d64, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend<64, 1>(args);
}
MC_KERNEL(attention_decode_d128, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend<128, 1>(args);
}

MC_KERNEL(attention_prefill_e4m3_d64, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend<64, 4, false, true>(args);
}
MC_KERNEL(attention_prefill_e4m3_d128, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend<128, 4, false, true>(args);
}
MC_KERNEL(attention_decode_e4m3_d64, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend<64, 1, false, true>(args);
}
MC_KERNEL(attention_decode_e4m3_d128, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend<128, 1, false, true>(args);
}

namespace {

constexpr uint32_t kSums = kCombineSplitsMax * 4;  // behind the weights of a row's splits, in shared memory
constexpr int kPartsAhead = 32;                    // loads of a thread on their way at the same time

/// Stores the weight of every split of a row in shared memory, and the splits' weighted sums. Warp 0 does it.
MC_DEVICE void weigh_splits(const AttentionArgs& args, int splits, int64_t row, int64_t rows, uint32_t weights) {
  static_assert(kCombineSplitsMax == 64, "a lane has two splits");
  float m[2], d[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int split = ptx::tid_x() + 32 * half;
    m[half] = split < splits ? ptx::load(args.split_m + split * rows + row) : kMinusInf;
    d[half] = split < splits ? ptx::load(args.split_d + split * rows + row) : 0;
  }
  float top = ptx::max_f32(m[0], m[1]);
#pragma unroll
  for (int by = 16; by > 0; by /= 2) top = ptx::max_f32(top, ptx::shuffle_xor(top, by));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t at = weights + (ptx::tid_x() + 32 * half) * 4;
    const float weight = split_weight(m[half], top);
    ptx::store_shared_f32(at, weight);
    ptx::store_shared_f32(at + kSums, ptx::mul_rn(d[half], weight));
  }
}

}  // namespace

/// Merges the splits of one row: one thread for each element of the head. The loads of kPartsAhead splits are on their
/// way at the same time, and the first ones while the weights are found.
/// grid: (tokens of the longest sequence * q_heads, sequences)
MC_KERNEL(attention_combine, (kThreads))(MC_PARAM(AttentionArgs) args, int32_t head_dim) {
  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_y());
  const int64_t own_row = ptx::ctaid_x(), rows = int64_t{args.split_tokens} * args.q_heads;
  const int64_t row = int64_t{sequence.first_token} * args.q_heads + own_row;
  const int column = ptx::tid_x(), splits = column < head_dim ? sequence.splits : 0;
  if (sequence.splits == 1 || own_row >= int64_t{sequence.tokens} * args.q_heads) return;
  const uint32_t weights = ptx::dynamic_shared<16>();
  float parts[kPartsAhead] = {};
  const auto load_parts = [&](int first) {
    const float* from = args.split_o + (first * rows + row) * head_dim + column;
#pragma unroll
    for (int i = 0; i < kPartsAhead; ++i)
      if (first + i < splits) parts[i] = ptx::load(from + i * rows * head_dim);
  };
  load_parts(0);
  if (ptx::tid_x() < 32) weigh_splits(args, sequence.splits, row, rows, weights);
  ptx::barrier_all();
  Merged<1> merged;
  for (int first = 0; first < splits; first += kPartsAhead) {
    if (first > 0) load_parts(first);
#pragma unroll
    for (int i = 0; i < kPartsAhead; ++i) {
      if (first + i >= splits) continue;
      const uint32_t at = weights + (first + i) * 4;
      merged.add(ptx::load_shared_f32(at), ptx::load_shared_f32(at + kSums), {parts[i]});
    }
  }
  if (column >= head_dim) return;
  const uint32_t pair = ptx::pack_bf16(merged.o[0] * merged.inverse(), 0);
  ptx::store(args.out + row * head_dim + column, static_cast<uint16_t>(pair));
}

}  // namespace mc::gpu

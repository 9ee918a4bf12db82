// The portable attention kernels (attend.cuh): prefill and decode for head dimensions 64 and 128, and the merge of
// splits. PTX for sm_80, which the driver of every later chip compiles.
#include "gpu/kernels/attend.cuh"

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

/// Merges the splits of one row: one thread for each two elements of the head.
/// grid: (tokens of the longest sequence * q_heads, sequences)
MC_KERNEL(attention_combine, (kThreads))(MC_PARAM(AttentionArgs) args, int32_t head_dim) {
  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_y());
  const int64_t own_row = ptx::ctaid_x(), rows = int64_t{args.split_tokens} * args.q_heads;
  const int64_t row = int64_t{sequence.first_token} * args.q_heads + own_row;
  const int column = 2 * ptx::tid_x();
  if (sequence.splits == 1 || own_row >= int64_t{sequence.tokens} * args.q_heads || column >= head_dim) return;
  Merged merged;
  for (int split = 0; split < sequence.splits; ++split) {
    const int64_t at = split * rows + row;
    const float* o = args.split_o + at * head_dim + column;
    merged.add(ptx::load(args.split_m + at), ptx::load(args.split_d + at), ptx::load(o), ptx::load(o + 1));
  }
  merged.store(args.out + row * head_dim + column);
}

}  // namespace mc::gpu

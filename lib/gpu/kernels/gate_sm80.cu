// MoBA's gate on the device (arXiv:2502.13189, section 2.2): centroids of complete blocks from the sums that pages
// carry, and the top_k - 1 blocks of every row. Neither a matrix of all scores nor a sort of all blocks is formed: a
// warp scores 16 rows against 8 blocks at a time by mma.sync, and each thread keeps sorted lists of its best.
#include "gpu/kernels/gate.cuh"
#include "gpu/ptx/arithmetic.cuh"

namespace mc::gpu {

/// Centroid of a block: bf16(sum of its pages' ksum, in page order, / tokens); of one page: its kmean. These are the
/// sums of attn/seal.h, so a block's centroid is the same bits on every device.
/// grid: (blocks of the longest MoBA sequence, kv_heads, sequences)
MC_KERNEL(moba_centroids, (kThreads))(MC_PARAM(CentroidArgs) args) {
  const KvPool& pool = args.pool;
  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_z());
  const int block = ptx::ctaid_x(), head = ptx::ctaid_y(), dim = ptx::tid_x();
  if (sequence.mode.kind != attn::ModeKind::moba || dim >= args.head_dim) return;
  const int64_t blocks = sequence.kv_len / sequence.mode.block;
  if (block >= blocks) return;
  const int pages = sequence.mode.block / pool.block_tokens;
  uint16_t* out = const_cast<uint16_t*>(sequence.centroids) + (head * blocks + block) * args.head_dim + dim;
  float sum = 0;
  for (int i = 0; i < pages; ++i) {
    const int64_t page = ptx::load(sequence.pages + block * pages + i);
    const unsigned char* record = pool.base + page * pool.page_bytes + head * pool.head_bytes;
    if (pages == 1) {
      ptx::store(out, ptx::load(reinterpret_cast<const uint16_t*>(record + pool.kmean_offset) + dim));
      return;
    }
    const float one = ptx::load(reinterpret_cast<const float*>(record + pool.ksum_offset) + dim);
    sum = i == 0 ? one : ptx::add_rn(sum, one);
  }
  ptx::store(out, static_cast<uint16_t>(ptx::pack_bf16(ptx::div_rn(sum, static_cast<float>(sequence.mode.block)), 0)));
}

namespace {

/// Merges the lists of the four threads of a row and writes the first `count`, ascending, then -1.
MC_DEVICE void write_choice(Best& best, int count, int32_t* out) {
  int32_t winners[kChosenMax];
#pragma unroll
  for (int i = 0; i < kChosenMax; ++i) {
    winners[i] = kNone;
    if (i < count) winners[i] = best.pop<4>().block;
  }
  if (out == nullptr || ptx::tid_x() % 4 != 0) return;
#pragma unroll
  for (int i = 0; i < kChosenMax; ++i) {
    if (i >= count) continue;
    int rank = 0;  // winners before this one in the output
#pragma unroll
    for (int k = 0; k < kChosenMax; ++k)
      if (k < count && winners[k] != kNone) rank += winners[i] == kNone || winners[k] < winners[i] ? 1 : 0;
    if (winners[i] != kNone) ptx::store(out + rank, winners[i]);
    if (winners[i] == kNone) ptx::store(out + i, kNone);  // the empty ones are the last winners
  }
}

template <int kDim>
MC_DEVICE void choose(const GateArgs& args) {
  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_z());
  const int kv_head = ptx::ctaid_y(), group = args.q_heads / args.pool.kv_heads;
  const int lane = ptx::tid_x() % 32;
  const int first = static_cast<int>(ptx::ctaid_x()) * 64 + static_cast<int>(ptx::tid_x() / 32) * 16;
  if (sequence.mode.kind != mc::attn::ModeKind::moba || first >= sequence.tokens * group) return;
  int64_t index[2], candidates[2];
  uint32_t q[kDim / 16][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int number = first + lane / 4 + 8 * half, token = number / group;
    const bool real = token < sequence.tokens;
    const int64_t position = sequence.q_begin + token;
    const bool chooses = real && position >= mc::attn::moba_dense_below(sequence.mode.block, sequence.mode.top_k);
    index[half] = real ? int64_t{sequence.first_token + token} * args.q_heads + kv_head * group + number % group : -1;
    candidates[half] = chooses ? position / sequence.mode.block : 0;
    const uint32_t* row = reinterpret_cast<const uint32_t*>(args.q + (real ? index[half] * kDim : 0));
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      q[step][half] = real ? ptx::load(row + step * 8 + lane % 4) : 0;
      q[step][2 + half] = real ? ptx::load(row + step * 8 + 4 + lane % 4) : 0;
    }
  }
  Best best[2];
  best[0].clear();
  best[1].clear();
  const int64_t blocks = sequence.kv_len / sequence.mode.block;
  offer_blocks<kDim>(best, q, candidates, 0, 8, [&](uint32_t (&b)[kDim / 16][2], int64_t block) {
    const uint32_t* row = reinterpret_cast<const uint32_t*>(sequence.centroids + (kv_head * blocks + block) * kDim);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      b[step][0] = ptx::load(row + step * 8 + lane % 4);
      b[step][1] = ptx::load(row + step * 8 + 4 + lane % 4);
    }
  });
#pragma unroll
  for (int half = 0; half < 2; ++half)
    write_choice(best[half], min(args.chosen, sequence.mode.top_k - 1),
                 index[half] < 0 ? nullptr : args.selection + index[half] * args.chosen);
}

}  // namespace

/// grid: (tiles of 64 rows of the longest sequence, kv_heads, sequences)
MC_KERNEL(moba_gate_d64, (kThreads))(MC_PARAM(GateArgs) args) {
  choose<64>(args);
}
MC_KERNEL(moba_gate_d128, (kThreads))(MC_PARAM(GateArgs) args) {
  choose<128>(args);
}

}  // namespace mc::gpu

// MoBA prefill by key blocks (arXiv:2502.13189, section 2.2): a CTA has one key block and up to kItemRows of the rows
// that chose it, of any head of the group, and writes the state of each row's attention to the block (a part). Every
// key of the block is seen by every row, so nothing is masked, and a row reads what it chose alone. The index
// (index_sm80.cu) names the rows; moba_merge attends to the rows' own blocks and merges the parts.
//
// A warp owns 16 rows at a time. A block of up to two key tiles stays in shared memory for all rows of the item; the
// tiles of a larger one are read once for each 64 rows. A part's o is rounded to bf16, for its way through memory costs
// more than its products when blocks are small.
#include "gpu/kernels/attend.cuh"

namespace mc::gpu {

namespace {

constexpr int kPassRows = 64;  // of all warps at a time
// The barriers of the first pass order the reads of its queries before the copies of the second one's.
static_assert(kItemRows == 2 * kPassRows);

/// A warp's rows of an item, from row `first` of it on.
struct ItemRows {
  const int32_t* list = nullptr;  // of the item
  int first = 0, count = 0;       // count: of the item
  MC_DEVICE bool has(int row) const { return first + row < count; }
};

/// Copies the warp's 16 query rows into its own part of shared memory and from there into fragments.
template <int kDim>
MC_DEVICE void gather_queries(const AttentionArgs& args, const Sequence& sequence, const ItemRows& rows, uint32_t tile,
                              uint32_t (&q)[kDim / 16][4]) {
  constexpr int kChunks = kDim / 8;
  const int lane = ptx::tid_x() % 32;
  for (int i = lane; i < 16 * kChunks; i += 32) {
    const int row = i / kChunks, chunk = i % kChunks;
    const uint16_t* from = args.q;
    if (rows.has(row)) {
      const int32_t number = ptx::load(rows.list + rows.first + row);
      from += int64_t{row_of(args, sequence, ptx::ctaid_y(), number).index} * kDim + chunk * 8;
    }
    ptx::cp_async_16(tile + chunk_at<kDim>(row, chunk), from, rows.has(row) ? 16 : 0);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::warp_sync();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
    ptx::ldmatrix_x4(q[step], tile + chunk_at<kDim>(lane % 16, 2 * step + lane / 16));
}

/// grid: (items of the largest sequence, kv_heads, sequences)
template <int kDim>
MC_DEVICE void attend_item(const AttentionArgs& args) {
  using Layout = SharedLayout<kDim, kPassRows>;
  static_assert(Layout::kUnion == routed_shared(kDim));
  const uint32_t base = ptx::dynamic_shared<128>();
  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_z());
  const int kv_head = ptx::ctaid_y(), warp = ptx::tid_x() / 32, lane = ptx::tid_x() % 32;
  const Item item = item_of(args, kv_head);
  const int32_t tiles = sequence.mode.block / kKeyTile, first_tile = item.block * tiles;
  ItemRows own{.list = item.list, .count = item.count};
  for (int pass = 0; pass * kPassRows < item.count; ++pass) {
    own.first = pass * kPassRows + 16 * warp;
    uint32_t q[kDim / 16][4];
    gather_queries<kDim>(args, sequence, own, base + 16 * warp * kDim * 2, q);
    const Row rows[2] = {{.end = INT32_MAX, .index = own.has(lane / 4) ? 0 : -1},
                         {.end = INT32_MAX, .index = own.has(lane / 4 + 8) ? 0 : -1}};
    Accumulator<kDim> acc;
    acc.clear();
    const bool stays = pass > 0 && tiles <= 2;
    if (!stays) load_tile<kDim>(args.pool, sequence, kv_head, first_tile, base + Layout::kStages);
    ptx::cp_async_commit();
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const uint32_t stage = base + Layout::kStages + tile % 2 * 2 * Layout::kTile;
      const uint32_t spare = base + Layout::kStages + (tile + 1) % 2 * 2 * Layout::kTile;
      if (!stays) {
        if (tile + 1 < tiles) load_tile<kDim>(args.pool, sequence, kv_head, first_tile + tile + 1, spare);
        ptx::cp_async_commit();
        ptx::cp_async_wait<1>();
        ptx::barrier_all();
      }
      if (own.has(0)) {
        float s[kKeyTile / 8][4];
        scores<kDim, kKeyTile>(s, q, stage, 0);
        soften<kDim, kKeyTile>(s, acc, rows, {}, 0, scale_of(args));
        weigh<kDim, kKeyTile>(acc, s, stage + Layout::kTile, 0);
      }
      if (!stays) ptx::barrier_all();
    }
    store_parts<kDim>(args, acc, own.first, item);
  }
}

}  // namespace

MC_KERNEL(moba_routed_d64, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend_item<64>(args);
}
MC_KERNEL(moba_routed_d128, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend_item<128>(args);
}

/// The rows' own keys, and the merge of their parts. grid: as that of attention_prefill, without splits
MC_KERNEL(moba_merge_d64, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend<64, 4, true>(args);
}
MC_KERNEL(moba_merge_d128, (kThreads))(MC_PARAM(AttentionArgs) args) {
  attend<128, 4, true>(args);
}

}  // namespace mc::gpu

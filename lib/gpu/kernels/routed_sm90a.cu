// MoBA prefill by key blocks for Hopper: what routed_sm80.cu computes, with the pipeline of attend_hopper.cuh. A CTA
// has one key block and up to kItemRows of the rows that chose it. Its producer warp fetches the block's key tiles by
// TMA; each warpgroup gathers 64 query rows by cp.async, because TMA of sm_90 has no gather, and walks the block's keys
// with the output in registers. An item of at most 64 rows leaves the second warpgroup idle.
#include "gpu/kernels/attend_hopper.cuh"

namespace mc::gpu {

namespace {

static_assert(kItemRows == kTileRows);

/// grid: (items of the largest sequence, kv_heads, sequences)
template <int kDim>
MC_DEVICE void attend_item(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map) {
  const uint32_t base = ptx::dynamic_shared<1024>();
  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_z());
  const int kv_head = static_cast<int>(ptx::ctaid_y()), group = static_cast<int>(ptx::tid_x() / 128);
  const Item item = item_of(args, kv_head);
  if (item.count == 0) return;
  const int groups = (item.count + 63) / 64;
  make_barriers<kDim>(base, groups);
  ptx::barrier_all();
  const int32_t tiles = sequence.mode.block / kKeyTile, tile = item.block * tiles;
  const Walk walk{.end = tile + tiles};
  if (group == kGroups) {
    ptx::decrease_registers<40>();
    Ring ring{.parity = 1};
    if (ptx::tid_x() == 128 * kGroups) produce<kDim>(args, sequence, k_map, v_map, walk, tile, base, ring);
    return;
  }
  ptx::increase_registers<232>();
  if (group >= groups) return;
  const int32_t* list = item.list;
  HeldQueries<kDim> queries = hold_queries<kDim>(
      args,
      [&](int row) {
        const int at = 64 * group + row;
        return at < item.count ? row_of(args, sequence, kv_head, ptx::load(list + at)).index : -1;
      },
      base);
  const int first = 64 * group + 16 * static_cast<int>(ptx::tid_x() % 128 / 32);
  const int own = first + static_cast<int>(ptx::tid_x() % 32 / 4);
  Row rows[2] = {{.end = INT32_MAX, .index = own < item.count ? 0 : -1},
                 {.end = INT32_MAX, .index = own + 8 < item.count ? 0 : -1}};
  Accumulator<kDim> acc;
  Ring ring;
  consume<kDim, Masks::none>(args, sequence, walk, tile, rows, queries, base, ring, acc);
  store_parts<kDim>(args, acc, first, item);
}

}  // namespace

MC_KERNEL(moba_wide_d64, (kHopperThreads, 1))
(MC_PARAM(AttentionArgs) args, MC_PARAM(TensorMap) k_map, MC_PARAM(TensorMap) v_map) {
  attend_item<64>(args, k_map, v_map);
}
MC_KERNEL(moba_wide_d128, (kHopperThreads, 1))
(MC_PARAM(AttentionArgs) args, MC_PARAM(TensorMap) k_map, MC_PARAM(TensorMap) v_map) {
  attend_item<128>(args, k_map, v_map);
}

/// The rows' own keys, and the merge of their parts; the blocks of union tiles too. grid: as that of attention_hopper,
/// without splits
MC_KERNEL(moba_merge_hopper_d64, (kHopperThreads, 1))
(MC_PARAM(AttentionArgs) args, MC_PARAM(TensorMap) k_map, MC_PARAM(TensorMap) v_map) {
  attend_hopper<64, true>(args, k_map, v_map);
}
MC_KERNEL(moba_merge_hopper_d128, (kHopperThreads, 1))
(MC_PARAM(AttentionArgs) args, MC_PARAM(TensorMap) k_map, MC_PARAM(TensorMap) v_map) {
  attend_hopper<128, true>(args, k_map, v_map);
}

}  // namespace mc::gpu

// Shape S of MoBA prefill by key blocks: a small block stays in shared memory, and the rows that chose it stream past
// it, for lists of many rows. A CTA has one key block and up to kStationaryItemRows rows of its list. Its producer warp
// fetches each key tile once; a warpgroup takes every second 64 rows, and gathers the next ones while it attends with
// the present ones. Rows and bits are those of moba_wide (routed_sm90a.cu).
#include "gpu/kernels/attend_hopper.cuh"

namespace mc::gpu {

namespace {

constexpr int kTilesMax = kStationaryBlockMax / kKeyTile;

/// Shared memory: two query tiles for each warpgroup, and the key tiles of the block behind them.
template <int kDim>
struct StationaryLayout {
  static constexpr uint32_t kTile = HopperLayout<kDim>::kTile;
  static constexpr uint32_t kKeys = 2 * kGroups * kTile;
  uint32_t base = 0, barriers = 0;

  MC_DEVICE uint32_t q_tile(int group, int turn) const { return base + (2 * group + turn) * kTile; }
  MC_DEVICE uint32_t k_tile(int tile) const { return base + kKeys + tile * 2 * kTile; }
  MC_DEVICE uint32_t full(int tile) const { return barriers + tile * 8; }
};

/// grid: (items of the largest sequence, kv_heads, sequences)
template <int kDim>
MC_DEVICE void attend_list(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map) {
  using Layout = StationaryLayout<kDim>;
  static_assert(Layout::kKeys + kTilesMax * 2 * Layout::kTile + kHopperBarrierBytes == stationary_shared(kDim));
  static_assert(kTilesMax * 8 <= kHopperBarrierBytes);
  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_z());
  const int kv_head = static_cast<int>(ptx::ctaid_y()), group = static_cast<int>(ptx::tid_x() / 128);
  const int tiles = sequence.mode.block / kKeyTile;
  Layout at{.base = ptx::dynamic_shared<1024>()};
  at.barriers = at.k_tile(tiles);
  const Item item = item_of(args, kv_head);
  if (item.count == 0) return;
  if (ptx::tid_x() == 0) {
    for (int tile = 0; tile < tiles; ++tile) ptx::mbarrier_init(at.full(tile), 1);
    ptx::mbarrier_init_fence();
  }
  ptx::barrier_all();
  if (group == kGroups) {
    if (ptx::tid_x() > 128 * kGroups) return;
    for (int tile = 0; tile < tiles; ++tile)
      fetch_tile<kDim>(args, sequence, k_map, v_map, item.block * tiles + tile, at.k_tile(tile), at.full(tile));
    return;
  }
  const auto gather = [&](int first, int turn) {
    copy_queries<kDim>(
        args,
        [&](int row) {
          return first + row < item.count ? row_of(args, sequence, kv_head, ptx::load(item.list + first + row)).index
                                          : -1;
        },
        at.q_tile(group, turn));
  };
  constexpr int kStep = 64 * kGroups;
  const int warp_row = 16 * static_cast<int>(ptx::tid_x() % 128 / 32);
  int turn = 0;
  if (64 * group < item.count) gather(64 * group, 0);
  for (int first = 64 * group; first < item.count; first += kStep, turn ^= 1) {
    show_queries();
    meet_group(group);
    // The warpgroup has met behind its last products with the other tile.
    if (first + kStep < item.count) gather(first + kStep, turn ^ 1);
    SharedQueries queries{at.q_tile(group, turn)};
    const auto see_all = [](Acc(&)[32]) {};
    HopperState<kDim> state;
    state.clear();
    ptx::mbarrier_wait(at.full(0), 0);
    state.begin(queries, at.k_tile(0), scale_of(args), see_all);
    for (int tile = 1; tile < tiles; ++tile) {
      ptx::mbarrier_wait(at.full(tile), 0);
      state.next(queries, at.k_tile(tile), at.k_tile(tile - 1) + Layout::kTile, scale_of(args), see_all, [] {});
    }
    state.end(at.k_tile(tiles - 1) + Layout::kTile);
    Accumulator<kDim> acc;
    state.move_to(acc);
    store_parts<kDim>(args, acc, first + warp_row, item);
  }
}

}  // namespace

MC_KERNEL(moba_stationary_d64, (kStationaryThreads, 1))
(MC_PARAM(AttentionArgs) args, MC_PARAM(TensorMap) k_map, MC_PARAM(TensorMap) v_map) {
  attend_list<64>(args, k_map, v_map);
}
MC_KERNEL(moba_stationary_d128, (kStationaryThreads, 1))
(MC_PARAM(AttentionArgs) args, MC_PARAM(TensorMap) k_map, MC_PARAM(TensorMap) v_map) {
  attend_list<128>(args, k_map, v_map);
}

}  // namespace mc::gpu

// Shape T of MoBA prefill by key blocks, for short lists: keys take the 64 rows of wgmma and queries its columns, so
// that a list is padded to a multiple of 8 rows in place of 64. A CTA of one warpgroup has one key block and up to
// kTransposedItemRows of the rows that chose it:
//
//   S^T = K Q^T     a thread holds keys g and g + 8 of its warp's 16 (g = lane / 4), for two of each 8 queries
//   maxima, sums    over the keys of a warp by shuffles, over the four warps through shared memory
//   O^T += V^T P^T  P^T goes through shared memory, because B of wgmma always does
//
// Key tiles of 64, the order of the sums and the rounding are those of moba_wide (routed_sm90a.cu). So a part has the
// bits that shapes W and S give it, where the matrix units sum alike for both operands.
#include "gpu/kernels/attend_hopper.cuh"

namespace mc::gpu {

namespace {

constexpr int kStages = 2;

/// Shared memory: the queries, later the output; two stages of K and V; P; the maxima and sums of warps; the mbarriers.
template <int kDim>
struct TransposedLayout {
  static constexpr uint32_t kTile = HopperLayout<kDim>::kTile;
  static constexpr uint32_t kWeights = kTile * (1 + 2 * kStages);
  static constexpr uint32_t kMaxima = kWeights + kTransposedItemRows * kKeyTile * 2;
  static constexpr uint32_t kSums = kMaxima + 4 * kTransposedItemRows * 4;
  static constexpr uint32_t kBarriers = kSums + 4 * 4 * kSumsPitch * 4;
  static_assert(kBarriers + kHopperBarrierBytes == transposed_shared(kDim));
  static_assert(kTransposedItemRows == 64, "a query tile of wgmma");
  uint32_t base = 0;

  MC_DEVICE uint32_t k_tile(int stage) const { return base + kTile * (1 + 2 * stage); }
  MC_DEVICE uint32_t v_tile(int stage) const { return k_tile(stage) + kTile; }
  MC_DEVICE uint32_t weights() const { return base + kWeights; }
  /// The maximum over the 16 keys of a warp.
  MC_DEVICE uint32_t maximum(int warp, int query) const {
    return base + kMaxima + (warp * kTransposedItemRows + query) * 4;
  }
  /// The sum over those of them whose number has `pair` in its bits 1 and 2.
  MC_DEVICE uint32_t sum(int warp, int pair, int query) const {
    return base + kSums + ((warp * 4 + pair) * kSumsPitch + query) * 4;
  }
  MC_DEVICE uint32_t full(int stage) const { return base + kBarriers + stage * 8; }
};

/// A thread's place among the 64 x kColumns numbers of a product.
struct Lane {
  int warp = static_cast<int>(ptx::tid_x() / 32), lane = static_cast<int>(ptx::tid_x() % 32);
  /// Query number i of the thread.
  MC_DEVICE int query(int i) const { return 8 * (i / 2) + 2 * (lane % 4) + i % 2; }
  /// Its two keys of query i lie in registers at(i) and at(i) + 2.
  MC_DEVICE static constexpr int at(int i) { return 4 * (i / 2) + i % 2; }
};

/// The running maxima and sums of a thread's queries. A sum is over the keys whose number has the thread's pair.
template <int kColumns>
struct ColumnState {
  static constexpr int kQueries = kColumns / 4;
  float m[kQueries], d[kQueries], keep[kQueries];
};

/// Stores 64 x kColumns numbers, rounded to bf16, as kColumns rows of 128 bytes, swizzled.
template <int kColumns>
MC_DEVICE void store_transposed(const Acc (&s)[kColumns / 2], uint32_t tile) {
  const Lane at;
  const int row = at.lane % 8 + at.lane / 16 * 8, chunk = 2 * at.warp + at.lane / 8 % 2;
#pragma unroll
  for (int j = 0; j < kColumns / 8; j += 2) {
    const bool has_second = j + 1 < kColumns / 8;  // else 8 rows of zeros, which nothing reads
    const int k = has_second ? 4 * j + 4 : 4 * j;
    const uint32_t values[4] = {ptx::pack_bf16(s[4 * j], s[4 * j + 1]), ptx::pack_bf16(s[4 * j + 2], s[4 * j + 3]),
                                has_second ? ptx::pack_bf16(s[k], s[k + 1]) : 0,
                                has_second ? ptx::pack_bf16(s[k + 2], s[k + 3]) : 0};
    ptx::stmatrix_x4_trans(swizzle(tile + (8 * j + row) * 128 + chunk * 16), values);
  }
}

/// S^T = K Q^T.
template <int kDim, int kColumns>
MC_DEVICE void score_columns(Acc (&s)[kColumns / 2], uint32_t q_tile, uint32_t k_tile) {
  ptx::wgmma_fence(s);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const uint32_t at = step / 4 * HopperLayout<kDim>::kColumn + step % 4 * 32;
    ptx::wgmma_ss<kColumns, 0>(s, ptx::descriptor(k_tile + at, 16), ptx::descriptor(q_tile + at, 16), step > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(s);
}

/// Writes the warp's maxima, scaled. The CTA meets before soften_columns() reads those of all warps.
template <int kDim, int kColumns>
MC_DEVICE void share_maxima(const Acc (&s)[kColumns / 2], const TransposedLayout<kDim>& layout, float scale_log2) {
  const Lane at;
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    float top = ptx::max_f32(s[Lane::at(i)], s[Lane::at(i) + 2]);
#pragma unroll
    for (uint32_t by = 4; by < 32; by *= 2) top = ptx::max_f32(top, ptx::shuffle_xor(top, by));
    if (at.lane < 4) ptx::store_shared_f32(layout.maximum(at.warp, at.query(i)), ptx::mul_rn(top, scale_log2));
  }
}

/// Turns scores into weights and writes them, and the warp's sums, to shared memory.
template <int kDim, int kColumns>
MC_DEVICE void soften_columns(Acc (&s)[kColumns / 2], ColumnState<kColumns>& state,
                              const TransposedLayout<kDim>& layout, float scale_log2) {
  const Lane at;
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    const int query = at.query(i);
    float top = state.m[i];
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) top = ptx::max_f32(top, ptx::load_shared_f32(layout.maximum(warp, query)));
    const float base = top == kMinusInf ? 0 : top;
    state.keep[i] = ptx::has_fault(Fault::sums_not_rescaled) ? 1 : ptx::exp2_approx(state.m[i] - base);
    state.m[i] = top;
    s[Lane::at(i)] = weight_of(s[Lane::at(i)], scale_log2, base);
    s[Lane::at(i) + 2] = weight_of(s[Lane::at(i) + 2], scale_log2, base);
    float sum = s[Lane::at(i)] + s[Lane::at(i) + 2];
    sum += ptx::shuffle_xor(sum, 4);
    if (at.lane / 4 % 2 == 0) ptx::store_shared_f32(layout.sum(at.warp, at.lane / 8, query), sum);
  }
  store_transposed<kColumns>(s, layout.weights());
  ptx::fence_async_shared();
}

/// Adds the sums of all warps to the running ones.
template <int kDim, int kColumns>
MC_DEVICE void add_sums(ColumnState<kColumns>& state, const TransposedLayout<kDim>& layout) {
  const Lane at;
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    float sum[4];
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) sum[warp] = ptx::load_shared_f32(layout.sum(warp, at.lane / 8, at.query(i)));
    state.d[i] = rescaled_sum(state.d[i], state.keep[i], (sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
}

/// O^T += V^T P^T: V is M-major, 16 keys of it are 2048 bytes; P^T is K-major.
template <int kDim, int kColumns>
MC_DEVICE void weigh_columns(Acc (&o)[kDim / 64][kColumns / 2], const ColumnState<kColumns>& state, uint32_t v_tile,
                             uint32_t weights) {
#pragma unroll
  for (int part = 0; part < kDim / 64; ++part)
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      o[part][Lane::at(i)] *= state.keep[i];
      o[part][Lane::at(i) + 2] *= state.keep[i];
    }
  ptx::wgmma_fence(o);
#pragma unroll
  for (int part = 0; part < kDim / 64; ++part)
#pragma unroll
    for (int step = 0; step < 4; ++step)
      ptx::wgmma_ss<kColumns, 1>(o[part],
                                 ptx::descriptor(v_tile + part * HopperLayout<kDim>::kColumn + step * 2048, 16),
                                 ptx::descriptor(weights + step * 32, 16), true);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(o);
}

/// Writes the parts of the item's rows, whose o goes through the query tile: nothing reads it any more.
template <int kDim, int kColumns>
MC_DEVICE void store_columns(const AttentionArgs& args, const Acc (&o)[kDim / 64][kColumns / 2],
                             const ColumnState<kColumns>& state, const Item& item, uint32_t tile) {
  constexpr int kWords = kDim / 2;  // of a row
  const Routing routing = ptx::load(args.routing + ptx::ctaid_z());
  const int64_t place = int64_t{ptx::ctaid_y()} * routing.entries + item.first;
  const int count = ptx::has_fault(Fault::item_loses_row) ? item.count - 1 : item.count;
#pragma unroll
  for (int part = 0; part < kDim / 64; ++part)
    store_transposed<kColumns>(o[part], tile + part * HopperLayout<kDim>::kColumn);
  const Lane at;
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    float d = state.d[i];
    d += ptx::shuffle_xor(d, 8);
    d += ptx::shuffle_xor(d, 16);
    if (at.warp > 0 || at.lane >= 4 || at.query(i) >= count) continue;
    ptx::store(routing.m + place + at.query(i), state.m[i]);
    ptx::store(routing.d + place + at.query(i), d);
  }
  ptx::barrier_all();
  for (int i = static_cast<int>(ptx::tid_x()); i < count * kWords; i += kThreads) {
    const int row = i / kWords, word = i % kWords;
    const uint32_t from = tile + word / 32 * HopperLayout<kDim>::kColumn + row * 128 + word % 32 * 4;
    ptx::store(reinterpret_cast<uint32_t*>(routing.o + (place + row) * kDim) + word,
               ptx::load_shared_u32(swizzle(from)));
  }
}

/// Attends to the item's block for its rows, which are kColumns at most.
template <int kDim, int kColumns>
MC_DEVICE void attend_columns(const AttentionArgs& args, const Sequence& sequence, const TensorMap& k_map,
                              const TensorMap& v_map, const Item& item, const TransposedLayout<kDim>& layout) {
  const int kv_head = static_cast<int>(ptx::ctaid_y());
  const int32_t tiles = sequence.mode.block / kKeyTile, first_tile = item.block * tiles;
  const auto fetch = [&](int32_t tile) {
    const int stage = tile % kStages;
    if (ptx::tid_x() == 0 && tile < tiles)
      fetch_tile<kDim>(args, sequence, k_map, v_map, first_tile + tile, layout.k_tile(stage), layout.full(stage));
  };
  fetch(0);
  fetch(1);
  copy_queries<kDim, kColumns>(
      args,
      [&](int row) {
        return row < item.count ? row_of(args, sequence, kv_head, ptx::load(item.list + row)).index : -1;
      },
      layout.base);
  show_queries();
  ptx::barrier_all();
  Acc s[kColumns / 2] = {}, o[kDim / 64][kColumns / 2] = {};
  ColumnState<kColumns> state;
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) state.m[i] = kMinusInf, state.d[i] = 0;
  for (int32_t tile = 0; tile < tiles; ++tile) {
    const int stage = tile % kStages;
    ptx::mbarrier_wait(layout.full(stage), static_cast<uint32_t>(tile / kStages % 2));
    score_columns<kDim, kColumns>(s, layout.base, layout.k_tile(stage));
    share_maxima<kDim, kColumns>(s, layout, scale_of(args));
    ptx::barrier_all();
    // All warps have waited for their products with the tile before, whose stage is free.
    if (tile > 0) fetch(tile + 1);
    soften_columns<kDim, kColumns>(s, state, layout, scale_of(args));
    ptx::barrier_all();
    add_sums<kDim, kColumns>(state, layout);
    weigh_columns<kDim, kColumns>(o, state, layout.v_tile(stage), layout.weights());
  }
  store_columns<kDim, kColumns>(args, o, state, item, layout.base);
}

/// grid: (items of the largest sequence, kv_heads, sequences)
template <int kDim>
MC_DEVICE void attend_item(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map) {
  const TransposedLayout<kDim> layout{.base = ptx::dynamic_shared<1024>()};
  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_z());
  const Item item = item_of(args, static_cast<int>(ptx::ctaid_y()));
  if (item.count == 0) return;
  if (ptx::tid_x() == 0) {
    for (int stage = 0; stage < kStages; ++stage) ptx::mbarrier_init(layout.full(stage), 1);
    ptx::mbarrier_init_fence();
  }
  if (item.count <= 8) return attend_columns<kDim, 8>(args, sequence, k_map, v_map, item, layout);
  if (item.count <= 16) return attend_columns<kDim, 16>(args, sequence, k_map, v_map, item, layout);
  if (item.count <= 24) return attend_columns<kDim, 24>(args, sequence, k_map, v_map, item, layout);
  if (item.count <= 32) return attend_columns<kDim, 32>(args, sequence, k_map, v_map, item, layout);
  if (item.count <= 48) return attend_columns<kDim, 48>(args, sequence, k_map, v_map, item, layout);
  attend_columns<kDim, 64>(args, sequence, k_map, v_map, item, layout);
}

}  // namespace

MC_KERNEL(moba_transposed_d64, (kThreads))
(MC_PARAM(AttentionArgs) args, MC_PARAM(TensorMap) k_map, MC_PARAM(TensorMap) v_map) {
  attend_item<64>(args, k_map, v_map);
}
MC_KERNEL(moba_transposed_d128, (kThreads))
(MC_PARAM(AttentionArgs) args, MC_PARAM(TensorMap) k_map, MC_PARAM(TensorMap) v_map) {
  attend_item<128>(args, k_map, v_map);
}

}  // namespace mc::gpu

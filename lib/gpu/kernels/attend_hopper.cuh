// Prefill attention for Hopper (sm_90a). A CTA has two warpgroups of 64 rows each and one warp that fetches K and V:
//
//   producer warp   for each key tile: wait(empty), announce the bytes, copy the boxes of K and V (TMA)
//   warpgroups      wait(full), S = Q K^T (wgmma), online softmax, O += P V (wgmma, P in registers), arrive(empty)
//
// A warpgroup issues the scores of a tile together with the weighted sum of the tile before it, and takes the softmax
// of the new scores while that sum runs (FlashAttention-3, arXiv:2407.08608, section 3.2): the tensor cores have work
// of this warpgroup or of the other one all the time.
//
// A ring of kHopperStages stages lies between producer and warpgroups: `full` counts the producer's arrival and the
// bytes of its copies, `empty` one arrival of each consuming warp. The tiles, rows, masks and the union of MoBA blocks
// are those of attend.cuh.
#pragma once

#include "gpu/kernels/attend.cuh"
#include "gpu/ptx/bulk.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/wgmma.cuh"

namespace mc::gpu {

constexpr int kGroups = 2;  // consuming warpgroups
constexpr int kTileRows = 64 * kGroups;
static_assert(kHopperThreads == 128 * (kGroups + 1));
enum Barrier { kQueryBarrier = 1, kTailBarrier = kQueryBarrier + kGroups };  // ids of bar.sync; 0 is __syncthreads

/// Shared memory. Tiles are columns of 64 elements, 128 bytes a row, swizzled by 128 bytes: each starts at a multiple
/// of 1024.
template <int kDim>
struct HopperLayout {
  static constexpr uint32_t kColumn = 64 * 128;  // bytes of 64 rows of 64 elements
  static constexpr uint32_t kTile = kColumn * (kDim / 64);
  static constexpr uint32_t kStage0 = kGroups * kTile;
  static constexpr uint32_t kBarriers = kStage0 + kHopperStages * 2 * kTile;
  static constexpr uint32_t kUnion = kBarriers + kHopperBarrierBytes;
  static constexpr uint32_t kBytes = kUnion + kUnionBlocksMax / 8;
  MC_DEVICE static uint32_t k_tile(uint32_t base, int stage) { return base + kStage0 + stage * 2 * kTile; }
  MC_DEVICE static uint32_t v_tile(uint32_t base, int stage) { return k_tile(base, stage) + kTile; }
  MC_DEVICE static uint32_t full(uint32_t base, int stage) { return base + kBarriers + stage * 16; }
  MC_DEVICE static uint32_t empty(uint32_t base, int stage) { return full(base, stage) + 8; }
};

/// The swizzle of 128 bytes on absolute shared addresses: bits 4 to 6 ^= bits 7 to 9.
MC_DEVICE uint32_t swizzle(uint32_t address) {
  return address ^ (address >> 3 & 0x70);
}

/// A place in the ring of stages. A producer begins with parity 1: of a fresh barrier the phase before the first counts
/// as over.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  MC_DEVICE void next() {
    stage = stage + 1 == kHopperStages ? 0 : stage + 1;
    if (stage == 0) parity ^= 1;
  }
};

/// Queues the copies of K and V of one key tile, which `full` announces.
template <int kDim>
MC_DEVICE void fetch_tile(const AttentionArgs& args, const Sequence& sequence, const TensorMap& k_map,
                          const TensorMap& v_map, int32_t tile, uint32_t k_tile, uint32_t full) {
  using Layout = HopperLayout<kDim>;
  ptx::mbarrier_arrive_expect(full, 2 * Layout::kTile);
  const int32_t key = tile * kKeyTile, page = key / args.pool.block_tokens;
  const int row = key - page * args.pool.block_tokens, head = ptx::ctaid_y();
  const int number = ptx::load(sequence.pages + page);
#pragma unroll
  for (int column = 0; column < kDim / 64; ++column) {
    const uint32_t at = k_tile + column * Layout::kColumn;
    ptx::load_box(at, k_map, column * 64, row, head, number, full);
    ptx::load_box(at + Layout::kTile, v_map, column * 64, row, head, number, full);
  }
}

/// One lane fetches every tile of the walk.
template <int kDim>
MC_DEVICE void produce(const AttentionArgs& args, const Sequence& sequence, const TensorMap& k_map,
                       const TensorMap& v_map, const Walk& walk, int32_t tile, uint32_t base, Ring& ring) {
  using Layout = HopperLayout<kDim>;
  for (tile = walk.next(tile); tile < walk.end; tile = walk.next(tile + 1), ring.next()) {
    ptx::mbarrier_wait(Layout::empty(base, ring.stage), ring.parity);
    fetch_tile<kDim>(args, sequence, k_map, v_map, tile, Layout::k_tile(base, ring.stage),
                     Layout::full(base, ring.stage));
  }
}

/// Queues the copies of the warpgroup's kRows query rows into its tile. `index_of` gives the place of a row in q, -1
/// when there is no such row. It may divide and load, so one lane asks for a row on behalf of its warp.
template <int kDim, int kRows = 64, class IndexOf>
MC_DEVICE void copy_queries(const AttentionArgs& args, const IndexOf& index_of, uint32_t tile) {
  constexpr int kChunks = kDim / 8, kOfWarp = kRows / 4;
  const int lane = ptx::tid_x() % 32, first = kOfWarp * static_cast<int>(ptx::tid_x() % 128 / 32);
  const int32_t asked = index_of(first + lane % kOfWarp);
#pragma unroll
  for (int i = 0; i < (kOfWarp * kChunks + 31) / 32; ++i) {
    const int row = (32 * i + lane) / kChunks, chunk = lane % kChunks;
    const int32_t index = ptx::shuffle_from(asked, row);
    if (row >= kOfWarp) continue;
    const uint16_t* from = args.q + (index < 0 ? 0 : int64_t{index} * kDim + chunk * 8);
    const uint32_t to = tile + (chunk / 8) * HopperLayout<kDim>::kColumn + (first + row) * 128 + chunk % 8 * 16;
    ptx::cp_async_16(swizzle(to), from, index < 0 ? 0 : 16);
  }
  ptx::cp_async_commit();
}

/// Waits for the copies of queries and makes the rows visible to wgmma, once the warpgroup has met.
MC_DEVICE void show_queries() {
  ptx::cp_async_wait<0>();
  ptx::fence_async_shared();
}

/// The queries of a warpgroup, K-major in shared memory: 16 elements of a row are 32 bytes, 64 of them one column.
struct SharedQueries {
  uint32_t tile = 0;
};

/// The queries of a warpgroup as fragments of A. wgmma then reads K alone from shared memory, whose bandwidth two
/// operands would fill.
template <int kDim>
struct HeldQueries {
  uint32_t a[kDim / 16][4];

  MC_DEVICE void load(uint32_t tile) {
    const int lane = ptx::tid_x() % 32, row = 16 * (ptx::tid_x() % 128 / 32) + lane % 16;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int chunk = 2 * step + lane / 16;
      ptx::ldmatrix_x4(a[step], swizzle(tile + chunk / 8 * HopperLayout<kDim>::kColumn + row * 128 + chunk % 8 * 16));
    }
  }
};

/// Issues s = q k^T. K is K-major.
template <int kDim>
MC_DEVICE void issue_scores(Acc (&s)[32], const SharedQueries& q, uint32_t k_tile) {
  ptx::wgmma_fence(s);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const uint32_t at = step / 4 * HopperLayout<kDim>::kColumn + step % 4 * 32;
    ptx::wgmma_64x64_ss(s, ptx::descriptor(q.tile + at, 16), ptx::descriptor(k_tile + at, 16), step > 0);
  }
  ptx::wgmma_commit();
}
template <int kDim>
MC_DEVICE void issue_scores(Acc (&s)[32], HeldQueries<kDim>& q, uint32_t k_tile) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) ptx::wgmma_hold(q.a[step]);
  ptx::wgmma_fence(s);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const uint32_t at = step / 4 * HopperLayout<kDim>::kColumn + step % 4 * 32;
    ptx::wgmma_64x64_rs_k(s, q.a[step], ptx::descriptor(k_tile + at, 16), step > 0);
  }
  ptx::wgmma_commit();
}

/// d * keep + sum, not fused.
MC_DEVICE float rescaled_sum(float d, float keep, float sum) {
  return ptx::add_rn(ptx::mul_rn(d, keep), sum);
}

/// 2^(score * scale - base): the weight of a key, whose row has the scaled maximum `base`.
MC_DEVICE float weight_of(float score, float scale_log2, float base) {
  return ptx::exp2_approx(ptx::fma_rn(score, scale_log2, -base));
}

/// Masks of a tile: which of its keys a row does not see.
enum class Masks : uint8_t {
  none,     // every row sees every key
  own,      // a row sees its own keys
  members,  // and those of the blocks that it chose
};

/// The keys that all rows of a warp see as their own: [first, end).
struct CommonKeys {
  int32_t first = 0, end = INT32_MAX;

  MC_DEVICE explicit CommonKeys(const Row (&rows)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (rows[half].index < 0) continue;
      first = max(first, rows[half].first);
      end = min(end, rows[half].end);
    }
#pragma unroll
    for (uint32_t by = 1; by < 32; by *= 2) {
      first = max(first, ptx::shuffle_xor(first, by));
      end = min(end, ptx::shuffle_xor(end, by));
    }
  }
  MC_DEVICE bool has(int32_t key0) const { return key0 >= first && key0 + kKeyTile <= end; }
};

/// Gives the keys that a row does not see the score -inf.
MC_DEVICE void mask_tile(Acc (&s)[32], const Row (&rows)[2], const bool (&member)[2], int32_t key0) {
#pragma unroll
  for (int v = 0; v < 32; ++v) {
    const int half = v / 2 % 2;
    const Row& row = rows[half];
    const int32_t key = key0 + 8 * (v / 4) + 2 * (ptx::tid_x() % 4) + v % 2;
    const bool seen = row.index >= 0 && key < row.end && (key >= row.first || member[half]);
    s[v] = seen ? static_cast<float>(s[v]) : kMinusInf;
  }
}

/// The state of two rows of a thread, in wgmma's accumulators, which hold rows g and g + 8.
template <int kDim>
struct HopperState {
  Acc o[kDim / 2], s[32];
  uint32_t p[4][4];  // the weights of a tile, as fragments of A
  float m[2], d[2], keep[2];

  MC_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = 0;
    m[0] = m[1] = kMinusInf;
    d[0] = d[1] = 0;
  }

  /// Turns scores into weights, and updates the maxima and sums; `keep` becomes what o is to be multiplied by. The
  /// order of the sums is that of transposed_sm90a.cu, so that both give equal bits: keys 8 apart, then neighbours,
  /// then groups of 16 keys.
  MC_DEVICE void soften(float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = s[2 * half];
#pragma unroll
      for (int i = 2 * half; i < 32; i += 4) top = ptx::max_f32(ptx::max_f32(top, s[i]), s[i + 1]);
      top = ptx::max_f32(top, ptx::shuffle_xor(top, 1));
      top = ptx::max_f32(top, ptx::shuffle_xor(top, 2));
      top = ptx::max_f32(m[half], ptx::mul_rn(top, scale_log2));
      const float base = top == kMinusInf ? 0 : top;
      keep[half] = ptx::has_fault(Fault::sums_not_rescaled) ? 1 : ptx::exp2_approx(m[half] - base);
      float sum[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // keys 16 i ..
        const int at = 8 * i + 2 * half;
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          s[at + v] = weight_of(s[at + v], scale_log2, base);
          s[at + 4 + v] = weight_of(s[at + 4 + v], scale_log2, base);
        }
        sum[i] = (s[at] + s[at + 4]) + (s[at + 1] + s[at + 5]);
      }
      m[half] = top;
      d[half] = rescaled_sum(d[half], keep[half], (sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
  }

  MC_DEVICE void pack_weights() {
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[step][i] = ptx::pack_bf16(s[step * 8 + 2 * i], s[step * 8 + 2 * i + 1]);
  }

  /// Whether a row of the warp has a new maximum, which is seldom. The sums take part in the question although none is
  /// negative: the assembler would move the wait for o, which stands behind this branch, up in front of the weights.
  MC_DEVICE bool is_raised() const {
    return ptx::ballot(keep[0] != 1 || keep[1] != 1 || d[0] < 0 || d[1] < 0) != 0;
  }

  /// Products with 1 change nothing and are left out.
  MC_DEVICE void rescale() {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] *= keep[i / 2 % 2];
  }

  /// Issues o += p v. V is MN-major: 16 keys are 2048 bytes, 64 elements of the head one column.
  MC_DEVICE void issue_sums(uint32_t v_tile) {
#pragma unroll
    for (int step = 0; step < 4; ++step) ptx::wgmma_hold(p[step]);
    ptx::wgmma_fence(o);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t b = ptx::descriptor(v_tile + step * 2048, HopperLayout<kDim>::kColumn);
      if constexpr (kDim == 64)
        ptx::wgmma_64x64_rs(o, p[step], b);
      else
        ptx::wgmma_64x128_rs(o, p[step], b);
    }
    ptx::wgmma_commit();
  }

  /// The first tile of a walk: its weighted sum waits for the next one. `mask(s)` hides keys.
  template <class Queries, class Mask>
  MC_DEVICE void begin(Queries& q, uint32_t k_tile, float scale_log2, const Mask& mask) {
    issue_scores<kDim>(s, q, k_tile);
    ptx::wgmma_wait<0>(s);
    mask(s);
    soften(scale_log2);
    pack_weights();
  }
  /// Another tile; `v_before`: V of the tile before it, whose sum ends here. `release` is called when it has been read.
  template <class Queries, class Mask, class Release>
  MC_DEVICE void next(Queries& q, uint32_t k_tile, uint32_t v_before, float scale_log2, const Mask& mask,
                      const Release& release) {
    issue_scores<kDim>(s, q, k_tile);
    issue_sums(v_before);
    ptx::wgmma_wait<1>(s);
    mask(s);
    soften(scale_log2);
    if (is_raised()) {
      ptx::wgmma_wait<0>(o);
      rescale();
    } else {
      ptx::wgmma_wait<0>(o);
    }
    release();
    pack_weights();
  }
  /// The sum of the last tile.
  MC_DEVICE void end(uint32_t v_tile) {
    issue_sums(v_tile);
    ptx::wgmma_wait<0>(o);
  }

  /// Another tile by itself: fewer registers are in use at the same time.
  template <class Queries, class Mask>
  MC_DEVICE void attend_alone(Queries& q, uint32_t k_tile, uint32_t v_tile, float scale_log2, const Mask& mask) {
    begin(q, k_tile, scale_log2, mask);
    if (is_raised()) rescale();
    end(v_tile);
  }

  MC_DEVICE void move_to(Accumulator<kDim>& acc) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) acc.o[i / 4][i % 4] = o[i];
    acc.m[0] = m[0], acc.m[1] = m[1], acc.d[0] = d[0], acc.d[1] = d[1];
  }
};

/// Zeroes the rows of V at and behind kv_len, which a page that is not full leaves undefined: their weight is 0, but 0
/// times NaN is not.
template <int kDim>
MC_DEVICE void zero_tail(uint32_t v_tile, int first) {
  for (int i = ptx::tid_x(); i < (64 - first) * (kDim / 8); i += 128 * kGroups) {
    const int row = first + i / (kDim / 8), chunk = i % (kDim / 8);
    const uint32_t at = swizzle(v_tile + chunk / 8 * HopperLayout<kDim>::kColumn + row * 128 + chunk % 8 * 16);
    ptx::zero_16(at);
  }
  ptx::fence_async_shared();
  ptx::barrier_sync<kTailBarrier, 128 * kGroups>();
}

/// The threads of a warpgroup meet.
MC_DEVICE void meet_group(int group) {
  if (group == 0)
    ptx::barrier_sync<kQueryBarrier, 128>();
  else
    ptx::barrier_sync<kQueryBarrier + 1, 128>();
}

/// The warpgroup's queries are in its tile, for all of its threads.
template <int kDim, class IndexOf>
MC_DEVICE SharedQueries share_queries(const AttentionArgs& args, const IndexOf& index_of, uint32_t base) {
  const int group = ptx::tid_x() / 128;
  const SharedQueries queries{base + group * HopperLayout<kDim>::kTile};
  copy_queries<kDim>(args, index_of, queries.tile);
  show_queries();
  meet_group(group);
  return queries;
}
/// The warp's queries are in registers.
template <int kDim, class IndexOf>
MC_DEVICE HeldQueries<kDim> hold_queries(const AttentionArgs& args, const IndexOf& index_of, uint32_t base) {
  const int group = ptx::tid_x() / 128;
  const uint32_t tile = base + group * HopperLayout<kDim>::kTile;
  copy_queries<kDim>(args, index_of, tile);
  ptx::cp_async_wait<0>();
  meet_group(group);
  HeldQueries<kDim> queries;
  queries.load(tile);
  return queries;
}

/// Waits for a tile, and zeroes its V at and behind kv_len.
template <int kDim>
MC_DEVICE void await_tile(const Sequence& sequence, int32_t tile, uint32_t base, const Ring& ring) {
  ptx::mbarrier_wait(HopperLayout<kDim>::full(base, ring.stage), ring.parity);
  if ((tile + 1) * kKeyTile > sequence.kv_len)
    zero_tail<kDim>(HopperLayout<kDim>::v_tile(base, ring.stage),
                    static_cast<int>(sequence.kv_len - tile * kKeyTile));
}

/// The warp has read a stage.
template <int kDim>
MC_DEVICE void release_stage(uint32_t base, int stage) {
  ptx::warp_sync();
  if (ptx::tid_x() % 32 == 0) ptx::mbarrier_arrive(HopperLayout<kDim>::empty(base, stage));
}

/// Attends to the tiles of the walk as the producer fetches them. kOverlaps: softmax and weighted sums at one time.
template <int kDim, Masks kMasks, bool kOverlaps = true, class Queries>
MC_DEVICE void consume(const AttentionArgs& args, const Sequence& sequence, const Walk& walk, int32_t tile,
                       Row (&rows)[2], Queries& queries, uint32_t base, Ring& ring, Accumulator<kDim>& acc) {
  using Layout = HopperLayout<kDim>;
  HopperState<kDim> state;
  state.clear();
  const CommonKeys common(rows);
  const auto mask = [&](Acc(&s)[32]) {
    if (kMasks == Masks::none || common.has(tile * kKeyTile)) return;
    bool member[2] = {};
    if constexpr (kMasks == Masks::members) {
      const int32_t block = walk.tiles_of_block > 0 ? tile / walk.tiles_of_block : -1;
      member[0] = rows[0].member(block), member[1] = rows[1].member(block);
    }
    mask_tile(s, rows, member, tile * kKeyTile);
  };
  tile = walk.next(tile);
  if constexpr (!kOverlaps) {
    for (; tile < walk.end; tile = walk.next(tile + 1), ring.next()) {
      await_tile<kDim>(sequence, tile, base, ring);
      state.attend_alone(queries, Layout::k_tile(base, ring.stage), Layout::v_tile(base, ring.stage), scale_of(args),
                         mask);
      release_stage<kDim>(base, ring.stage);
    }
  } else if (tile < walk.end) {
    await_tile<kDim>(sequence, tile, base, ring);
    state.begin(queries, Layout::k_tile(base, ring.stage), scale_of(args), mask);
    for (tile = walk.next(tile + 1); tile < walk.end; tile = walk.next(tile + 1)) {
      const int before = ring.stage;
      ring.next();
      await_tile<kDim>(sequence, tile, base, ring);
      state.next(queries, Layout::k_tile(base, ring.stage), Layout::v_tile(base, before), scale_of(args), mask,
                 [&] { release_stage<kDim>(base, before); });
    }
    state.end(Layout::v_tile(base, ring.stage));
    release_stage<kDim>(base, ring.stage);
    ring.next();
  }
  state.move_to(acc);
}

/// Attends to the blocks that the rows of a union tile chose, and merges the parts as moba_merge does: each from a
/// fresh state, rounded to bf16, in the order of the blocks. So a row has the bits that lists give it. `acc` has the
/// state of the own keys.
template <int kDim>
MC_DEVICE void attend_union(const AttentionArgs& args, const Sequence& sequence, const Walk& walk, Row (&rows)[2],
                            SharedQueries& queries, uint32_t base, Ring& ring, const Accumulator<kDim>& acc) {
  float o[2][kDim / 8][2], m[2] = {acc.m[0], acc.m[1]}, d[2] = {sum_of_quad(acc.d[0]), sum_of_quad(acc.d[1])};
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) o[i % 4 / 2][i / 4][i % 2] = acc.o[i / 4][i % 4];
  Row all[2] = {{.end = INT32_MAX, .index = 0}, {.end = INT32_MAX, .index = 0}};
  for (int32_t tile = walk.next(0); tile < walk.end;) {
    const int32_t block = tile / walk.tiles_of_block, end = tile + walk.tiles_of_block;
    Accumulator<kDim> part;
    consume<kDim, Masks::none, false>(args, sequence, {.end = end}, tile, all, queries, base, ring, part);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float their_d = sum_of_quad(part.d[half]);
      if (!rows[half].member(block)) continue;
      merge_part<kDim>(
          part.m[half], their_d, [&](int n) { return ptx::pack_bf16(part.o[n][2 * half], part.o[n][2 * half + 1]); },
          m[half], d[half], o[half]);
    }
    tile = walk.next(end);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) store_row<kDim>(args, rows[half], 0, 1, m[half], d[half], o[half]);
}

/// The tiles of the blocks that the rows of a union tile chose.
MC_DEVICE Walk walk_of_union(const Sequence& sequence, uint32_t bits) {
  const int32_t tiles = sequence.mode.block / kKeyTile;
  return {.end = static_cast<int32_t>(sequence.kv_len / sequence.mode.block) * tiles,
          .tiles_of_block = tiles,
          .needed = bits};
}

/// One thread makes the barriers of the stages, which `groups` warpgroups release. The caller synchronises.
template <int kDim>
MC_DEVICE void make_barriers(uint32_t base, int groups) {
  using Layout = HopperLayout<kDim>;
  if (ptx::tid_x() != 0) return;
  for (int stage = 0; stage < kHopperStages; ++stage) {
    ptx::mbarrier_init(Layout::full(base, stage), 1);
    ptx::mbarrier_init(Layout::empty(base, stage), 4 * groups);
  }
  ptx::mbarrier_init_fence();
}

static_assert(kTileRows == kUnionRows);

/// grid: (tiles of 128 rows of the longest sequence * args.splits, kv_heads, sequences). The last rows, which have the
/// most keys, come first: CTAs that start late are then short. kMerges: as in attend(), but the rows of union tiles
/// have no parts: their CTA attends to the blocks.
template <int kDim, bool kMerges = false>
MC_DEVICE void attend_hopper(const AttentionArgs& args, const TensorMap& k_map, const TensorMap& v_map) {
  using Layout = HopperLayout<kDim>;
  static_assert(Layout::kBytes == hopper_shared(kDim));
  static_assert(kHopperStages * 16 <= kHopperBarrierBytes);
  const uint32_t base = ptx::dynamic_shared<1024>(), bits = base + Layout::kUnion;
  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_z());
  const int kv_head = static_cast<int>(ptx::ctaid_y()), split = ptx::ctaid_x() % args.splits;
  const int row_tiles = (rows_of(args, sequence) + kTileRows - 1) / kTileRows,
            row_tile = row_tiles - 1 - static_cast<int>(ptx::ctaid_x() / args.splits);
  if (split >= sequence.splits || row_tile < 0) return;
  const int first_row = row_tile * kTileRows;
  make_barriers<kDim>(base, kGroups);
  const bool unites = kMerges && is_union(args, sequence, ptx::load(args.routing + ptx::ctaid_z()), kv_head, first_row);
  if (kMerges ? unites : sequence.mode.kind == mc::attn::ModeKind::moba)
    mark_union<kTileRows, kHopperThreads>(args, sequence, kv_head, first_row, bits, !kMerges);
  ptx::barrier_all();
  int32_t tile;
  const Walk walk = walk_of<kMerges>(args, sequence, first_row, kTileRows, split, bits, tile);
  if (ptx::tid_x() >= 128 * kGroups) {
    ptx::decrease_registers<40>();
    if (ptx::tid_x() > 128 * kGroups) return;
    Ring ring{.parity = 1};
    produce<kDim>(args, sequence, k_map, v_map, walk, tile, base, ring);
    if (unites) produce<kDim>(args, sequence, k_map, v_map, walk_of_union(sequence, bits), 0, base, ring);
    return;
  }
  ptx::increase_registers<232>();
  const int first = first_row + 64 * (ptx::tid_x() / 128);
  const auto index_of = [&](int row) { return row_of(args, sequence, kv_head, first + row).index; };
  const int own = first + 16 * (ptx::tid_x() % 128 / 32) + ptx::tid_x() % 32 / 4;
  Row rows[2] = {row_of(args, sequence, kv_head, own), row_of(args, sequence, kv_head, own + 8)};
  Accumulator<kDim> acc;
  Ring ring;
  if constexpr (kMerges) {
    SharedQueries queries = share_queries<kDim>(args, index_of, base);
    consume<kDim, Masks::own>(args, sequence, walk, tile, rows, queries, base, ring, acc);
    if (unites)
      return attend_union<kDim>(args, sequence, walk_of_union(sequence, bits), rows, queries, base, ring, acc);
  } else {
    HeldQueries<kDim> queries = hold_queries<kDim>(args, index_of, base);
    consume<kDim, Masks::members>(args, sequence, walk, tile, rows, queries, base, ring, acc);
  }
  finish<kDim, kMerges>(args, sequence, acc, rows, split);
}

}  // namespace mc::gpu

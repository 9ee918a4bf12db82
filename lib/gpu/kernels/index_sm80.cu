// The index of MoBA prefill: for each KV head and key block the ascending list of the rows that chose it, which is the
// inverse of `selection`, but for the rows of union tiles. A counting sort behind the choice of those tiles:
//
//   moba_unite    names the union tiles: tiles of rows that chose few blocks in all
//   moba_count    counts, for each tile of rows, the rows that chose each block
//   moba_offsets  sums over the tiles and then over the blocks: where each list begins, and its items
//   moba_lists    each tile puts its rows in at its own places
//
// A tile's first place in a list follows from the counts of the tiles before it, and inside a tile a row's place from
// bits: those of the rows before it that chose the block. So the lists do not depend on the order in which threads run,
// and those of a sequence are those of its chunks one after the other. Atomics add up counts and set bits, where order
// has no effect.
#include "gpu/kernels/routing.cuh"
#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {

namespace {

static_assert(kUnionRows == kThreads, "threads of moba_unite have the rows of one union tile");

/// The blocks that row `number` of a KV head chose, ascending; -1 behind them, and everywhere when it does not choose.
/// The loads do not wait for one another.
MC_DEVICE void load_chosen(int32_t (&blocks)[kChosenMax], const AttentionArgs& args, const Sequence& sequence,
                           int kv_head, int32_t number) {
  const int32_t group = args.q_heads / args.pool.kv_heads, token = number / group;
  const bool chooses = token < sequence.tokens &&
                       sequence.q_begin + token >= mc::attn::moba_dense_below(sequence.mode.block, sequence.mode.top_k);
  const int32_t count = chooses ? sequence.mode.top_k - 1 : 0;
  const int64_t index = int64_t{sequence.first_token + token} * args.q_heads + kv_head * group + number % group;
  const int32_t* from = args.selection + index * args.chosen;
#pragma unroll
  for (int i = 0; i < kChosenMax; ++i) {
    blocks[i] = -1;
    if (i < count) blocks[i] = ptx::load(from + i);
  }
}

/// The rows and blocks of a CTA of moba_count and moba_lists.
struct IndexPart {
  Sequence sequence;
  Routing routing;
  int32_t kv_head = 0, tile = 0;
  int32_t first_row = 0, end_row = 0;
  int32_t first_block = 0, blocks = 0;

  MC_DEVICE bool is_empty() const { return blocks <= 0 || first_row >= end_row; }
  MC_DEVICE bool is_union(const AttentionArgs& args, int32_t number) const {
    return gpu::is_union(args, sequence, routing, kv_head, number);
  }
  MC_DEVICE int32_t* counts() const {
    return of_head(routing.counts, kv_head, int64_t{kIndexTiles} * routing.blocks) + int64_t{tile} * routing.blocks +
           first_block;
  }
};

MC_DEVICE IndexPart index_part(const AttentionArgs& args) {
  IndexPart part;
  part.sequence = ptx::load(args.sequences + ptx::ctaid_z());
  part.routing = ptx::load(args.routing + ptx::ctaid_z());
  part.kv_head = static_cast<int32_t>(ptx::ctaid_y());
  part.tile = static_cast<int32_t>(ptx::ctaid_x()) % kIndexTiles;
  part.first_row = part.tile * part.routing.tile_rows;
  part.end_row = min(part.first_row + part.routing.tile_rows, rows_of(args, part.sequence));
  part.first_block = static_cast<int32_t>(ptx::ctaid_x()) / kIndexTiles * kIndexBlocks;
  part.blocks = min(part.routing.blocks - part.first_block, kIndexBlocks);
  return part;
}

/// The sum of `value` over the lanes before this one; `all` becomes the sum of the warp.
MC_DEVICE int32_t sum_before(int32_t value, int32_t& all) {
  int32_t before = 0;
  all = value;
#pragma unroll
  for (uint32_t by = 1; by < 32; by *= 2) {
    const int32_t other = ptx::shuffle_xor(all, by);
    if ((ptx::tid_x() & by) != 0) before += other;
    all += other;
  }
  return before;
}

}  // namespace

/// Decides which tiles of rows are union tiles: those whose rows chose few blocks in all. The lists have none of their
/// rows, and the merge attends to the blocks itself.
/// grid: (tiles of kUnionRows rows of the longest sequence, kv_heads, sequences)
MC_KERNEL(moba_unite, (kThreads))(MC_PARAM(AttentionArgs) args) {
  const uint32_t bits = ptx::dynamic_shared<16>(), counts = bits + kUnionBlocksMax / 8;
  const Sequence sequence = ptx::load(args.sequences + ptx::ctaid_z());
  const Routing routing = ptx::load(args.routing + ptx::ctaid_z());
  const int kv_head = static_cast<int>(ptx::ctaid_y()), thread = static_cast<int>(ptx::tid_x());
  const auto tile = static_cast<int32_t>(ptx::ctaid_x());
  if (routing.is_union == nullptr || tile >= union_tiles_of(args, sequence)) return;
  int32_t chosen[kChosenMax];
  load_chosen(chosen, args, sequence, kv_head, tile * kUnionRows + thread);
  for (int i = thread; i < (routing.blocks + 31) / 32; i += kThreads) ptx::store_shared_u32(bits + i * 4, 0);
  ptx::barrier_all();
  int32_t count = 0;  // blocks that no thread before this one has marked; the sum does not depend on the order
#pragma unroll
  for (int slot = 0; slot < kChosenMax; ++slot) {
    const int32_t block = chosen[slot];
    if (block < 0) continue;
    const uint32_t bit = 1u << (block % 32);
    if ((ptx::atomic_or_shared(bits + block / 32 * 4, bit) & bit) == 0) ++count;
  }
#pragma unroll
  for (uint32_t by = 1; by < 32; by *= 2) count += ptx::shuffle_xor(count, by);
  if (thread % 32 == 0) ptx::store_shared_u32(counts + thread / 32 * 4, static_cast<uint32_t>(count));
  ptx::barrier_all();
  if (thread != 0) return;
  count = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp)
    count += static_cast<int32_t>(ptx::load_shared_u32(counts + warp * 4));
  ptx::store(of_head(routing.is_union, kv_head, union_tiles_of(args, sequence)) + tile,
             count <= routing.union_blocks ? 1 : 0);
}

/// grid: (kIndexTiles * windows of kIndexBlocks blocks of the longest sequence, kv_heads, sequences)
MC_KERNEL(moba_count, (kIndexThreads))(MC_PARAM(AttentionArgs) args) {
  const uint32_t counts = ptx::dynamic_shared<16>();
  const IndexPart part = index_part(args);
  const int thread = static_cast<int>(ptx::tid_x());
  if (part.is_empty()) return;
  for (int i = thread; i < part.blocks; i += kIndexThreads) ptx::store_shared_u32(counts + i * 4, 0);
  ptx::barrier_all();
  for (int32_t number = part.first_row + thread; number < part.end_row; number += kIndexThreads) {
    int32_t chosen[kChosenMax];
    load_chosen(chosen, args, part.sequence, part.kv_head, number);
    if (part.is_union(args, number)) continue;
#pragma unroll
    for (int slot = 0; slot < kChosenMax; ++slot) {
      const int32_t block = chosen[slot] - part.first_block;
      if (block >= 0 && block < part.blocks) ptx::atomic_add_shared(counts + block * 4, 1);
    }
  }
  ptx::barrier_all();
  for (int i = thread; i < part.blocks; i += kIndexThreads)
    ptx::store(part.counts() + i, static_cast<int32_t>(ptx::load_shared_u32(counts + i * 4)));
}

namespace {

/// Gives each tile that has rows its first place in the list of a block, and returns the rows of the list.
MC_DEVICE int32_t sum_tiles(int32_t* counts, int32_t blocks, int32_t tiles) {
  constexpr int kAtOnce = 16;  // loads that do not wait for one another
  int32_t rows = 0;
  for (int32_t first = 0; first < tiles; first += kAtOnce) {
    int32_t of_tile[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      of_tile[i] = first + i < tiles ? ptx::load(counts + int64_t{first + i} * blocks) : 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < tiles)
        ptx::store(counts + int64_t{first + i} * blocks, ptx::has_fault(Fault::tiles_share_places) ? 0 : rows);
      rows += of_tile[i];
    }
  }
  return rows;
}

}  // namespace

/// grid: (1, kv_heads, sequences)
MC_KERNEL(moba_offsets, (kOffsetsThreads))(MC_PARAM(AttentionArgs) args) {
  static_assert(kOffsetsThreads == 32 * 32, "a lane has the sum of each warp");
  const uint32_t base = ptx::dynamic_shared<16>();  // for two turns, of warps: rows, items
  const Routing routing = ptx::load(args.routing + ptx::ctaid_z());
  const int32_t all_rows = rows_of(args, ptx::load(args.sequences + ptx::ctaid_z()));
  const int32_t tiles = (all_rows + routing.tile_rows - 1) / routing.tile_rows;
  const int kv_head = static_cast<int>(ptx::ctaid_y()), thread = static_cast<int>(ptx::tid_x());
  const int warp = thread / 32, lane = thread % 32;
  int32_t* counts = of_head(routing.counts, kv_head, int64_t{kIndexTiles} * routing.blocks);
  int32_t* offsets = of_head(routing.offsets, kv_head, routing.blocks + 1);
  int32_t* firsts = of_head(routing.item_first, kv_head, routing.blocks + 1);
  int32_t* items = of_head(routing.item_block, kv_head, routing.items);
  int32_t place = 0, item = 0;  // before the blocks of this turn
  for (int32_t first = 0, turn = 0; first < routing.blocks; first += kOffsetsThreads, turn ^= 1) {
    const int32_t block = first + thread;
    const bool is_block = block < routing.blocks;
    const int32_t rows = is_block ? sum_tiles(counts + block, routing.blocks, tiles) : 0;
    const int32_t own_items = items_of(routing, rows);
    int32_t warp_rows, warp_items;
    int32_t rows_before = sum_before(rows, warp_rows), items_before = sum_before(own_items, warp_items);
    const uint32_t rows_at = base + turn * 2 * 32 * 4, items_at = rows_at + 32 * 4;  // the turn before may still read
    if (lane == 0) {
      ptx::store_shared_u32(rows_at + warp * 4, static_cast<uint32_t>(warp_rows));
      ptx::store_shared_u32(items_at + warp * 4, static_cast<uint32_t>(warp_items));
    }
    ptx::barrier_all();
    const auto their_rows = static_cast<int32_t>(ptx::load_shared_u32(rows_at + lane * 4));
    const auto their_items = static_cast<int32_t>(ptx::load_shared_u32(items_at + lane * 4));
    int32_t all;
    sum_before(lane < warp ? their_rows : 0, all);
    rows_before += place + all;
    sum_before(lane < warp ? their_items : 0, all);
    items_before += item + all;
    sum_before(their_rows, all);
    place += all;
    sum_before(their_items, all);
    item += all;
    if (!is_block) continue;
    ptx::store(offsets + block, rows_before);
    ptx::store(firsts + block, items_before);
    for (int32_t i = 0; i < own_items; ++i) ptx::store(items + items_before + i, block);
  }
  if (thread != 0) return;
  ptx::store(offsets + routing.blocks, place);
  ptx::store(firsts + routing.blocks, item);
}

namespace {

/// The bits of the rows of a step of moba_lists: of each block a word for each warp, and the next place of its list.
struct StepBits {
  static constexpr int kWords = kIndexThreads / 32;
  uint32_t base = 0;
  int32_t blocks = 0;

  /// The gate decides the block of each lane, so all lanes may meet in one bank.
  MC_DEVICE static Banks scattered() { return {.lanes = 32}; }
  MC_DEVICE uint32_t word(int32_t block, int warp) const { return base + (warp * blocks + block) * 4; }
  MC_DEVICE uint32_t next(int32_t block) const { return base + (kWords * blocks + block) * 4; }
  /// Rows of the first `warps` warps that chose the block.
  MC_DEVICE int32_t count(int32_t block, int warps) const {
    int32_t rows = 0;
#pragma unroll
    for (int warp = 0; warp < kWords; ++warp)
      if (warp < warps) rows += ptx::popcount(ptx::load_shared_u32(word(block, warp), scattered()));
    return rows;
  }
  /// Rows of the thread's warp, before its own, that chose the block.
  MC_DEVICE int32_t count_lanes(int32_t block) const {
    const int lane = static_cast<int>(ptx::tid_x()) % 32;
    const uint32_t bits = ptx::load_shared_u32(word(block, static_cast<int>(ptx::tid_x()) / 32), scattered());
    if (ptx::has_fault(Fault::list_descends)) return ptx::popcount(bits >> lane >> 1);
    return ptx::popcount(bits & ((1u << lane) - 1));
  }
  MC_DEVICE int32_t place(int32_t block) const {
    return static_cast<int32_t>(ptx::load_shared_u32(next(block), scattered()));
  }
  /// Begins the next step for a block. One thread does it for each block that some row chose.
  MC_DEVICE void clear(int32_t block, int32_t first) const {
    ptx::store_shared_u32(next(block), static_cast<uint32_t>(first + count(block, kWords)), scattered());
#pragma unroll
    for (int warp = 0; warp < kWords; ++warp) ptx::store_shared_u32(word(block, warp), 0, scattered());
  }
};

}  // namespace

/// grid: as that of moba_count
MC_KERNEL(moba_lists, (kIndexThreads))(MC_PARAM(AttentionArgs) args) {
  const IndexPart part = index_part(args);
  const int thread = static_cast<int>(ptx::tid_x()), count = part.sequence.mode.top_k - 1;
  if (part.is_empty()) return;
  const StepBits bits{ptx::dynamic_shared<16>(), part.blocks};
  const int32_t* offsets = of_head(part.routing.offsets, part.kv_head, part.routing.blocks + 1) + part.first_block;
  for (int i = thread; i < part.blocks * StepBits::kWords / 4; i += kIndexThreads) ptx::zero_16(bits.base + i * 16);
  for (int i = thread; i < part.blocks; i += kIndexThreads)
    ptx::store_shared_u32(bits.next(i), static_cast<uint32_t>(ptx::load(offsets + i) + ptx::load(part.counts() + i)));
  int32_t* list = of_head(part.routing.list, part.kv_head, part.routing.entries);
  int32_t* places = of_head(part.routing.places, part.kv_head, int64_t{rows_of(args, part.sequence)} * count);
  for (int32_t first = part.first_row; first < part.end_row; first += kIndexThreads) {
    const int32_t number = first + thread;
    const bool is_last = first + kIndexThreads >= part.end_row;
    int32_t chosen[kChosenMax];
    load_chosen(chosen, args, part.sequence, part.kv_head, number);
    const bool is_listed = number < part.end_row && !part.is_union(args, number);
    ptx::barrier_all();
    uint32_t own = 0;  // the slots whose blocks are of this window
#pragma unroll
    for (int slot = 0; slot < kChosenMax; ++slot) {
      chosen[slot] -= part.first_block;
      if (!is_listed || chosen[slot] < 0 || chosen[slot] >= part.blocks) continue;
      own |= 1u << slot;
      ptx::atomic_or_shared(bits.word(chosen[slot], thread / 32), 1u << thread % 32);
    }
    ptx::barrier_all();
    uint32_t begins = 0;  // the slots of blocks whose first row of the step this is
#pragma unroll
    for (int slot = 0; slot < kChosenMax; ++slot) {
      if ((own >> slot & 1) == 0) continue;
      const int32_t before = bits.count(chosen[slot], thread / 32) + bits.count_lanes(chosen[slot]);
      const int32_t place = bits.place(chosen[slot]) + before;
      ptx::store(list + place, number);
      ptx::store(places + int64_t{number} * count + slot, place);
      if (before == 0) begins |= 1u << slot;
    }
    if (is_last) return;
    ptx::barrier_all();
#pragma unroll
    for (int slot = 0; slot < kChosenMax; ++slot)
      if ((begins >> slot & 1) != 0) bits.clear(chosen[slot], bits.place(chosen[slot]));
  }
}

}  // namespace mc::gpu

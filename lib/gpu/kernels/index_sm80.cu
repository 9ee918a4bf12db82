// The index of MoBA prefill: for each KV head and key block the ascending list of the rows that chose it, which is the
// inverse of `selection`, but for the rows of union tiles. A counting sort behind the choice of those tiles:
//
//   moba_unite    names the union tiles: tiles of rows that chose few blocks in all
//   moba_count    counts, for each tile of rows, the rows that chose each block
//   moba_offsets  sums over the tiles and then over the blocks: where each list begins, and its items
//   moba_lists    each tile puts its rows in at its own places
//
// A tile's first place in a list follows from the counts of the tiles before it, and inside a tile one thread puts in
// the rows of a block in their order. So the lists do not depend on the order in which threads run, and those of a
// sequence are those of its chunks one after the other. Atomics add up counts and set bits, where order has no effect.
#include "gpu/kernels/attend.cuh"

namespace mc::gpu {

namespace {

static_assert(kUnionRows == kThreads, "threads of the index have the rows of one union tile at a time");

/// The rows and blocks of a CTA of moba_count and moba_lists.
struct IndexPart {
  Sequence sequence;
  Routing routing;
  int32_t kv_head = 0, tile = 0;
  int32_t first_row = 0, end_row = 0;
  int32_t first_block = 0, blocks = 0;

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
  for (int i = thread; i < (routing.blocks + 31) / 32; i += kThreads) ptx::store_shared_u32(bits + i * 4, 0);
  ptx::barrier_all();
  const Row row = row_of(args, sequence, kv_head, tile * kUnionRows + thread);
  int32_t count = 0;  // blocks that no thread before this one has marked; the sum does not depend on the order
  for (int slot = 0; slot < row.left; ++slot) {
    const int32_t block = ptx::load(row.chosen + slot);
    if (block < 0) break;
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
MC_KERNEL(moba_count, (kThreads))(MC_PARAM(AttentionArgs) args) {
  const uint32_t counts = ptx::dynamic_shared<16>();
  const IndexPart part = index_part(args);
  const int thread = static_cast<int>(ptx::tid_x());
  if (part.blocks <= 0) return;
  for (int i = thread; i < part.blocks; i += kThreads) ptx::store_shared_u32(counts + i * 4, 0);
  ptx::barrier_all();
  for (int32_t number = part.first_row + thread; number < part.end_row; number += kThreads) {
    if (part.is_union(args, number)) continue;
    const Row row = row_of(args, part.sequence, part.kv_head, number);
    for (int slot = 0; slot < row.left; ++slot) {
      const int32_t block = ptx::load(row.chosen + slot) - part.first_block;
      if (block >= 0 && block < part.blocks) ptx::atomic_add_shared(counts + block * 4, 1);
    }
  }
  ptx::barrier_all();
  for (int i = thread; i < part.blocks; i += kThreads)
    ptx::store(part.counts() + i, static_cast<int32_t>(ptx::load_shared_u32(counts + i * 4)));
}

/// grid: (1, kv_heads, sequences)
MC_KERNEL(moba_offsets, (kThreads))(MC_PARAM(AttentionArgs) args) {
  constexpr int kWarps = kThreads / 32;
  const uint32_t sums = ptx::dynamic_shared<16>();  // of warps: rows, items
  const Routing routing = ptx::load(args.routing + ptx::ctaid_z());
  const int kv_head = static_cast<int>(ptx::ctaid_y()), thread = static_cast<int>(ptx::tid_x()), warp = thread / 32;
  int32_t* counts = of_head(routing.counts, kv_head, int64_t{kIndexTiles} * routing.blocks);
  int32_t* offsets = of_head(routing.offsets, kv_head, routing.blocks + 1);
  int32_t* firsts = of_head(routing.item_first, kv_head, routing.blocks + 1);
  int32_t place = 0, item = 0;  // before the blocks of this turn
  for (int32_t first = 0; first < routing.blocks; first += kThreads) {
    const int32_t block = first + thread;
    const bool is_block = block < routing.blocks;
    int32_t rows = 0;
    for (int tile = 0; tile < kIndexTiles && is_block; ++tile) {
      int32_t* at = counts + int64_t{tile} * routing.blocks + block;
      const int32_t of_tile = ptx::load(at);
      ptx::store(at, ptx::has_fault(Fault::tiles_share_places) ? 0 : rows);
      rows += of_tile;
    }
    int32_t all_rows, all_items;
    int32_t rows_before = sum_before(rows, all_rows), items_before = sum_before(items_of(routing, rows), all_items);
    if (thread % 32 == 0) {
      ptx::store_shared_u32(sums + warp * 8, static_cast<uint32_t>(all_rows));
      ptx::store_shared_u32(sums + warp * 8 + 4, static_cast<uint32_t>(all_items));
    }
    ptx::barrier_all();
    rows_before += place;
    items_before += item;
    for (int i = 0; i < kWarps; ++i) {
      const auto their_rows = static_cast<int32_t>(ptx::load_shared_u32(sums + i * 8));
      const auto their_items = static_cast<int32_t>(ptx::load_shared_u32(sums + i * 8 + 4));
      if (i < warp) rows_before += their_rows, items_before += their_items;
      place += their_rows, item += their_items;
    }
    ptx::barrier_all();
    if (!is_block) continue;
    ptx::store(offsets + block, rows_before);
    ptx::store(firsts + block, items_before);
    int32_t* items = of_head(routing.item_block, kv_head, routing.items);
    for (int32_t i = 0; i < items_of(routing, rows); ++i) ptx::store(items + items_before + i, block);
  }
  if (thread != 0) return;
  ptx::store(offsets + routing.blocks, place);
  ptx::store(firsts + routing.blocks, item);
}

/// grid: as that of moba_count
MC_KERNEL(moba_lists, (kThreads))(MC_PARAM(AttentionArgs) args) {
  constexpr int kWords = kThreads / 32;
  const uint32_t next = ptx::dynamic_shared<16>(), bits = next + kIndexBlocks * 4;  // bits: [kWords, kIndexBlocks]
  const IndexPart part = index_part(args);
  const int thread = static_cast<int>(ptx::tid_x()), chosen = part.sequence.mode.top_k - 1;
  if (part.blocks <= 0) return;
  const int32_t* offsets = of_head(part.routing.offsets, part.kv_head, part.routing.blocks + 1) + part.first_block;
  for (int i = thread; i < part.blocks; i += kThreads) {
    ptx::store_shared_u32(next + i * 4, static_cast<uint32_t>(ptx::load(offsets + i) + ptx::load(part.counts() + i)));
    for (int word = 0; word < kWords; ++word) ptx::store_shared_u32(bits + (word * kIndexBlocks + i) * 4, 0);
  }
  int32_t* list = of_head(part.routing.list, part.kv_head, part.routing.entries);
  int32_t* places = of_head(part.routing.places, part.kv_head, int64_t{rows_of(args, part.sequence)} * chosen);
  for (int32_t first = part.first_row; first < part.end_row; first += kThreads) {
    if (part.is_union(args, first)) continue;  // of all rows: a step has the rows of one tile
    ptx::barrier_all();
    const Row row = row_of(args, part.sequence, part.kv_head, first + thread);
    for (int slot = 0; slot < row.left; ++slot) {
      const int32_t block = ptx::load(row.chosen + slot) - part.first_block;
      if (block >= 0 && block < part.blocks)
        ptx::atomic_or_shared(bits + (thread / 32 * kIndexBlocks + block) * 4, 1u << thread % 32);
    }
    ptx::barrier_all();
    for (int i = thread; i < part.blocks; i += kThreads) {
      uint32_t place = ptx::load_shared_u32(next + i * 4);
      for (int turn = 0; turn < kWords; ++turn) {
        const int word = ptx::has_fault(Fault::list_descends) ? kWords - 1 - turn : turn;
        const uint32_t at = bits + (word * kIndexBlocks + i) * 4;
        uint32_t left = ptx::load_shared_u32(at);
        if (left != 0) ptx::store_shared_u32(at, 0);
        for (; left != 0; left &= left - 1, ++place) {
          const int32_t number = first + word * 32 + ptx::lowest_bit(left);
          ptx::store(list + place, number);
          const int32_t* choice = row_of(args, part.sequence, part.kv_head, number).chosen;
          int slot = 0;
          while (slot + 1 < chosen && ptx::load(choice + slot) != part.first_block + i) ++slot;
          ptx::store(places + int64_t{number} * chosen + slot, static_cast<int32_t>(place));
        }
      }
      ptx::store_shared_u32(next + i * 4, place);
    }
  }
}

}  // namespace mc::gpu

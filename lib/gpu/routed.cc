#include "gpu/routed.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "gpu/arena.h"

namespace mc::gpu {
namespace {

constexpr size_t kArrays = 10;  // of Routing

/// Bytes that a token needs for each chosen block of all its heads: o, m and d of the part, the list, the place, and a
/// share of an item.
size_t token_bytes(const ExtentLayout& layout, int32_t q_heads, int32_t chosen) {
  return static_cast<size_t>(q_heads) * static_cast<size_t>(chosen) * (2 * size_t{layout.head_dim} + 4 * 4 + 1);
}

int32_t chosen_of(const attn::Mode& mode) {
  return mode.top_k - 1;
}

/// Tokens of a piece in a wave of which `used` bytes are taken.
int64_t room_of(size_t bytes, size_t used, size_t each) {
  return each == 0 ? INT32_MAX : static_cast<int64_t>((bytes - std::min(bytes, used)) / each);
}

// The rule of shapes by density, for blocks that all rows like equally. With G heads a group, T tokens, k - 1 chosen
// blocks and n blocks the mean list has G T (k - 1) / n rows. A sequence takes the first shape of the table that its
// lists are long enough for. A short list is padded to `padding` rows.
//   stationary or wide  A small block is fetched once for many rows; a large one does not fit into shared memory.
//   wide or transposed  wgmma has tiles of 64 rows. Shorter lists have less padding with the rows as its columns,
//   unless
//                       the blocks are so large that their products cost more than all else.
struct RoutedShape {
  AttentionKernel kernel;
  bool is_hopper;
  int32_t rows_min;              // of the mean list
  int32_t block_min, block_max;  // keys
  int32_t padding;
};
constexpr RoutedShape kShapes[] = {
    {AttentionKernel::stationary, true, 64, 0, kStationaryBlockMax, 64},  // S
    {AttentionKernel::wide, true, 64, 0, INT32_MAX, 64},                  // W
    {AttentionKernel::wide, true, 0, 256, INT32_MAX, 64},                 // W
    {AttentionKernel::transposed, true, 0, 0, INT32_MAX, 8},              // T
    {AttentionKernel::routed, false, 0, 0, INT32_MAX, 16},                // 16 rows of mma.sync
};

/// Rows of a work item of a shape.
int32_t item_rows_of(AttentionKernel kernel) {
  if (kernel == AttentionKernel::stationary) return kStationaryItemRows;
  return kernel == AttentionKernel::transposed ? kTransposedItemRows : kItemRows;
}

// To write a part and to read it again costs as much as its products with kPartKeys keys do: 776 bytes at 4.3 TB/s, and
// 4 x 128 operations for each key at 790 TFLOP/s.
constexpr int32_t kPartKeys = 256;

/// Blocks that the rows of a union tile choose in all at most: its products cost no more than lists and their parts.
int32_t union_blocks_of(AttentionKernel kernel, const attn::Mode& mode) {
  if (kernel == AttentionKernel::united) return INT32_MAX;
  return chosen_of(mode) + static_cast<int32_t>(int64_t{chosen_of(mode)} * kPartKeys / mode.block);
}

}  // namespace

// The union of a tile of 64 rows has up to n and 64 (k - 1) blocks, and each row is multiplied with all of them. By
// lists a row has k - 1 blocks, and more by padding. The part costs as much as the products of two more blocks of 128
// keys, so lists have to save a factor of 3. Rows that agree, as neighbours often do, would make the union cheaper; the
// host does not see what they chose, and the device finds the tiles of such rows later.
AttentionKernel choose_routed(const ExtentLayout& layout, int32_t q_heads, const SequenceRows& sequence, size_t bytes,
                              bool is_hopper) {
  constexpr int64_t kListsPay = 3, kTileRows = 64;
  const AttentionKernel by_union = is_hopper ? AttentionKernel::hopper : AttentionKernel::prefill;
  const int64_t chosen = chosen_of(sequence.mode), blocks = sequence.kv_len / sequence.mode.block;
  if (chosen == 0 || blocks == 0) return by_union;  // no lists
  const size_t each = token_bytes(layout, q_heads, static_cast<int32_t>(chosen));
  const int64_t room = std::max<int64_t>(kPieceTokensMin, room_of(bytes, 0, each));
  const int64_t group = q_heads / static_cast<int32_t>(layout.kv_heads);
  const int64_t rows_of_list = group * std::min<int64_t>(sequence.tokens, room) * chosen / blocks;
  const auto shape = std::ranges::find_if(kShapes, [&](const RoutedShape& s) {
    return s.is_hopper == is_hopper && rows_of_list >= s.rows_min && sequence.mode.block >= s.block_min &&
           sequence.mode.block <= s.block_max;
  });
  MC_ASSERT(shape != std::end(kShapes));
  const int64_t union_blocks = std::min(blocks, kTileRows * chosen);
  if (union_blocks * std::min<int64_t>(rows_of_list, shape->padding) <= kListsPay * chosen * shape->padding)
    return by_union;
  return shape->kernel;
}

void RoutedPlan::add(size_t number, const SequenceRows& sequence, AttentionKernel kernel) {
  MC_ASSERT(sequence.mode.kind == attn::ModeKind::moba);
  const size_t each = token_bytes(layout_, q_heads_, chosen_of(sequence.mode));
  for (int32_t first = 0; first < sequence.tokens;) {
    const int32_t left = sequence.tokens - first;
    if (is_open_ && room_of(bytes_, used_, each) < std::min(kPieceTokensMin, left)) is_open_ = false;
    if (!std::exchange(is_open_, true)) {
      waves_.push_back({.first = pieces_.size()});
      used_ = placed_ = 0;
    }
    const int64_t room = std::max<int64_t>(kPieceTokensMin, room_of(bytes_, used_, each));
    const auto tokens = static_cast<int32_t>(std::min<int64_t>(left, room));
    Piece piece{.sequence = number,
                .first = first,
                .tokens = tokens,
                .rows = {.q_begin = sequence.q_begin + first,
                         .kv_len = sequence.kv_len,
                         .tokens = tokens,
                         .mode = sequence.mode},
                .at = placed_,
                .kernel = kernel};
    Routing routing;
    placed_ += place(piece, 0, routing);
    used_ += static_cast<size_t>(tokens) * each;
    most_ = std::max(most_, placed_);
    RoutedWave& wave = waves_.back();
    ++wave.count;
    wave.longest = std::max(wave.longest, tokens);
    wave.blocks = std::max(wave.blocks, routing.blocks);
    wave.items = std::max(wave.items, routing.items);
    wave.union_tiles = std::max(wave.union_tiles, union_tiles_of(piece));
    wave.block = std::max(wave.block, sequence.mode.block);
    pieces_.push_back(piece);
    first += tokens;
  }
}

/// Tiles of rows of a KV head, if some may go by their union.
int32_t RoutedPlan::union_tiles_of(const Piece& piece) const {
  const int32_t rows = piece.tokens * (q_heads_ / static_cast<int32_t>(layout_.kv_heads));
  const bool has_lists = chosen_of(piece.rows.mode) > 0 && piece.rows.kv_len >= piece.rows.mode.block;
  if (!has_lists || piece.kernel == AttentionKernel::routed) return 0;
  if (!unites_ && piece.kernel != AttentionKernel::united) return 0;  // that one has no lists
  return (rows + kUnionRows - 1) / kUnionRows;
}

Routing RoutedPlan::routing(const Piece& piece, uint64_t address) const {
  Routing out;
  place(piece, address + piece.at, out);
  return out;
}

/// Fills in the arrays of a piece from `address` on, and returns their bytes.
size_t RoutedPlan::place(const Piece& piece, uint64_t address, Routing& out) const {
  const attn::Mode& mode = piece.rows.mode;
  const auto heads = static_cast<size_t>(layout_.kv_heads);
  const int32_t rows = piece.tokens * (q_heads_ / static_cast<int32_t>(layout_.kv_heads));
  constexpr int32_t kStep = kIndexTiles * kIndexThreads;
  out.blocks = static_cast<int32_t>(piece.rows.kv_len / mode.block);
  out.tile_rows = (rows + kStep - 1) / kStep * kIndexThreads;
  out.entries = out.blocks > 0 ? rows * chosen_of(mode) : 0;
  // Each list has at most one item that is not full.
  out.item_rows = item_rows_of(piece.kernel);
  out.items = out.entries / out.item_rows + std::min(out.entries, out.blocks);
  const auto union_tiles = static_cast<size_t>(union_tiles_of(piece));
  out.union_blocks = union_blocks_of(piece.kernel, mode);
  const auto blocks = static_cast<size_t>(out.blocks), entries = static_cast<size_t>(out.entries);
  const uint64_t begin = address;
  const auto take = [&]<class T>(T*& array, size_t of_head) {
    array = device_pointer<T>(address);
    address += round_up(heads * of_head * sizeof(T), Arena::kAlignment);
  };
  take(out.counts, kIndexTiles * blocks);
  take(out.offsets, blocks + 1);
  take(out.item_first, blocks + 1);
  take(out.item_block, static_cast<size_t>(out.items));
  take(out.list, entries);
  take(out.places, entries);
  take(out.o, entries * layout_.head_dim);
  take(out.m, entries);
  take(out.d, entries);
  if (union_tiles > 0) take(out.is_union, union_tiles);
  return address - begin;
}

size_t routed_bytes_most(const ExtentLayout& layout, int32_t q_heads, size_t rows, size_t sequences, size_t bytes) {
  const size_t each = token_bytes(layout, q_heads, kChosenMax);
  const size_t tokens = std::min(rows * each, std::max(bytes, kPieceTokensMin * each));
  const size_t tables = (sequences + rows / kPieceTokensMin) * (sizeof(Sequence) + sizeof(Routing));
  return tokens + tables + sequences * (kArrays * Arena::kAlignment + size_t{layout.kv_heads} * 2 * sizeof(int32_t));
}

size_t routed_page_bytes(const ExtentLayout& layout) {
  return size_t{layout.kv_heads} * (kIndexTiles + 3) * sizeof(int32_t);
}

}  // namespace mc::gpu

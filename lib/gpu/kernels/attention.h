// Arguments of the attention kernels, as the host fills them and the device reads them: plain structs passed by value.
// Attention over a paged KV pool in the block format of base/extent.h: K and V in bf16 or fp8_e4m3, pages addressed by
// number.
//
//   rows      a row is one query head of one token. Token r of a sequence has position q_begin + r and sees the keys
//             that attn/visible.h names. Row order: token, then query head.
//   selection MoBA: [tokens, q_heads, top_k - 1] block numbers, ascending, then -1; read for rows that choose
//   state     base-2 maximum, sum and unnormalised output of a split or part, in the meaning of attn/state.h
//   index     MoBA prefill by key blocks: for each KV head and block, the list of the rows that chose it. A row has the
//             number token * heads of the group + head of the group, so rows of different heads share a list.
#pragma once

#include <cstdint>

#include "attn/visible.h"

namespace mc::gpu {

constexpr int kKeyTile = 64;         // keys that a CTA reads at a time; a page holds a multiple of it
constexpr int kThreads = 128;        // of a CTA, where no other number is named
constexpr int kHopperThreads = 384;  // of attend_hopper.cuh: three warpgroups, which exchange registers
constexpr int kStationaryThreads = 288;  // two warpgroups and a warp
constexpr int kHopperBarrierBytes = 64;
constexpr int kChosenMax = 16;         // top_k - 1 at most
constexpr int kUnionBlocksMax = 8192;  // MoBA blocks of a sequence at most: bits of a union in shared memory

constexpr int kIndexTiles = 64;     // parts of a sequence's rows that are counted side by side
constexpr int kIndexBlocks = 2048;  // MoBA blocks that a CTA of the index counts at most
constexpr int kIndexThreads = 256;  // of moba_count and moba_lists: rows of a step
constexpr int kOffsetsThreads = 1024;
constexpr int kItemRows = 128;   // rows of one list that a CTA attends for at most, unless its shape has others
constexpr int kUnionRows = 128;  // rows of a tile that may attend to the union of their blocks

/// Splits that attention_combine merges at most, and its dynamic shared memory: two numbers for each.
constexpr int kCombineSplitsMax = 64;
constexpr uint32_t kCombineShared = kCombineSplitsMax * 8;

/// Dynamic shared memory of the kernels of the index: a count for each block; two sums for each warp, of two turns; for
/// each block the next place of its list and a bit for each of kIndexThreads rows. `blocks`: of a sequence at most.
constexpr uint32_t kOffsetsShared = 2 * kOffsetsThreads / 32 * 8;
constexpr uint32_t count_shared(int32_t blocks = kIndexBlocks) {
  return static_cast<uint32_t>(blocks < kIndexBlocks ? blocks : kIndexBlocks) * 4;
}
constexpr uint32_t lists_shared(int32_t blocks = kIndexBlocks) {
  return static_cast<uint32_t>(blocks < kIndexBlocks ? blocks : kIndexBlocks) * (4 + kIndexThreads / 8);
}

/// Dynamic shared memory of an attention kernel with tiles of `rows` rows: the queries, two stages of K and V, and the
/// union.
constexpr uint32_t attention_shared(uint32_t rows, uint32_t head_dim) {
  return (rows + 4 * kKeyTile) * head_dim * 2 + kUnionBlocksMax / 8;
}

/// Likewise of the kernels of attend_hopper.cuh: 128 rows, kHopperStages stages, and their barriers.
constexpr int kHopperStages = 4;
constexpr uint32_t hopper_shared(uint32_t head_dim) {
  return (128 + 2 * kHopperStages * kKeyTile) * head_dim * 2 + kUnionBlocksMax / 8 + kHopperBarrierBytes;
}

/// Dynamic shared memory of moba_routed: the queries of 64 rows and two stages of K and V.
constexpr uint32_t routed_shared(uint32_t head_dim) {
  return (64 + 4 * kKeyTile) * head_dim * 2;
}

/// Shape S keeps a whole key block in shared memory, and its warpgroups have two tiles of 64 query rows each.
constexpr int kStationaryBlockMax = 256, kStationaryItemRows = 1024;
constexpr uint32_t stationary_shared(uint32_t head_dim, uint32_t block = kStationaryBlockMax) {
  return (4 * 64 + 2 * block) * head_dim * 2 + kHopperBarrierBytes;
}

/// Shape T has 64 queries, two stages of K and V, the weights of a key tile, and what its warps exchange: the maxima of
/// 16 keys and the sums of 4 for each query.
constexpr int kTransposedItemRows = 64;
constexpr int kSumsPitch = kTransposedItemRows + 8;  // floats; the 4 sums of a query lie in different banks
constexpr uint32_t transposed_shared(uint32_t head_dim) {
  return 5 * kKeyTile * head_dim * 2 + kTransposedItemRows * kKeyTile * 2 + 4 * kTransposedItemRows * 4 +
         4 * 4 * kSumsPitch * 4 + kHopperBarrierBytes;
}

/// Dynamic shared memory of moba_unite: the union, and a count for each warp.
constexpr uint32_t kUniteShared = kUnionBlocksMax / 8 + kThreads / 32 * 4;

/// One layer of the pool. `base` is the layer's first extent in page 0.
struct KvPool {
  const unsigned char* base = nullptr;
  uint64_t page_bytes = 0, head_bytes = 0;
  uint32_t v_offset = 0, ksum_offset = 0, kmean_offset = 0;
  int32_t block_tokens = 0, kv_heads = 0;
  uint32_t scale_offset = 0;  // 0: K and V are bf16; else codes of E4M3 (base/e4m3.h), and their scales are there
};

/// One sequence of a batch.
struct Sequence {
  int64_t q_begin = 0, kv_len = 0;
  int32_t first_token = 0;  // its first token's index in q, out and selection
  int32_t tokens = 0;
  int32_t splits = 1;                   // CTAs that share the keys of a row tile, at most AttentionArgs::splits
  const int32_t* pages = nullptr;       // page numbers
  const uint16_t* centroids = nullptr;  // bf16 [kv_heads, kv_len / mode.block, head_dim]; MoBA only
  attn::Mode mode;
};

/// The index of one sequence, and the states of its parts. A part is a row's attention over one chosen block; its place
/// is that of the row in the list of the block. Each array has one range for a KV head.
struct Routing {
  int32_t blocks = 0;             // complete MoBA blocks of the sequence
  int32_t tile_rows = 0;          // rows of each of kIndexTiles parts, a multiple of kIndexThreads
  int32_t entries = 0;            // places of a KV head
  int32_t items = 0;              // items of a KV head at most
  int32_t item_rows = kItemRows;  // of an item at most
  int32_t union_blocks = -1;      // blocks that a tile of kUnionRows rows chose in all, up to which it is a union tile
  int32_t* is_union = nullptr;  // [kv_heads, tiles] 1: a union tile; null: there are none. Lists have none of its rows
  int32_t* counts = nullptr;    // [kv_heads, kIndexTiles, blocks] rows of a tile that chose a block; then those before
  int32_t* offsets = nullptr;   // [kv_heads, blocks + 1] the first place of a block's list
  int32_t* item_first = nullptr;  // [kv_heads, blocks + 1] a block's first item
  int32_t* item_block = nullptr;  // [kv_heads, items]
  int32_t* list = nullptr;        // [kv_heads, entries] numbers of rows, ascending in each list
  int32_t* places = nullptr;      // [kv_heads, rows, top_k - 1] the place of each chosen block, of rows that choose
  uint16_t* o = nullptr;          // bf16 [kv_heads, entries, head_dim]
  float* m = nullptr;             // f32 [kv_heads, entries]
  float* d = nullptr;             // likewise
};

struct AttentionArgs {
  KvPool pool;
  const Sequence* sequences = nullptr;
  int32_t q_heads = 0, splits = 1;     // splits: the most of a sequence
  int32_t split_tokens = 0;            // tokens up to the last sequence with splits > 1
  float scale_log2 = 0;                // log2(e) / sqrt(head_dim)
  const uint16_t* q = nullptr;         // bf16 [tokens of the batch, q_heads, head_dim]
  uint16_t* out = nullptr;             // bf16 [tokens of the batch, q_heads, head_dim]
  const int32_t* selection = nullptr;  // [tokens of the batch, q_heads, chosen]
  int32_t chosen = 0;                  // entries of a row of `selection`
  float* split_o = nullptr;            // f32 [splits, split_tokens * q_heads, head_dim], of sequences with splits > 1
  float* split_m = nullptr;            // f32 [splits, split_tokens * q_heads]
  float* split_d = nullptr;            // likewise
  const Routing* routing = nullptr;    // one for each sequence, of the kernels that route
};

/// The gate over the centroids of complete MoBA blocks, and the kernel that makes the centroids.
struct GateArgs {
  KvPool pool;
  const Sequence* sequences = nullptr;
  int32_t q_heads = 0, chosen = 0;
  const uint16_t* q = nullptr;
  int32_t* selection = nullptr;  // [tokens of the batch, q_heads, chosen]
};
struct CentroidArgs {
  KvPool pool;
  const Sequence* sequences = nullptr;
  int32_t head_dim = 0;
};

}  // namespace mc::gpu

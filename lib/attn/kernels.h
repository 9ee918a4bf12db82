// The leaf routines of an instruction set (internal to lib/attn). The drivers (prefill.cc, decode.cc) handle pages,
// positions, blocks and threads. A leaf sees packed tiles and rows.
//
//   K panel   16 keys: [dim][16] f32, or [dim / 2][16][2] bf16 (pairs along dim)
//   K tile    keys / 16 panels, one after the other
//   V tile    [keys][dim] f32, or [dim / 16][keys / 2][16][2] bf16 (pairs along keys)
//   Q row     [dim] f32 or bf16
// dim is head_dim rounded up to 16, and keys are a multiple of 64; padding is zero. The arithmetic of a row depends on
// the tile and on how many of its keys the row sees, never on neighbouring rows. So prefill is independent of chunking.
//
// This header has only plain types, and the cpu_*.cc files use no inline function of any other header. An inline
// function that is compiled there would bring AVX-512 code into the whole program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mc::attn {

constexpr int kKeyTile = 256;        // keys of a prefill tile; each tile pays for softmax bookkeeping once
constexpr int kStripKeys = 64;       // keys of one register tile
constexpr int kRowTile = 6;          // rows of one register tile
constexpr int kRowGroups = 3;        // register tiles that share a strip of K or V while it is in L1
constexpr int kDecodeTile = 64;      // keys of a decode tile
constexpr int kDecodeRowsMax = 128;  // query heads of one KV head
constexpr int kDimMax = 512;         // head_dim
constexpr int kRun = 16;             // consecutive keys that never cross a page

/// One step of online softmax: the listed rows attend to keys hidden[i] .. visible[i] - 1 of the tile.
struct TileArgs {
  int dim;
  const void* k;
  const void* v;
  int keys;
  const void* q;  // row r at q + r * dim elements
  float* o;       // row r at o + r * dim
  float* m;       // base 2, -inf at first
  float* d;
  const int32_t* rows;     // [row_count]
  const int32_t* visible;  // [row_count], in 1 .. keys
  const int32_t* hidden;   // [row_count], below visible; null = all 0
  int row_count;
  float scale;     // log2(e) * softmax scale
  float* scratch;  // kScratchFloats
};
/// The larger of a prefill tile (scores, and weights as bf16) and a decode tile (scores, widened K and V).
constexpr int kScratchFloats = kDecodeRowsMax * kDecodeTile + 2 * kDecodeTile * kDimMax;
static_assert(2 * kRowTile * kRowGroups * kKeyTile <= kScratchFloats);

/// Decode directly from the pages: all listed rows see all `keys` keys. Rows of K beyond `keys` may be read up to the
/// next multiple of 4 (they are in the page). Their content is ignored.
struct DecodeTileArgs {
  bool bf16;     // element type of the runs
  int head_dim;  // elements from key to key in a run
  int dim;
  int keys;                   // 1 .. kDecodeTile
  const void* const* k_runs;  // [ceil(keys / kRun)]: rows of kRun consecutive keys
  const void* const* v_runs;
  const void* const* k_ahead;  // runs of the next tile, to prefetch; null = none. ahead_runs of them
  const void* const* v_ahead;
  int ahead_runs;
  const void* q;
  float* o;
  float* m;
  float* d;
  const int32_t* rows;
  int row_count;
  float scale;
  float* scratch;
};

/// Gate scores of the listed rows with one strip of centroids.
struct ScoreArgs {
  int dim;
  const void* q;
  const int32_t* rows;
  int row_count;
  const void* panels;  // 4 K panels
  float* scores;
  ptrdiff_t stride;
  float* top;
  ptrdiff_t top_stride;
};

/// Up to 64 centroids, bf16 [head_dim] each, anywhere in memory.
struct CentroidRows {
  int count = 0;
  const uint16_t* rows[kStripKeys];
};

struct Kernels {
  size_t element_bytes;  // of packed q, K and V: 4 = f32, 2 = bf16
  /// out[i] = the value of codes[i] (base/e4m3.h) times 2^exponent, as bf16, which is exact. Prefetches the `count`
  /// bytes at `ahead`, unless it is null.
  void (*widen_e4m3)(const uint8_t* codes, int count, int exponent, const void* ahead, uint16_t* out);
  /// Packs head_dim floats into one Q row. bf16_kv rounds them to bf16 for every packed type.
  void (*pack_q)(const float* q, int head_dim, int dim, bool bf16_kv, void* row);
  /// Packs `valid` rows of head_dim elements at `rows` into one K panel.
  void (*pack_k)(bool bf16, const void* rows, int valid, int head_dim, int dim, void* panel);
  /// Packs the rows into keys first_key .. first_key + 15 of a V tile.
  void (*pack_v)(bool bf16, const void* rows, int valid, int head_dim, int dim, int first_key, int keys, void* tile);
  /// scores[i * stride + n] = q . k_n for the listed rows and the 64 keys of 4 K panels; top[i * top_stride] = the
  /// largest of them, NaN left out.
  void (*scores)(const ScoreArgs& args);
  /// Computes the scores of `scores`, bit for bit, from centroids that are read in place. args.panels is not used.
  /// Prefetches the centroids of `ahead`. Null: the driver packs the centroids and calls `scores`.
  void (*score_rows)(const ScoreArgs& args, int head_dim, const CentroidRows& centroids, const CentroidRows& ahead);
  /// sum[i] = row[i] if first, else sum[i] + row[i].
  void (*add_row)(const float* row, int head_dim, bool first, float* sum);
  /// mean[i] = bf16(sum[i] / tokens).
  void (*mean_row)(const float* sum, float tokens, int head_dim, uint16_t* mean);
  void (*tile)(const TileArgs& args);
  /// out[0 .. head_dim) = o * factor.
  void (*scale_row)(const float* o, float factor, int head_dim, float* out);
  void (*decode)(const DecodeTileArgs& args);
};

extern const Kernels kAvx2Kernels;        // f32 tiles, from f32 or bf16 KV
extern const Kernels kAvx512Kernels;      // f32 tiles, from f32 or bf16 KV
extern const Kernels kAvx512Bf16Kernels;  // bf16 tiles, from bf16 KV whose head_dim is a multiple of:
constexpr int kAvx512Bf16Dims = 32;

}  // namespace mc::attn

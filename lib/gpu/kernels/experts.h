// Arguments of the kernels of a mixture of experts (experts_sm80.cu, gemm_sm80.cu), as the host fills them and the
// device reads them. gpu/mixture.h launches them. A row has `per_token` experts. Each pair of a row and one of its
// experts is an entry: entry row * per_token + i is the row's i-th expert, in ascending order. The entries of one
// expert are a group. Groups follow one another in ascending order of expert, and the place of an entry among all is
// its slot.
#pragma once

#include <cstdint>

#include "gpu/kernels/attention.h"

namespace mc::gpu {

constexpr uint32_t kExpertsMax = 512;

/// Chooses the experts of each row: the larger score first, then the lower expert; NaN counts as minus infinity. Shares
/// are the softmax over all scores, or over the chosen ones. Grid: (rows / kRowsPerCta, rounded up).
struct RouteArgs {
  const float* scores = nullptr;  // [rows, stride], of which the first `experts` columns are read
  int32_t* chosen = nullptr;      // [rows, per_token]: experts, ascending
  float* shares = nullptr;        // likewise
  int32_t rows = 0, experts = 0, stride = 0, per_token = 0;
  bool normalise = false;  // over the chosen ones
};

/// Rows of one expert that a CTA of an expert's product takes.
struct alignas(16) ExpertTile {
  int32_t expert = -1;  // -1: there is no such tile
  int32_t first = 0;    // slot
  int32_t rows = 0;
};

/// Gives each entry its slot, in the order of rows, and cuts the groups into tiles. Grid: (experts); group_shared()
/// bytes of shared memory.
struct GroupArgs {
  const int32_t* chosen = nullptr;  // [entries]
  int32_t* rows = nullptr;          // [slots]: row
  int32_t* slots = nullptr;         // [entries]
  ExpertTile* tiles = nullptr;      // [tile_count]
  int32_t entries = 0, experts = 0, per_token = 0;
  int32_t tile_rows = 0;   // of a tile at most
  int32_t tile_count = 0;  // at least entries / tile_rows + min(experts, entries)
};
/// Shared memory has a counter for each expert, two sums of each of four warps, and the votes of four warps in two
/// rounds.
constexpr uint32_t group_shared(uint32_t experts) {
  return experts * 4 + 64;
}

/// y[slot] = x[row of the slot] w[expert]^T. Grid: (columns / 64, rounded up, tiles); product_shared() bytes of shared
/// memory, for tiles of 64 or 16 rows.
struct ExpertProductArgs {
  const uint16_t* x = nullptr;    // bf16 [rows, inner]; inner a multiple of 8
  const uint16_t* w = nullptr;    // bf16 [experts, columns, inner]
  float* y = nullptr;             // [slots, columns]
  const int32_t* rows = nullptr;  // [slots]: row of x; null: it is the slot
  const ExpertTile* tiles = nullptr;
  int32_t columns = 0, inner = 0;
};

/// x[row] += the sum of share * answer over the row's experts, in ascending order, and then of the shared expert. Grid:
/// (rows).
struct CombineArgs {
  const float* answers = nullptr;  // [slots, columns]
  const int32_t* slots = nullptr;  // [rows, per_token]
  const float* shares = nullptr;   // [rows, per_token]
  const float* shared = nullptr;   // [rows, columns]: the answer of the shared expert; null: there is none
  const float* scores = nullptr;   // [rows, stride]: column `experts` is the gate of the shared expert
  float* x = nullptr;              // [rows, columns]
  int32_t columns = 0, per_token = 0, experts = 0, stride = 0;
};

}  // namespace mc::gpu

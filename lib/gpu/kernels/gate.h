// Shapes and arguments of the gate's kernels (gate_sm80.cu), as the host fills them and the device reads them.
#pragma once

#include "gpu/kernels/attention.h"

namespace mc::gpu {

constexpr int kCentroidBlocks = 8;  // of a CTA of moba_centroids

constexpr int kGateRows = 128;  // of a CTA of moba_gate: 32 of each warp
constexpr int kGateChunk = 64;  // blocks whose centroids a CTA has in shared memory at a time
constexpr int kKeptMax = 16;    // blocks that a thread of moba_gate keeps of each of its rows

/// Dynamic shared memory of moba_gate: two stages of centroids, which begin as the queries; for each warp four lists
/// of what its threads keep, a word apart from each other's banks; and the lengths of the lists.
constexpr uint32_t kKeptList = 2 * kKeptMax * 32 * 4 + 4, kLengths = 4 * 33 * 4;
constexpr uint32_t gate_shared(uint32_t head_dim) {
  return 2 * kGateChunk * head_dim * 2 + kGateRows / 32 * (4 * kKeptList + kLengths);
}

/// The gate of decode rows: moba_scores writes the scores of a tile of kScoreRows rows, moba_choose chooses by them.
constexpr int kScoreRows = 16;
constexpr int kScoreBlocks = 64;     // of a CTA of moba_scores
constexpr int kChooseThreads = 256;  // of moba_choose, a CTA of which has one row
constexpr uint32_t kChooseShared = 2 * kChooseThreads / 32 * 8 + kChosenMax * 4;
constexpr uint32_t scores_shared(uint32_t head_dim) {
  return (kScoreRows + kScoreBlocks) * head_dim * 2;
}

struct ScoreArgs {
  GateArgs gate;
  const uint16_t* centroids = nullptr;  // of the first sequence: the place of a sequence's scores is by that of its own
  float* scores = nullptr;              // of a sequence f32 [kv_heads, kScoreRows, blocks]
};

}  // namespace mc::gpu

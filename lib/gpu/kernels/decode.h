// Shapes of the decode kernels whose CTAs form clusters (decode_sm90a.cu).
#pragma once

#include "gpu/kernels/attention.h"

namespace mc::gpu {

constexpr int kClusterCtas = 8;         // the most that every chip of compute capability 9.0 runs as a cluster
constexpr int kClusterThreads = 256;    // of a CTA: all score blocks, kThreads of them attend
constexpr int kClusterRows = 16;        // query rows of a cluster
constexpr int kClusterSplitsMax = 64;   // of a sequence
constexpr int kClusterStages = 3;       // tiles of K and V in shared memory
constexpr int kClusterBlocksMax = 272;  // MoBA blocks that the rows need: each chooses kChosenMax and has its own
constexpr int kClusterPlaces = kChosenMax + 1;  // of a row's choice; odd: rows lie in different banks

/// Dynamic shared memory of a CTA: the queries, the stages, what the warps merge, the lists of the gate, the choice,
/// the union, and the CTA's columns of the states of `splits` splits.
constexpr uint32_t cluster_shared(uint32_t head_dim, uint32_t splits = kClusterSplitsMax) {
  constexpr uint32_t kWarps = kClusterThreads / 32;
  const uint32_t tiles = (kClusterRows + 2 * kClusterStages * kKeyTile) * head_dim * 2;
  const uint32_t scratch = (head_dim / 2 + 4) * kThreads * 4;
  const uint32_t gate = (2 * kWarps * kChosenMax + kClusterPlaces) * kClusterRows * 4;
  const uint32_t blocks = kUnionBlocksMax / 8 + 2 * kClusterBlocksMax * 4;
  const uint32_t states = splits * kClusterRows * (head_dim / kClusterCtas + 2) * 4;
  return tiles + scratch + gate + blocks + states;
}

}  // namespace mc::gpu

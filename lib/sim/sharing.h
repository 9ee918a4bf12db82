// Shared prompts in a trace: how often each block is used, which request continues which other one, and how far apart
// two uses of a block are.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/trace.h"

namespace mc::sim {

inline constexpr size_t kNoParent = SIZE_MAX;

struct Sharing {
  /// Leading blocks that all requests have in common (a system prompt). The block after them names a session.
  uint32_t common_blocks = 0;
  std::vector<uint64_t> uses;           // of each block number
  std::vector<uint32_t> known_blocks;   // of each request: leading run seen in any request before
  std::vector<size_t> parents;          // the last request before that used the deepest known block,
                                        // if it lies beyond the common ones; else kNoParent
  std::vector<uint64_t> session_sizes;  // requests of each session, largest first
  std::vector<double> reuse_gaps_s;     // of each reuse of a block: since its last use
  std::vector<double> stack_distances;  // likewise: distinct blocks touched since; requests are read from their ends
};

Sharing find_sharing(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks);

}  // namespace mc::sim

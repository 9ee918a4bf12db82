// One cache replaying a trace under a choice of replacement rules, as in Mooncake's eviction table
// (arXiv:2407.00079, section 4): per request, the leading run of resident blocks is counted before any change, then
// every block is touched from the last to the first, storing the missing ones, one victim a store when full. Blocks are
// independent here: nothing holds a chain together but the order of touches.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sim/trace.h"

namespace mc::sim {

/// The facts that a rule may use when a block is touched. Stamps count touches.
struct BlockUse {
  uint64_t stamp = 0, stored = 0;
  uint64_t count = 0;       // touches since it was stored, the storing one included
  uint64_t count_ever = 0;  // touches since the trace began
  uint64_t position = 0;    // its place in the request
  uint64_t next_use = 0;    // place in the whole trace, in the order of prompts; UINT64_MAX = none
};
/// Priorities are compared as a whole. The block with the least is evicted first.
using BlockRank = std::array<int64_t, 3>;

struct Replacement {
  std::string_view name;
  std::string_view summary;
  BlockRank (*rank)(const BlockUse&);
  bool head_first = false;  // touches from the first block to the last
  bool bypass = false;      // a block that would be its own victim is not stored
};

std::span<const Replacement> replacements();
/// nullptr when there is none of that name.
const Replacement* find_replacement(std::string_view name);

/// The leading run of each request in a cache of `capacity` blocks; kUnlimitedBlocks never evicts.
std::vector<uint32_t> replay_cache(const TraceBlocks& trace, uint64_t capacity, const Replacement& replacement);

}  // namespace mc::sim

// The reads of a simulated node from its SSD, one after another. A block counts as in DRAM from the dispatch of the
// request that reads it, so later requests for the block wait here until it has been read.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "sched/sched.h"
#include "sim/tiers.h"

namespace mc::sim {

class DiskReads {
 public:
  /// Reads those of the blocks that are on SSD alone, `bytes` in all. Returns the time at which all blocks are in DRAM,
  /// with those that earlier requests read; now_s when they are there already.
  double begin(const TieredCaches& caches, uint32_t node, std::span<const uint32_t> blocks, double bytes,
               const sched::Path& path, double now_s);

 private:
  double free_s_ = 0;
  std::unordered_map<uint32_t, double> read_at_s_;  // of blocks whose read may not be over
};

}  // namespace mc::sim

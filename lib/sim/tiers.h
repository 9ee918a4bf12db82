// Caches of many nodes, each DRAM before SSD. A block that DRAM evicts stays on SSD while there is room, and returns to
// DRAM when it is used. Blocks are TraceBlocks' numbers. A block is pending on a node from the dispatch of the request
// that computes it until settle(): it counts for later requests of the node, but other nodes cannot read it.
// Matching a prompt against all nodes is one pass over its blocks with two words of bits for every 64 nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/index.h"
#include "sim/lru.h"

namespace mc::sim {

/// The leading blocks of a prompt on each node.
struct CacheMatch {
  explicit CacheMatch(uint32_t nodes) : resident(nodes), readable(nodes), on_ssd(nodes) {}
  std::vector<uint32_t> resident;  // with the pending ones
  std::vector<uint32_t> readable;  // without them
  std::vector<uint32_t> on_ssd;    // of the readable ones, those on SSD alone
};

class TieredCaches {
 public:
  /// Blocks of each node; kUnlimitedBlocks never evicts, 0 keeps nothing.
  TieredCaches(uint32_t node_count, uint64_t dram_blocks, uint64_t ssd_blocks, uint32_t unique_blocks);

  void match(std::span<const uint32_t> blocks, CacheMatch& out);
  /// The readable runs of a prompt from block `first` on, up to the first block that no node can send. Sorted by first
  /// block and node, at most `runs_max` runs, as those of kv::PrefixIndex.
  void runs(std::span<const uint32_t> blocks, uint32_t first, size_t runs_max, std::vector<kv::NodeRun>& out) const;
  bool has_ssd() const { return ssd_capacity_ > 0; }
  bool is_on_ssd(uint32_t node, uint32_t block) const {
    return has_ssd() && on_ssd_[block * words_ + node / 64] >> (node % 64) & 1;
  }
  /// How many of the blocks the node holds on SSD only.
  uint32_t on_ssd(uint32_t node, std::span<const uint32_t> blocks) const;
  /// Touches or inserts all blocks from the last to the first; new ones are pending, made by `request`.
  void use(uint32_t node, std::span<const uint32_t> blocks, uint32_t request);
  /// The request's blocks are computed, or its fetch is over.
  void settle(uint32_t node, std::span<const uint32_t> blocks);
  /// The first `end` blocks are there and readable, from `first` on because a copy of them came.
  void copy_in(uint32_t node, std::span<const uint32_t> blocks, uint32_t first);
  /// Calls each(block) for those of the blocks that a copy brought to the node and no request has used yet.
  template <typename Each>
  void use_copied(uint32_t node, std::span<const uint32_t> blocks, const Each& each) {
    if (copied_.empty()) return;
    for (const uint32_t block : blocks) {
      uint64_t& word = copied_[block * words_ + node / 64];
      if ((word >> (node % 64) & 1) == 0) continue;
      word &= ~(uint64_t{1} << (node % 64));
      each(block);
    }
  }
  /// The request that makes a pending block was given up. The block comes from the request `heir`; without one the node
  /// forgets it. A block that is not pending stays as it is.
  void pass_on(uint32_t node, uint32_t block, std::optional<uint32_t> heir);
  bool is_readable(uint32_t node, uint32_t block) const { return holds(node, block) && !is_pending(node, block); }
  /// The node forgets everything.
  void drop(uint32_t node);
  /// The request that last began to make the block; UINT32_MAX before the first.
  uint32_t maker(uint32_t block) const { return makers_[block]; }
  uint32_t replicas(uint32_t block) const;
  bool holds(uint32_t node, uint32_t block) const { return held_[block * words_ + node / 64] >> (node % 64) & 1; }

 private:
  bool is_pending(uint32_t node, uint32_t block) const {
    return pending_[block * words_ + node / 64] >> (node % 64) & 1;
  }
  /// Makes the block the node's latest and evicts what has no room. True: the block was not there.
  bool touch(uint32_t node, uint32_t block);

  uint64_t dram_capacity_, ssd_capacity_;
  size_t words_;
  std::vector<Lru> dram_, ssd_;
  std::vector<uint64_t> held_, pending_;  // unique_blocks x words_: bit i of a block's words = node i
  std::vector<uint64_t> on_ssd_;          // likewise: blocks on SSD alone; empty without SSD
  std::vector<uint64_t> copied_;          // likewise; empty before the first copy
  std::vector<uint32_t> makers_;
  std::vector<uint64_t> alive_, alive_readable_;  // scratch of match()
};

}  // namespace mc::sim

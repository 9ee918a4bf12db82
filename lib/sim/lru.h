// A cache of blocks that evicts the block unused for longest, and one such cache for each of many nodes, which answer
// how much of a prompt each node holds. Blocks are TraceBlocks' numbers. These are the caches of the reference rules
// (sim/paper.h). They are plain on purpose: blocks are independent, so an id after two prefixes is one block. Live
// nodes cache in kv::Pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace mc::sim {

inline constexpr uint64_t kUnlimitedBlocks = UINT64_MAX;

class Lru {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  /// `capacity` >= 1.
  explicit Lru(uint64_t capacity);
  bool holds(uint32_t block) const { return slots_.contains(block); }
  /// Makes `block` the most recent, inserting it if absent; returns the evicted block, or kNone.
  uint32_t use(uint32_t block);
  /// Forgets `block` if it is there.
  void erase(uint32_t block);
  size_t size() const { return slots_.size(); }

 private:
  struct Slot {
    uint32_t block, newer, older;
  };
  void unlink(uint32_t slot);
  void push_newest(uint32_t slot);

  uint64_t capacity_;
  std::vector<Slot> ring_;                        // [0] is both ends: its `older` is the newest
  std::vector<uint32_t> unused_;                  // slots of erased blocks
  std::unordered_map<uint32_t, uint32_t> slots_;  // looked up only, never walked
};

/// One Lru for each node, and for each block the set of nodes that hold it. Matching a prompt against all nodes is one
/// pass over its blocks with a word of bits for every 64 nodes.
class NodeCaches {
 public:
  /// `capacity` blocks each; 0 keeps nothing, kUnlimitedBlocks everything.
  NodeCaches(uint32_t node_count, uint64_t capacity, uint32_t unique_blocks);
  /// matches[i] = how many leading ones of `blocks` are on node i; matches has node_count elements.
  void match(std::span<const uint32_t> blocks, std::span<uint32_t> matches);
  /// Touches or inserts all of `blocks` on `node`, from the last to the first, so that heads stay longest.
  void use(uint32_t node, std::span<const uint32_t> blocks);

 private:
  std::span<uint64_t> holders(uint32_t block) { return std::span(holders_).subspan(size_t{block} * words_, words_); }

  uint64_t capacity_;
  size_t words_;
  std::vector<Lru> caches_;
  std::vector<uint64_t> holders_;  // unique_blocks x words_: bit i of a block's words = node i has it
  std::vector<uint64_t> alive_;    // scratch of match()
};

}  // namespace mc::sim

// The chains of a pool's cached blocks: a forest by parent hash, with the order in which its leaves leave memory.
//
//   head <- block <- block <- tail        a block names its parent; the children of an absent parent are orphans, and
//             `----- block <- tail        the parent adopts them when it is added
//
//   held(block) = used + held children > 0    a used block holds its ancestors
//   leaf        = not held, no children       only leaves are evicted, so a chain loses its tail first
//
// A page number names a block here, and one page holds one block. Ranks come from the eviction policy.
// Costs: O(log pages) for each change of a leaf, O(1) else, plus the depth of the chain when its first use starts or
// its last one ends.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "kv/leaf_heap.h"

namespace mc::kv {

class ChainForest {
 public:
  /// Pages up to `count` may be added from now on.
  void resize(size_t count);

  // ---- blocks ----
  /// Adds an unused block, and adopts its children. Neither the page nor the hash may be here. `parent` is zero for a
  /// head, and may be absent.
  void add(PageIndex page, const BlockHash& hash, const BlockHash& parent, uint64_t rank);
  /// Removes a block, even a held one. Its children become orphans.
  void remove(PageIndex page);
  /// The page of the block, or kNoPage.
  PageIndex find(const BlockHash& hash) const;
  bool has(PageIndex page) const { return at(page).here; }
  size_t size() const { return index_.size(); }
  /// `parent`, or zero where a block `hash` below it would close a cycle. Real chains form none, but the names may come
  /// from a peer.
  BlockHash acyclic_parent(const BlockHash& hash, const BlockHash& parent) const;

  // ---- use and order ----
  void set_used(PageIndex page, bool used);
  void set_rank(PageIndex page, uint64_t rank);
  bool is_used(PageIndex page) const { return at(page).used; }
  bool is_held(PageIndex page) const { return at(page).held; }
  bool is_leaf(PageIndex page) const { return leaves_.contains(page); }
  /// The number of blocks that nothing holds. All of them can be evicted, one leaf after the other.
  uint32_t unheld() const { return unheld_; }
  /// The leaf of the least rank. There is one while unheld() > 0.
  PageIndex first_leaf() const;
  /// Up to `count` leaves by ascending rank.
  std::vector<PageIndex> leaves(uint32_t count) const { return leaves_.least(count); }

  // ---- chains ----
  /// The block `root` and its descendants, parents before children. Without `root` here: the descendants of that id.
  std::vector<PageIndex> subtree(const BlockHash& root) const;
  /// All blocks: those without a parent here first, then level by level, each level sorted by hash.
  std::vector<PageIndex> by_level() const;

  /// Aborts the process if the links do not agree. O(pages).
  void check() const;

 private:
  struct Node {
    bool here = false, used = false;
    bool held = false;     // used or blocked > 0, as last counted at the parent
    uint32_t blocked = 0;  // children that are held
    // Siblings have the same parent hash, whether or not the parent is here.
    PageIndex parent = kNoPage, first_child = kNoPage, next_sibling = kNoPage, prev_sibling = kNoPage;
    uint64_t rank = 0;
    BlockHash hash, parent_hash;
  };

  Node& at(PageIndex page);
  const Node& at(PageIndex page) const { return const_cast<ChainForest*>(this)->at(page); }
  void settle(PageIndex page);
  void unlink_from_siblings(const Node& n);
  void check_children(PageIndex page) const;

  std::vector<Node> nodes_;  // by page
  LeafHeap leaves_;
  std::unordered_map<BlockHash, PageIndex, Id128Hash> index_;
  std::unordered_map<BlockHash, PageIndex, Id128Hash> orphans_;  // absent parent -> its first child here
  uint32_t unheld_ = 0;
};

}  // namespace mc::kv

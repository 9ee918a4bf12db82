// The conductor's prefix index: which node holds which block. One walk over a prompt's chain gives every node's
// leading match. The index is a copy of the nodes' own tables. Their numbered events update it, a snapshot replaces a
// node's part when a number is missing, and the part is removed when the node leaves.
//
//   hash -> set of holders, sorted by node:   3f2a.. -> #7 { p0 host, p1 host +1 pending, c0 host }
//
// Runs of blocks have the same holders, so a set is stored once and blocks name it by number: a block
// costs one slot of an open-addressing table, and a walk looks at holders only where the number changes.
//
// pending: a request whose prompt contains the block was sent to that node, so the block will be there soon. The next
// request of a session may come before the prefill of the first one ends, and must find the block. Only resident
// blocks can be read. Each add_pending is undone by one settle_pending.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kv/events.h"

namespace mc::kv {

/// Position of a node in the index; a removed node's ordinal is given to the next new one.
using NodeOrdinal = uint16_t;

struct NodeMatch {
  NodeOrdinal node = 0;
  uint32_t resident = 0;   // leading blocks that are readable there
  uint32_t expected = 0;   // leading blocks that are readable or pending there; >= resident
  uint32_t on_device = 0;  // number of the resident blocks in each tier
  uint32_t on_disk = 0;
  bool operator==(const NodeMatch&) const = default;
};

/// A run of a chain's blocks that one node holds.
struct NodeRun {
  NodeOrdinal node = 0;
  uint32_t first = 0, end = 0;
  uint32_t on_disk = 0;  // number of its blocks that are on disk
  bool operator==(const NodeRun&) const = default;
};

/// Adds a block that is on `node` to the node's run, or begins a run. False: `runs_max` runs are there, and none of
/// them continues with the block. The blocks of a chain are added in order.
bool add_to_run(std::vector<NodeRun>& runs, size_t runs_max, NodeOrdinal node, uint32_t block, bool on_disk);

/// Compares the matches of two prompts, both sorted by ordinal. Calls changed(match) for each node whose match is new
/// or different, with an empty match for a node that is no longer in it. A match with pending blocks always counts as
/// different.
template <class Changed>
void for_each_change(std::span<const NodeMatch> before, std::span<const NodeMatch> now, const Changed& changed) {
  size_t i = 0;
  for (const NodeMatch& m : now) {
    while (i < before.size() && before[i].node < m.node) changed(NodeMatch{.node = before[i++].node});
    const bool same = i < before.size() && before[i] == m;
    if (i < before.size() && before[i].node == m.node) ++i;
    if (!same || m.expected != m.resident) changed(m);
  }
  while (i < before.size()) changed(NodeMatch{.node = before[i++].node});
}

class PrefixIndex {
 public:
  enum class Applied : uint8_t { ok, need_snapshot };
  /// A node itself says which blocks it has, so without bounds one node, or many that one liar registers, could fill
  /// the memory of the conductor.
  struct Bounds {
    uint64_t of_node = uint64_t{1} << 22;  // readable blocks of a node
    uint64_t of_all = uint64_t{1} << 26;   // readable blocks of all nodes; beyond it a node has `always` at most
    uint64_t always = uint64_t{1} << 12;
  };

  explicit PrefixIndex(const Bounds& bounds) : bounds_(bounds) {}
  PrefixIndex() : PrefixIndex(Bounds{}) {}

  /// Registers a node, or returns its ordinal when it is registered. At most 65,535 nodes.
  NodeOrdinal add_node(const NodeId& name);
  /// Removes the node and all its blocks, pending marks included.
  void remove_node(const NodeId& name);
  std::optional<NodeOrdinal> find_node(const NodeId& name) const;
  const NodeId& name_of(NodeOrdinal node) const;

  /// Applies events in order. Events that were applied before are skipped. After a gap in the numbers nothing more is
  /// applied, and the node's blocks stay unchanged until replace() gets its snapshot.
  Applied apply(NodeOrdinal node, std::span<const BlockEvent> events);
  /// Replaces the node's blocks by `blocks`, a snapshot as of event `seq`. Pending marks stay.
  void replace(NodeOrdinal node, uint64_t seq, std::span<const ResidentBlock> blocks);
  /// Number of the last event applied, or of the snapshot.
  uint64_t seq(NodeOrdinal node) const { return at(node).seq; }
  bool needs_snapshot(NodeOrdinal node) const { return at(node).needs_snapshot; }

  void add_pending(NodeOrdinal node, std::span<const BlockHash> hashes);
  void settle_pending(NodeOrdinal node, std::span<const BlockHash> hashes);

  /// Leading matches of a chain: nodes with expected > 0 only, by ordinal. One walk over the chain.
  std::vector<NodeMatch> match(std::span<const BlockHash> hashes) const;
  /// Writes the matches into `out` and reuses its memory, so it allocates nothing once `out` has grown.
  void match(std::span<const BlockHash> hashes, std::vector<NodeMatch>& out) const;
  /// The readable runs of a chain from block `first` on, up to the first block that no node has readable. Sorted by
  /// first block and node. At most `runs_max` runs.
  void runs(std::span<const BlockHash> hashes, uint32_t first, size_t runs_max, std::vector<NodeRun>& out) const;
  /// Whether the block is readable on that node.
  bool holds(NodeOrdinal node, const BlockHash& hash) const;
  /// Nodes on which the block is readable, by ordinal. Their number is the replication of a hot block.
  std::vector<NodeOrdinal> holders(const BlockHash& hash) const;

  /// Distinct blocks, pending ones included.
  size_t block_count() const { return block_count_; }
  /// The number of different sets of holders, and the memory of the index.
  size_t set_count() const { return set_count_; }
  size_t memory_bytes() const;
  /// Readable blocks of one node.
  uint64_t resident_count(NodeOrdinal node) const { return at(node).resident_count; }
  /// The index takes no more blocks of the node. Its further blocks are unknown here, so they are not reused.
  bool is_full(NodeOrdinal node) const {
    const uint64_t count = at(node).resident_count;
    return count >= bounds_.of_node || (resident_count_ >= bounds_.of_all && count >= bounds_.always);
  }
  /// Readable blocks of all nodes; a block counts for each node that has it.
  uint64_t resident_count() const { return resident_count_; }
  /// Aborts unless the counts agree with the table. O(blocks).
  void check() const;

 private:
  static constexpr uint8_t kAbsent = 0xff;
  struct Holder {
    NodeOrdinal node = 0;
    uint8_t tier = kAbsent;  // Tier, or kAbsent when only pending
    uint32_t pending = 0;    // requests: one client alone may have more than 65,535 of one prompt
    bool operator==(const Holder&) const = default;
  };
  struct Node {
    NodeId name;
    bool used = false;
    bool needs_snapshot = false;
    uint64_t seq = 0;
    uint64_t resident_count = 0;
  };
  using Holders = std::vector<Holder>;
  using SetId = uint32_t;
  static constexpr SetId kNoSet = 0;  // set of a free slot; set 0 is the empty set
  struct Set {
    Holders holders;
    uint32_t blocks = 0;  // number of blocks that name this set; at 0 the set's number is free
    uint64_t hash = 0;
    SetId next = kNoSet;  // next in its bucket, or next free number
  };
  struct Slot {
    BlockHash hash;
    SetId set = kNoSet;
  };
  struct Alive {  // a node that holds all blocks of the walk so far
    uint32_t at;  // index in the result
    uint8_t tier;
  };

  Node& at(NodeOrdinal node);
  const Node& at(NodeOrdinal node) const { return const_cast<PrefixIndex*>(this)->at(node); }
  size_t home(const BlockHash& hash) const;
  /// The slot that has the block, or the one where it belongs.
  size_t place_of(const BlockHash& hash) const;
  Slot* find(const BlockHash& hash);
  const Slot* find(const BlockHash& hash) const { return const_cast<PrefixIndex*>(this)->find(hash); }
  Slot& find_or_insert(const BlockHash& hash);
  void erase(Slot* slot);
  void grow();
  SetId intern(Holders&& holders);
  void release(SetId set);
  /// Replaces the block's holders by the result of `change`, and frees its slot when none are left.
  template <class Change>
  void alter(const BlockHash& hash, Change change);
  template <class Change>
  void alter_all(Change change);
  static Holder& holder_in(Holders& holders, NodeOrdinal node);
  void store(NodeOrdinal node, const BlockHash& hash, Tier tier);
  void drop(NodeOrdinal node, const BlockHash& hash);
  static void begin(const Holders& holders, uint32_t blocks, std::vector<NodeMatch>& out);
  void keep_first(const Holders& first, const Holders& next) const;
  static void advance(std::vector<NodeMatch>& out, const std::vector<Alive>& alive, uint32_t blocks);
  void keep(const Holders& holders, const std::vector<NodeMatch>& out) const;

  Bounds bounds_;
  uint64_t resident_count_ = 0;
  std::vector<Node> nodes_;
  std::map<NodeId, NodeOrdinal> ordinals_;
  std::vector<Slot> slots_ = std::vector<Slot>(64);  // a power of two; linear probing in the order of homes
  size_t block_count_ = 0;
  std::vector<Set> sets_ = std::vector<Set>(1);
  std::vector<SetId> buckets_ = std::vector<SetId>(64, kNoSet);  // a power of two
  SetId free_set_ = kNoSet;
  size_t set_count_ = 0;
  Holders scratch_;
  mutable std::vector<Alive> alive_;  // scratch memory of a walk; the index belongs to one thread
};

}  // namespace mc::kv

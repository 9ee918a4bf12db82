// The conductor's prefix index: which node holds which block. One walk over a prompt's chain gives
// every node's leading match. It is a cache of the nodes' own books: fed by their numbered events,
// replaced from a snapshot when a number is missing, forgotten when a node goes away.
//
//   hash -> holders, sorted by node:   3f2a.. -> { p0 host, p1 host +1 pending, c0 host }
//
// pending: a request was sent to that node whose prompt contains the block, so it will be there
// soon. The next request of a session comes before the first one's prefill ends and must find it;
// but only resident blocks can be read. Each add_pending is undone by one settle_pending.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
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
  uint32_t on_device = 0;  // of the resident ones, how many in each tier
  uint32_t on_disk = 0;
  bool operator==(const NodeMatch&) const = default;
};

class PrefixIndex {
 public:
  enum class Applied : uint8_t { ok, need_snapshot };

  /// Registers a node (or returns its ordinal when it is here). At most 65,535 nodes.
  NodeOrdinal add_node(const NodeId& name);
  /// Forgets the node and everything it holds, pending marks included.
  void remove_node(const NodeId& name);
  std::optional<NodeOrdinal> find_node(const NodeId& name) const;
  const NodeId& name_of(NodeOrdinal node) const;

  /// Applies events in order. Events already seen are passed over; with a number missing nothing
  /// more is applied and the node's snapshot is needed: until replace() its blocks stay as they were.
  Applied apply(NodeOrdinal node, std::span<const BlockEvent> events);
  /// Replaces what the node holds by `blocks`, true as of event `seq`. Pending marks stay.
  void replace(NodeOrdinal node, uint64_t seq, std::span<const ResidentBlock> blocks);
  /// Number of the last event applied, or of the snapshot.
  uint64_t seq(NodeOrdinal node) const { return at(node).seq; }
  bool needs_snapshot(NodeOrdinal node) const { return at(node).needs_snapshot; }

  void add_pending(NodeOrdinal node, std::span<const BlockHash> hashes);
  void settle_pending(NodeOrdinal node, std::span<const BlockHash> hashes);

  /// Leading matches of a chain: nodes with expected > 0 only, by ordinal. One walk over the chain.
  std::vector<NodeMatch> match(std::span<const BlockHash> hashes) const;
  /// The longest resident match; ties go to the lowest ordinal. nullopt when nobody has the first block.
  std::optional<NodeMatch> best_holder(std::span<const BlockHash> hashes) const;
  /// Whether the block is readable on that node.
  bool holds(NodeOrdinal node, const BlockHash& hash) const;
  /// Nodes on which the block is readable, by ordinal: how far a hot block is replicated.
  std::vector<NodeOrdinal> holders(const BlockHash& hash) const;

  /// Distinct blocks, pending ones included.
  size_t block_count() const { return blocks_.size(); }
  /// Readable blocks of one node.
  uint64_t resident_count(NodeOrdinal node) const { return at(node).resident_count; }
  /// Aborts unless the counts agree with the table. O(blocks).
  void check() const;

 private:
  static constexpr uint8_t kAbsent = 0xff;
  struct Holder {
    NodeOrdinal node = 0;
    uint8_t tier = kAbsent;  // Tier, or kAbsent when only pending
    uint16_t pending = 0;
  };
  struct Node {
    NodeId name;
    bool used = false;
    bool needs_snapshot = false;
    uint64_t seq = 0;
    uint64_t resident_count = 0;
  };
  using Holders = std::vector<Holder>;

  Node& at(NodeOrdinal node);
  const Node& at(NodeOrdinal node) const { return const_cast<PrefixIndex*>(this)->at(node); }
  Holder& holder_for(NodeOrdinal node, const BlockHash& hash);
  void store(NodeOrdinal node, const BlockHash& hash, Tier tier);
  void drop(NodeOrdinal node, const BlockHash& hash);
  void erase_if_empty(const BlockHash& hash, NodeOrdinal node);
  static void step(const Holders& holders, uint32_t block, std::vector<NodeMatch>& alive, std::vector<NodeMatch>& next,
                   std::vector<NodeMatch>& ended);
  template <class Change>
  void sweep(Change change);

  std::vector<Node> nodes_;
  std::map<NodeId, NodeOrdinal> ordinals_;
  std::unordered_map<BlockHash, Holders, Id128Hash> blocks_;
};

}  // namespace mc::kv

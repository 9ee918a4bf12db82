// The conductor's prefix index: which node holds which block. One walk over a prompt's chain gives
// every node's leading match. It is a cache of the nodes' own books: fed by their numbered events,
// replaced from a snapshot when a number is missing, forgotten when a node goes away.
//
//   hash -> holders, in order of enrolment:   3f2a.. -> { p0 host, p1 host +1 pending, c0 host }
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

/// A block came to a node or left it; snapshots are lists of blocks that came.
struct IndexEvent {
  bool stored = true;
  BlockHash hash;
  BlockHash parent;
  Tier tier = Tier::host;
};

struct NodeMatch {
  NodeId node;
  uint32_t resident = 0;   // leading blocks that are readable there
  uint32_t expected = 0;   // leading blocks that are readable or pending there; >= resident
  uint32_t on_device = 0;  // of the resident ones, how many in each tier
  uint32_t on_disk = 0;
  bool operator==(const NodeMatch&) const = default;
};

class Index {
 public:
  /// Applies the events numbered first_seq, first_seq + 1, ... of a node (known or new). Events seen
  /// before are passed over. False: a number is missing, nothing more was applied, and nothing will be
  /// until replace() brings the node's snapshot; meanwhile its blocks stay as they were.
  bool apply(const NodeId& node, uint64_t first_seq, std::span<const IndexEvent> events);
  /// Replaces what the node holds by `blocks`, true as of its event `seq`. Pending marks stay.
  void replace(const NodeId& node, uint64_t seq, std::span<const IndexEvent> blocks);
  /// Forgets the node and everything it holds, pending marks included.
  void remove(const NodeId& node);
  /// Number of the last event applied, or of the snapshot; 0 for an unknown node.
  uint64_t last_seq(const NodeId& node) const;
  bool needs_snapshot(const NodeId& node) const;

  void add_pending(const NodeId& node, std::span<const BlockHash> hashes);
  void settle_pending(const NodeId& node, std::span<const BlockHash> hashes);

  /// Leading matches of a chain: all nodes with expected > 0, by name. One walk over the chain.
  std::vector<NodeMatch> match(std::span<const BlockHash> hashes) const;
  /// Leading blocks that are readable on one node.
  uint32_t match(const NodeId& node, std::span<const BlockHash> hashes) const;
  /// The longest resident match; ties go to the first name. nullopt when nobody has the first block.
  std::optional<NodeMatch> best_holder(std::span<const BlockHash> hashes) const;
  /// Whether the block is readable on that node.
  bool holds(const NodeId& node, const BlockHash& hash) const;
  /// Nodes on which the block is readable, by name: how far a hot block is replicated.
  std::vector<NodeId> holders(const BlockHash& hash) const;

  /// Distinct blocks, pending ones included.
  size_t block_count() const { return blocks_.size(); }
  /// Readable blocks of one node.
  uint64_t block_count(const NodeId& node) const;
  /// Aborts unless the counts agree with the table. O(blocks).
  void check() const;

 private:
  using Ordinal = uint16_t;  // of a node; a removed node's is given to the next new one
  static constexpr uint8_t kAbsent = 0xff;
  struct Holder {
    Ordinal node = 0;
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

  struct Reach {  // a node whose match is still running
    Ordinal node = 0;
    uint32_t resident = 0, expected = 0, on_device = 0, on_disk = 0;
  };

  Ordinal enroll(const NodeId& name);
  const Node* find_node(const NodeId& name) const;
  const Holder* find_holder(const NodeId& node, const BlockHash& hash) const;
  Holder& holder_for(Ordinal node, const BlockHash& hash);
  void store(Ordinal node, const BlockHash& hash, Tier tier);
  void drop(Ordinal node, const BlockHash& hash);
  void erase_if_empty(const BlockHash& hash, Ordinal node);
  void step(const Holders& holders, uint32_t block, std::vector<Reach>& alive, std::vector<Reach>& ended) const;
  template <class Change>
  void sweep(Change change);

  std::vector<Node> nodes_;
  std::map<NodeId, Ordinal> ordinals_;
  std::unordered_map<BlockHash, Holders, Id128Hash> blocks_;
};

}  // namespace mc::kv

// Demotion: when a node fills up, it offers cold blocks to a cache node, which reads them before they are evicted.
//
// Where the host carries lookups, the node first asks the cache node which blocks of a chain it has. An offer describes
// each block and goes through the cache node's state machine, 32 blocks at a time; a lookup names up to 1,000 blocks
// and does not. So a prefix that a cache node has already, because another node computed it too, costs one lookup. The
// answer is also how this node learns that a cache node has evicted blocks since it took them: knowledge of more than
// kKnownFor counts as none, and such blocks are asked for again, and offered again, before they are lost here.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "node/namespace_book.h"
#include "node/node.h"
#include "node/shelf.h"
#include "node/slow_start.h"

namespace mc::node {

/// The cache node for a chain of blocks whose first one is `first`, by rendezvous hashing with weights: each cache node
/// has a score for the hash, and the highest score wins. All nodes choose alike without a message. The shares of the
/// cache nodes are proportional to their capacities. A cache node that joins or leaves moves only the blocks that it
/// takes or had. A capacity of 0 (of an older version) counts as the mean of the others. `caches` is not empty. A node
/// that has just joined takes a part of its share (node/slow_start.h).
const wire::Peer* cache_for(const BlockHash& first, const std::vector<const wire::Peer*>& caches,
                            const SlowStart& starts, TimePoint now);

class Demoter {
 public:
  /// `shelf` and `names` must outlive the demoter. Blocks are offered while more than the share `above` of the shelf's
  /// pages is taken. `kv_namespace` is the namespace id of the blocks without a salt.
  /// `lookups`: the host carries them.
  Demoter(Shelf& shelf, double above, std::string kv_namespace, const NamespaceBook& names, bool lookups)
      : shelf_(shelf), above_(above), kv_namespace_(std::move(kv_namespace)), names_(names), lookups_(lookups) {}

  /// A new list of the members came.
  void on_peers(const wire::Peers& list, TimePoint now) { starts_.take(list, now); }
  /// Whether an offer may be due.
  bool due(TimePoint now) const;
  /// Offers the coldest chain to that of `caches` which keeps its first block, under the lease number `id`, or asks
  /// this cache node by a lookup of that number. Cache nodes that refused an offer lately come last. `parts`: the
  /// members of this node's pipeline.
  void offer(const std::vector<const wire::Peer*>& caches, const std::vector<wire::HolderPart>& parts, uint64_t id,
             TimePoint now, Actions& out);
  /// Answers a request to prolong the lease of an offer: for as long as asked, up to 8 times its first time in all.
  /// False: this node has no such offer to the node under way.
  bool on_renew(const Received& event, const wire::LeaseRenew& renew, TimePoint now, Actions& out);
  /// An answer of another node than the one that got the offer has no effect.
  void on_done(const InstanceId& cache, const wire::DemoteDone& message, TimePoint now);
  /// The answer to a lookup. The cache node is told of a use of each block of which this node learns that it is there,
  /// as an offer of the block would have told it.
  void on_looked_up(const LookedUp& answer, TimePoint now, Actions& out);
  /// The lease of an offer has expired.
  void expired(kv::LeaseId lease);
  /// The node is gone, and so are the blocks that it held if it was a cache node.
  void drop(const InstanceId& instance);
  void removed(const BlockHash& hash) { demoted_.erase(hash); }
  TimePoint next_wakeup() const;
  bool idle() const { return offers_.empty(); }

 private:
  struct Offer {  // a cache node is reading these blocks
    InstanceId cache;
    kv::LeaseId lease;
    TimePoint until, until_max;
    std::vector<BlockHash> hashes;
  };
  struct Question {  // a lookup
    uint64_t lookup = 0;
    NodeId node;
    InstanceId cache;
    std::vector<BlockHash> hashes;
  };
  struct Known {
    InstanceId cache;
    TimePoint at{};  // when the cache node said that it has the block
  };
  static constexpr Duration kKnownFor = 10s;

  bool is_demoted(const BlockHash& hash, TimePoint now) const;
  std::vector<kv::PageIndex> cold_chain(size_t pages_max, TimePoint now) const;
  std::vector<kv::PageIndex> take_answered(TimePoint now);
  const wire::Peer& cache_of(const std::vector<kv::PageIndex>& chain, const std::vector<const wire::Peer*>& caches,
                             TimePoint now);
  void ask(const std::vector<kv::PageIndex>& chain, const wire::Peer& cache, uint64_t id, Actions& out);
  std::vector<const wire::Peer*> willing(const std::vector<const wire::Peer*>& caches, TimePoint now);

  Shelf& shelf_;
  double above_;
  std::string kv_namespace_;
  const NamespaceBook& names_;
  std::map<uint64_t, Offer> offers_;
  bool lookups_;
  SlowStart starts_;
  std::optional<Question> question_;         // under way
  std::vector<BlockHash> answered_;          // of the last answer: those of them that are not demoted are offered next
  std::map<BlockHash, Known> demoted_;       // blocks that a cache node holds, as far as this node has learnt
  std::map<InstanceId, TimePoint> refused_;  // cache nodes that took nothing of an offer -> time of their next offer
  TimePoint next_{};
};

}  // namespace mc::node

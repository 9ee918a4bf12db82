// Demotion: when a node fills up, it offers cold blocks to a cache node, which reads them before they are evicted.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "node/namespace_book.h"
#include "node/node.h"
#include "node/shelf.h"

namespace mc::node {

class Demoter {
 public:
  /// `shelf` and `names` must outlive the demoter. Blocks are offered while more than the share `above` of the shelf's
  /// pages is taken. `kv_namespace` is the namespace id of the blocks without a salt.
  Demoter(Shelf& shelf, double above, std::string kv_namespace, const NamespaceBook& names)
      : shelf_(shelf), above_(above), kv_namespace_(std::move(kv_namespace)), names_(names) {}

  /// Whether an offer may be due.
  bool due(TimePoint now) const;
  /// Offers the coldest chain to one of `caches`, under the lease number `id`. `parts`: the members of this node's
  /// pipeline.
  void offer(const std::vector<const wire::Peer*>& caches, const std::vector<wire::HolderPart>& parts, uint64_t id,
             TimePoint now, Actions& out);
  void on_done(const NodeId& node, const wire::DemoteDone& message);
  /// The lease of an offer has expired.
  void expired(kv::LeaseId lease);
  /// The cache node and all blocks that it held are gone.
  void drop(const InstanceId& instance, bool is_cache);
  void removed(const BlockHash& hash) { demoted_.erase(hash); }
  TimePoint next_wakeup() const;
  bool idle() const { return offers_.empty(); }

 private:
  struct Offer {  // a cache node is reading these blocks
    NodeId cache;
    InstanceId instance;
    kv::LeaseId lease;
    TimePoint until;
    std::vector<BlockHash> hashes;
  };
  std::vector<kv::PageIndex> cold_chain(NamespaceId& ns) const;

  Shelf& shelf_;
  double above_;
  std::string kv_namespace_;
  const NamespaceBook& names_;
  std::map<uint64_t, Offer> offers_;
  std::set<BlockHash> demoted_;  // blocks that a cache node holds, as far as this node has learnt
  TimePoint next_{};
};

}  // namespace mc::node

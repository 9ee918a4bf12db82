// Demotion: cold blocks of a node that fills up are offered to a cache node, which reads them before they are evicted.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "node/node.h"
#include "node/shelf.h"

namespace mc::node {

class Demoter {
 public:
  /// `shelf` outlives it. Blocks are offered when more than the share `above` of its pages is taken. `kv_namespace`
  /// names them without salt.
  Demoter(Shelf& shelf, double above, std::string kv_namespace)
      : shelf_(shelf), above_(above), kv_namespace_(std::move(kv_namespace)) {}

  /// Whether an offer may be due.
  bool due(TimePoint now) const;
  /// Offers the coldest chain to one of `caches`, under the lease number `id`.
  void offer(const std::vector<const wire::Peer*>& caches, uint64_t id, TimePoint now, Actions& out);
  void on_done(const NodeId& node, const wire::DemoteDone& message);
  /// The lease of an offer ran out.
  void expired(kv::LeaseId lease);
  /// The cache node is gone, with what it held.
  void drop(const InstanceId& instance, bool is_cache);
  void removed(const BlockHash& hash) { demoted_.erase(hash); }
  TimePoint next_wakeup() const;
  bool idle() const { return offers_.empty(); }

 private:
  struct Offer {  // a cache node is reading it
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
  std::map<uint64_t, Offer> offers_;
  std::set<BlockHash> demoted_;  // blocks that a cache node is known to hold
  TimePoint next_{};
};

}  // namespace mc::node

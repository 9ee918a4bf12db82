// The cache role: a node that lends its memory to KV blocks and computes nothing. Other nodes offer blocks that they
// are about to evict. The cache node reads these blocks, serves them under leases to one-sided reads, and evicts the
// tail of a chain first when it is full.
//
// The node holds blocks of many models. The KV buffer is cut into slabs of equal size, and each layout (page size) has
// a shelf that owns some of the slabs. A shelf grows by a free slab. When no slab is free, the shelf evicts its own
// blocks. When that is not enough, it takes a slab from the shelf with the most slabs. Blocks that leave memory may
// stay on the node's disk (node/disk_tier.h).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "node/lease_term.h"
#include "node/worker.h"

namespace mc::node {

struct CacheOptions {
  uint64_t segment_bytes = 0;
  uint64_t slab_bytes = uint64_t{8} << 20;
  uint32_t shelves_max = 64;
  uint32_t offers_max = 64;     // offers read at a time; more are refused as `full`
  Duration read_timeout = 20s;  // of an offer, whose lease is shorter and is renewed
};

class Cache final : public Worker {
 public:
  Cache(WorkerOptions worker, CacheOptions options);

  struct Stats {
    uint64_t offers = 0, blocks_stored = 0, blocks_known = 0, bytes_read = 0;
    uint64_t refused = 0, failed = 0, checksum_failures = 0, slabs_moved = 0;
  };
  const Stats& stats() const { return stats_; }
  uint64_t local_offset(uint32_t pool, kv::PageIndex page) const override { return at(pool).page_offset(page); }

 protected:
  void on_message(const Received& event, TimePoint now, Actions& out) override;
  void on_event(const Event& event, TimePoint now, Actions& out) override;
  void on_tick(TimePoint now, Actions& out) override;
  TimePoint role_wakeup() const override;
  void drop_all(TimePoint now, Actions& out) override;
  void on_peer_gone(const wire::Peer& peer, TimePoint now, Actions& out) override;
  void fill_load(wire::Load& load) const override;
  bool role_idle() const override { return offers_.empty(); }
  void role_check() const override;
  Shelf* shelf_of(const NamespaceId& ns) override;
  bool takes_found(const DiskBlock& block) override;
  Result<Shelf*> open_shelf(const kv::Namespace& kv, const NamespaceId& ns, const ExtentLayout& layout) override;

 private:
  struct Offer {  // blocks that are being read from the node that offered them
    NodeId node;
    InstanceId instance;
    wire::DemoteOffer offer;
    uint32_t shelf = 0;
    std::vector<size_t> wanted;        // indexes into offer.blocks
    std::vector<kv::PageIndex> pages;  // pages owned by this offer, one for each wanted block
    std::vector<BlockHash> known;      // blocks that this node had already
    bool dropped = false;              // the offering node is gone or all requests were dropped: no answer is sent
    LeaseTerm term = {};               // until the read is given up
    TimePoint until = kNever;          // when that is
  };

  void on_offer(const Received& event, const wire::DemoteOffer& offer, TimePoint now, Actions& out);
  void on_renewed(const Received& event, const wire::LeaseRenewed& answer, TimePoint now);
  void on_read(const ReadDone& done, TimePoint now, Actions& out);
  void answer(const Offer& offer, std::vector<BlockHash> stored, wire::DemoteEnd reason, Actions& out);
  Result<ExtentLayout> layout_of(const wire::DemoteOffer& offer) const;
  Result<uint32_t> shelf_for(const ExtentLayout& layout, const NamespaceId& ns);
  bool make_room(uint32_t shelf, uint32_t pages);
  bool add_slab(uint32_t shelf);
  bool take_slab_from_others(uint32_t shelf);
  Shelf& at(uint32_t pool) const { return *own_shelves_.at(pool); }

  CacheOptions cache_;
  std::vector<std::unique_ptr<Shelf>> own_shelves_;  // Read::pool is the index
  std::vector<std::vector<bool>> slab_live_;         // [shelf][slab slot]; false = given away
  std::vector<uint64_t> free_slabs_;                 // offsets; the last one is taken first
  struct Known {
    uint32_t shelf = 0;
    uint64_t use = 0;  // key in by_use_
  };
  std::map<NamespaceId, Known> shelf_by_namespace_;
  std::map<uint64_t, NamespaceId> by_use_;  // the least recently used namespace is removed when there are too many
  uint64_t uses_ = 0;
  std::map<uint64_t, Offer> offers_;  // key: number of the read
  Stats stats_;
};

}  // namespace mc::node

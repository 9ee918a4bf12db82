// Leases that a node grants to readers of its blocks. A reader requests a run of blocks and is granted the leading part
// that is here. A request waits for blocks that are being read from this node's disk, and it may wait for blocks that
// are being computed. The grant names the reason for the first missing block. A reader whose channel broke repeats its
// request by another way under the same number. A request that was granted gets its grant again, because the reader may
// read under the first one already. Otherwise the repeated request takes the place of the first one.
//
// A reader whose read has not ended renews its lease. Renewals move its end, up to kTotalTtls of the longest lease
// after the grant, so a reader that died keeps no pages for ever. A lease that has ended is not renewed, because its
// pages may have other blocks. What one reader holds under all its leases is bounded as well (node/reader_shares.h).
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "node/block_memory.h"
#include "node/disk_tier.h"
#include "node/node.h"
#include "node/reader_shares.h"
#include "node/shelf.h"

namespace mc::node {

/// The members of a node's pipeline, this process first; empty for a node that holds all layers. nullopt: a member is
/// missing.
using HolderParts = std::optional<std::vector<wire::HolderPart>>;

/// The blocks that a node can lend.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  /// The shelf that holds blocks of this namespace; nullptr = none.
  virtual Shelf* shelf_of(const NamespaceId& ns) = 0;
  /// Whether the block is being computed and will be published here.
  virtual bool is_pending(const BlockHash& hash) const = 0;
  virtual HolderParts parts() const { return std::vector<wire::HolderPart>(); }
  /// The shelf that takes blocks of this namespace from operators. MC6003 names what differs on this node.
  virtual Result<Shelf*> open_shelf(const kv::Namespace& kv, const NamespaceId& ns, const ExtentLayout& layout);
};

class Lender {
 public:
  static constexpr int kTotalTtls = 8;
  /// `source`, `memory` and `disk` must outlive the lender.
  Lender(BlockSource& source, const BlockMemory& memory, DiskTier& disk, Duration ttl_max)
      : source_(source),
        memory_(memory),
        disk_(disk),
        ttl_max_(std::clamp<Duration>(ttl_max, 1ms, std::chrono::milliseconds(UINT32_MAX))),
        shares_(kTotalTtls * ttl_max_) {}

  /// `known`: the reader is a listed peer. Other readers are granted nothing.
  void on_request(const NodeId& node, const InstanceId& instance, const wire::LeaseRequest& request, bool known,
                  TimePoint now, Actions& out);
  void on_release(const InstanceId& instance, uint64_t lease, TimePoint now);
  void on_renew(const NodeId& node, const InstanceId& instance, const wire::LeaseRenew& renew, TimePoint now,
                Actions& out);
  /// Answers waiting requests whose blocks are here now, or whose wait is over.
  void serve_waiting(TimePoint now, Actions& out);
  /// The lease has expired.
  void expired(const Shelf& shelf, kv::LeaseId id, TimePoint now);
  /// The reader is gone and reads no more.
  void drop(const InstanceId& instance);
  TimePoint next_wakeup() const;
  bool idle() const { return waiting_.empty(); }

 private:
  struct Granted {
    Shelf* shelf;
    kv::LeaseId id;
    TimePoint end_max{};    // of the lease with all its renewals
    uint32_t pages = 0;     // under the lease
    size_t asked = 0;       // number of blocks requested
    BlockHash last{};       // the last of them, which stands for all: hashes are chained
    wire::LeaseGrant rest;  // the grant without its blocks, which are those of the lease
  };
  struct Waiting {  // a request that waits for blocks being computed or loaded
    NodeId node;
    InstanceId instance;
    wire::LeaseRequest request;
    TimePoint since;
    TimePoint until;
    DiskTier::LoadId load = 0;  // 0 = none under way
    TimePoint load_until = kNever;
  };

  /// Whether the request may have its number: the number is new, or the reader repeats its request.
  bool may_use_number(const InstanceId& instance, const wire::LeaseRequest& request) const;
  bool starts_to_wait(const NodeId& node, const InstanceId& instance, const wire::LeaseRequest& request, Shelf& shelf,
                      TimePoint now, Actions& out);
  bool waits_on(Waiting& w, TimePoint now);

  /// The time of a lease or of a renewal that was asked to last for `ttl`.
  Duration bounded(Duration ttl) const;
  /// Moves the end of a lease to `ttl` from now, within its bounds and never earlier. Returns the time left, which is
  /// 1 ms or more; 0: the lease has ended, or its total time ends sooner than that.
  Duration prolong(const InstanceId& reader, const Granted& granted, Duration ttl, TimePoint now);
  /// Answers a request that was granted before, and prolongs its lease. False: it has no lease.
  bool grant_again(const NodeId& node, const InstanceId& instance, const wire::LeaseRequest& request, TimePoint now,
                   Actions& out);
  /// `since`: when the request arrived.
  void grant(const NodeId& node, const InstanceId& instance, const wire::LeaseRequest& request, TimePoint since,
             TimePoint now, Actions& out);
  wire::Fallback absence(const Shelf* shelf, const BlockHash& hash, bool waited, TimePoint now, uint64_t& age_ms) const;

  BlockSource& source_;
  const BlockMemory& memory_;
  DiskTier& disk_;
  Duration ttl_max_;
  ReaderShares shares_;
  std::map<std::pair<InstanceId, uint64_t>, Granted> granted_;
  std::vector<Waiting> waiting_;
};

}  // namespace mc::node

// Copies of hot prefixes that the conductor orders (sched/replicate.h). The node leases the blocks from their holder,
// reads them into its own pages, checks and publishes them, and reports the result. A copy yields to requests: it takes
// pages only while many are free or cold, its reads are never urgent, and any failure merely ends it.
//
//   CopyBlocks --> leasing --grant--> reading --ReadDone--> published, CopyDone
//                     '-- refused, late, holder gone ---------> CopyDone with the reason
#pragma once

#include <map>
#include <vector>

#include "node/lease_term.h"
#include "node/worker.h"
#include "sched/sched.h"

namespace mc::node {

class Copies {
 public:
  static constexpr size_t kMax = 8;  // copies under way; more are refused as busy
  static constexpr size_t kBlocksMax = sched::kCopyBlocksMax;
  static constexpr double kSpareShare = 0.25;  // share of all pages that must be free or cold beyond those of the copy
  static constexpr Duration kLeaseTimeout = 5s, kReadTimeout = 10s;

  struct Stats {
    uint64_t copies = 0, blocks = 0, bytes = 0, failed = 0, checksum_failures = 0;
  };

  /// `shelf` and `reads` must outlive the object.
  Copies(Shelf& shelf, BlockReads& reads) : shelf_(shelf), reads_(reads) {}

  /// `id` is a fresh number of the node for the lease. An immediate answer is appended to `out`.
  void start(const wire::CopyBlocks& order, uint64_t id, bool is_peer, TimePoint now, Actions& out);
  /// True when the grant belongs to a copy. A grant of another node than the one that was asked has no effect.
  bool on_grant(const InstanceId& holder, const wire::LeaseGrant& grant, uint64_t read_id, TimePoint now, Actions& out);
  /// True when the lease belongs to a copy.
  bool on_renewed(const Received& event, const wire::LeaseRenewed& answer, TimePoint now);
  bool on_read(const ReadDone& done, TimePoint now, Actions& out);
  void on_peer_gone(const InstanceId& instance, Actions& out);
  void on_tick(TimePoint now, Actions& out);
  /// Drops all copies without an answer, because the conductor that ordered them is gone.
  void drop_all(Actions& out);
  TimePoint next_wakeup() const;
  bool idle() const { return copies_.empty(); }
  const Stats& stats() const { return stats_; }

 private:
  struct Copy {
    wire::CopyBlocks order;
    uint64_t lease = 0, read = 0;
    bool dropped = false;  // the copy is over, but its read may still write the pages
    TimePoint until{};
    TimePoint asked_at{};
    LeaseTerm term;   // while the blocks are being read
    size_t have = 0;  // leading blocks that were on this node already
    std::vector<wire::LeasedBlock> granted;
    std::vector<kv::PageIndex> pages;
  };
  using Iterator = std::map<uint64_t, Copy>::iterator;

  void answer(const Copy& copy, uint32_t blocks, wire::CopyEnd reason, Actions& out) const;
  /// Answers the order and releases the lease. Releases the pages unless a read may still write them.
  void end(Iterator at, uint32_t blocks, wire::CopyEnd reason, Actions& out);

  Shelf& shelf_;
  BlockReads& reads_;
  std::map<uint64_t, Copy> copies_;  // key: number of the lease
  Stats stats_;
};

}  // namespace mc::node

// Fetches of prefix blocks that a prompt lacks in this node's memory. Blocks on this node's disk are loaded first. Then
// the node leases blocks from their holders, reads them into its own pages, checks every extent, and publishes them. So
// hot prefixes replicate to the nodes that use them. A failed fetch costs time but never the request: the blocks are
// computed instead, and the outcome names the cause.
//
//   start --> loading --> leasing --grant--> reading --ReadDone--> published --> next source, or done
//                            '-- late, refused, holder gone ------> given up --> next source, or done
//
// A read that was given up may still write into its pages. They return to the pool when the host reports the end of the
// read.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "node/disk_tier.h"
#include "node/held_pages.h"
#include "node/node.h"
#include "node/numbers.h"
#include "node/peers.h"
#include "node/shelf.h"

namespace mc::node {

/// Blocks that a fetch was to bring from `node` and did not.
struct GivenUp {
  uint32_t first_block = 0, end_block = 0;
  wire::Fallback why = wire::Fallback::none;
  NodeId node;          // "" = this node's own disk
  uint64_t age_ms = 0;  // time since the node evicted them; 0 = it did not evict them
};

class PrefixFetches {
 public:
  /// The blocks that a prompt may reuse. `hashes`, `ids` and `pages` must outlive the fetch. Fetched blocks are added
  /// to `pages`.
  struct Wanted {
    NamespaceId ns;
    std::span<const BlockHash> hashes;
    std::span<const uint32_t> ids;  // of the prompt, which is longer than the blocks
    std::vector<wire::Source> sources;
    TimePoint deadline{};
    HeldPages* pages = nullptr;
  };
  struct Outcome {
    uint32_t blocks = 0;                // number of blocks fetched from other nodes
    uint32_t disk_blocks = 0;           // number of blocks loaded from this node's disk
    double load_ms = 0;                 // duration of the load
    std::vector<wire::NameValue> from;  // node -> tokens
    wire::Fallback fallback = wire::Fallback::none;
    std::vector<GivenUp> given_up;
    TimePoint began{}, ended{};
    /// Duration of the fetch; 0 when nothing was fetched or given up.
    double ms() const { return blocks > 0 || fallback != wire::Fallback::none ? to_ms(ended - began) : 0; }
  };
  struct Stats {
    uint64_t fetches = 0, failures = 0, checksum_failures = 0;
  };

  /// `shelf`, `peers`, `disk` and `numbers` must outlive the object. `timeout` bounds one load, lease request or read.
  PrefixFetches(Shelf& shelf, const Peers& peers, DiskTier& disk, Numbers& numbers, Duration timeout)
      : shelf_(shelf), peers_(peers), disk_(disk), numbers_(numbers), timeout_(timeout) {}

  void start(const RequestId& req, Wanted wanted, TimePoint now, Actions& out);
  /// Removes the request's fetch. An unfinished fetch is cancelled.
  void end(const RequestId& req, Actions& out);
  bool done(const RequestId& req) const;
  /// The outcome of a fetch that was started and not removed by end().
  const Outcome& outcome(const RequestId& req) const { return fetches_.at(req).outcome; }
  /// Whether an unfinished fetch may bring this block of its prompt.
  bool may_bring(const RequestId& req, uint32_t block) const;

  /// False when the grant belongs to no fetch.
  bool on_grant(const wire::LeaseGrant& grant, TimePoint now, Actions& out);
  /// False when the read belongs to no fetch.
  bool on_read(const ReadDone& done, TimePoint now, Actions& out);
  /// Goes on with fetches whose blocks the disk has brought.
  void on_disk(TimePoint now, Actions& out);
  void on_tick(TimePoint now, Actions& out);
  void on_peer_gone(const InstanceId& instance, TimePoint now, Actions& out);
  TimePoint next_wakeup() const;
  void check() const;
  const Stats& stats() const { return stats_; }

 private:
  enum class State : uint8_t { loading, leasing, reading, done };
  struct Fetch {
    Wanted wanted;
    State state = State::done;
    size_t source = 0;             // index of the source in use
    DiskTier::LoadId load = 0;     // 0 = none under way
    uint32_t load_end = 0;         // block behind those that are loaded
    uint64_t lease = 0, read = 0;  // 0 = none outstanding
    TimePoint until = kNever;
    std::vector<wire::LeasedBlock> granted;
    std::vector<kv::PageIndex> pages;  // pages that the read fills
    Outcome outcome;

    const wire::Source& asked() const { return wanted.sources.at(source); }
    uint32_t end_block() const;
    void give_up(uint32_t first_block, wire::Fallback why, uint64_t age_ms);
  };

  void end_load(Fetch& f, TimePoint now);
  bool is_as_asked(const Fetch& f, const wire::LeaseGrant& grant) const;
  void ask_next(const RequestId& req, Fetch& f, TimePoint now, Actions& out);
  void read(Fetch& f, const wire::LeaseGrant& grant, TimePoint now, Actions& out);
  void publish(Fetch& f);
  void fail(const RequestId& req, Fetch& f, wire::Fallback why, uint64_t age_ms, TimePoint now, Actions& out);
  void release_lease(Fetch& f, Actions& out);
  void abandon_read(Fetch& f, Actions& out);

  Shelf& shelf_;
  const Peers& peers_;
  DiskTier& disk_;
  Numbers& numbers_;
  Duration timeout_;
  std::map<RequestId, Fetch> fetches_;
  std::map<uint64_t, RequestId> by_operation_;  // key: number of the lease or read
  // key: number of the read, which may still write these pages
  std::map<uint64_t, std::vector<kv::PageIndex>> abandoned_;
  Stats stats_;
};

}  // namespace mc::node

// Fetches of prefix blocks that a prompt lacks in this node's memory. Blocks on this node's disk are loaded. Meanwhile
// the node leases the blocks behind them from their holders, reads them into its own pages, checks every extent, and
// publishes them. So hot prefixes replicate to the nodes that use them. A failed fetch costs time but never the
// request: the blocks are computed instead, and the outcome names the cause.
//
//   start --> a load from this node's disk, and behind its blocks parts from several holders (node/fetch_parts.h),
//             all at once --> done
//
// Blocks that the disk was to bring and did not are fetched from holders as well, as far as these have them.
//
// The request may begin to compute while its last blocks are read, when their reads are cut by layers
// (node/block_reads.h). It borrows the pages then. A borrowed part that fails is not replaced, because the request
// computes those blocks into the same pages.
//
// Reads that are cut by layers begin together, layer by layer over all holders, so that a layer is complete as early as
// the links allow. The first grant waits a moment for the others.
//
// Blocks are published in their order in the prompt. When a part is late, refused, damaged, or its holder is gone,
// other holders replace it. If there is none, the prefix ends there.
//
// A read that was given up may still write into its pages. They return to the pool when the host reports the end of the
// read.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "node/block_reads.h"
#include "node/disk_tier.h"
#include "node/fetch_parts.h"
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
  NodeId node;          // "" = this node: its own disk, or a stage of its pipeline
  uint64_t age_ms = 0;  // time since the node evicted them; 0 = it did not evict them
};

class PrefixFetches {
 public:
  /// The blocks that a prompt may reuse. `hashes`, `ids` and `pages` must outlive the fetch. Fetched blocks are added
  /// to `pages`.
  struct Wanted {
    NamespaceId ns;
    std::span<const BlockHash> hashes;
    std::span<const uint32_t> ids;      // of the prompt, which is longer than the blocks
    std::vector<wire::Source> sources;  // see FetchParts
    TimePoint deadline{};
    HeldPages* pages = nullptr;
  };
  struct Outcome {
    uint32_t blocks = 0;                // number of blocks fetched from other nodes
    uint32_t disk_blocks = 0;           // number of blocks loaded from this node's disk
    double load_ms = 0;                 // duration of the load
    std::vector<wire::NameValue> from;  // node -> tokens; a node is named once
    std::vector<wire::EndedRead> reads;
    wire::Fallback fallback = wire::Fallback::none;
    std::vector<GivenUp> given_up;
    TimePoint began{}, ended{};  // of the time that the fetch takes beyond the load
    /// Duration of the fetch beyond that of the load, up to `until`; 0 when nothing was fetched or given up.
    double ms(TimePoint until) const {
      return blocks > 0 || fallback != wire::Fallback::none ? to_ms(std::min(ended, until) - began) : 0;
    }
  };
  /// Blocks of which every one is being read or has been.
  struct Arriving {
    uint32_t blocks = 0;
    uint32_t layers = 0;  // number of leading layers that are here of all of them; above 0
    Duration rest{};      // until all are here, if the rest takes as long for each layer
  };
  static constexpr Duration kGrantsApart = 20ms;  // most that a grant waits for others before its read begins
  struct Stats {
    uint64_t fetches = 0, failures = 0, checksum_failures = 0;
  };

  /// `shelf`, `peers`, `disk`, `reads` and `numbers` must outlive the object. `timeout` bounds one load, lease request
  /// or read. Reads of at least `by_layer_bytes` are cut by layers.
  PrefixFetches(Shelf& shelf, const Peers& peers, DiskTier& disk, BlockReads& reads, Numbers& numbers, Duration timeout,
                uint64_t by_layer_bytes)
      : shelf_(shelf),
        peers_(peers),
        disk_(disk),
        reads_(reads),
        numbers_(numbers),
        timeout_(timeout),
        by_layer_bytes_(by_layer_bytes) {}

  void start(const RequestId& req, Wanted wanted, TimePoint now, Actions& out);
  /// Removes the request's fetch. An unfinished fetch is cancelled.
  void end(const RequestId& req, Actions& out);
  bool done(const RequestId& req) const;
  /// The outcome of a fetch that was started and not removed by end().
  const Outcome& outcome(const RequestId& req) const { return fetches_.at(req).outcome; }
  /// Number of leading blocks of the prompt that are here.
  uint32_t have(const RequestId& req) const { return fetches_.at(req).have(); }
  /// The rest of a fetch, if it consists of reads that are cut by layers, and the first layers are here.
  std::optional<Arriving> arriving(const RequestId& req, TimePoint now) const;
  /// The request owns the pages of arriving() from now on. They are appended to Wanted::pages. They must stay until the
  /// fetch is done and is_lent(loan) is false. Returns the checksums of their layers.
  std::vector<std::vector<uint32_t>> lend(const RequestId& req, uint64_t loan);
  /// Undoes lend() at once.
  void take_back(const RequestId& req);
  /// Number of leading layers that are here of all blocks that were lent, of a fetch that is not done.
  uint32_t layers_here(const RequestId& req) const;
  /// Whether a read that was given up may still write into pages of the loan.
  bool is_lent(uint64_t loan) const;
  /// Whether an unfinished fetch may bring this block of its prompt.
  bool may_bring(const RequestId& req, uint32_t block) const;

  /// False when the grant belongs to no fetch. A grant of another node than the one that was asked has no effect.
  bool on_grant(const InstanceId& holder, const wire::LeaseGrant& grant, TimePoint now, Actions& out);
  /// False when the lease belongs to no fetch.
  bool on_renewed(const Received& event, const wire::LeaseRenewed& answer, TimePoint now);
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
  struct Fetch {
    Wanted wanted;
    DiskTier::LoadId load = 0;  // 0 = none under way
    uint32_t load_end = 0;      // while a load is under way: the block after those that it brings
    TimePoint load_until = kNever;
    FetchParts parts;
    Outcome outcome;
    std::optional<uint32_t> lent_have;  // number of blocks that are here, once pages are lent

    uint32_t have() const { return lent_have.value_or(wanted.pages->size()); }
    /// The first block that holders are to bring.
    uint32_t first_fetched() const { return load != 0 ? load_end : have(); }
    bool is_done() const { return load == 0 && parts.empty(); }
    void give_up(const FetchPart& part, uint32_t first_block, wire::Fallback why, uint64_t age_ms);
  };
  struct Found {  // a part of a fetch
    const RequestId& req;
    Fetch& fetch;
    FetchPart& part;
  };

  std::optional<Found> find(uint64_t operation);
  void end_load(const RequestId& req, Fetch& f, TimePoint now, Actions& out);
  void go_on(const RequestId& req, Fetch& f, TimePoint now, Actions& out);
  void ask(const RequestId& req, Fetch& f, FetchPart& part, TimePoint now, Actions& out);
  uint32_t returning() const;
  bool allocate(FetchPart& part);
  bool take_pages(Fetch& f, FetchPart& part, Actions& out);
  void read_held(const RequestId& req, Fetch& f, TimePoint now, Actions& out);
  void read_granted(const Found& at, TimePoint now, Actions& out);
  bool read(const Found& at, TimePoint now, Actions& out);
  void on_pages(TimePoint now, Actions& out);
  void publish(Fetch& f, const FetchPart& part);
  void fail(Fetch& f, FetchPart& part, wire::Fallback why, uint64_t age_ms, Actions& out);
  template <class Why>
  void fail_where(const RequestId& req, Fetch& f, TimePoint now, Actions& out, const Why& why);
  void cut(Fetch& f, uint32_t end, Actions& out);
  void drop(FetchPart& part, Actions& out);
  void release_lease(FetchPart& part, Actions& out);
  void abandon_read(FetchPart& part, Actions& out);

  Shelf& shelf_;
  const Peers& peers_;
  DiskTier& disk_;
  BlockReads& reads_;
  Numbers& numbers_;
  Duration timeout_;
  uint64_t by_layer_bytes_;
  std::map<RequestId, Fetch> fetches_;
  std::map<uint64_t, RequestId> by_operation_;  // key: number of the lease or read
  // key: number of the read, which may still write these pages
  std::map<uint64_t, std::vector<kv::PageIndex>> abandoned_;
  std::map<uint64_t, uint64_t> lent_reads_;  // read that was given up -> loan of the pages that it may still write
  Stats stats_;
};

}  // namespace mc::node

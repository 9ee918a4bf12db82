// The orders of operators about the blocks of a node (node/orders.h). An eviction goes on by one step with each tick.
// A pin or a read waits until the blocks that are on disk alone are in memory, and a durable pin then waits until all
// blocks are on disk. Every order ends with one answer, at its deadline at the latest; a cancelled one ends without.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "node/block_book.h"
#include "node/disk_tier.h"
#include "node/evicting.h"
#include "node/lender.h"
#include "node/node.h"
#include "node/operator_pins.h"
#include "node/shelf.h"

namespace mc::node {

class BlockOrders {
 public:
  static constexpr size_t kWaitingMax = 32;      // orders under way; more are refused
  static constexpr size_t kPinBlocksMax = 4096;  // of one pin
  static constexpr size_t kChainBlocksMax = 1 << 16;
  static constexpr Duration kLeaseTime = 30s;  // of a read that nobody ends

  struct Identity {
    kv::Namespace kv;           // of the node's model; that of a cache node has no layers
    uint64_t memory_bytes = 0;  // for blocks
  };
  /// The references must outlive the object.
  BlockOrders(BlockSource& source, const std::vector<Shelf*>& shelves, DiskTier& disk, BlockBook& book, Identity node)
      : source_(source),
        shelves_(shelves),
        disk_(disk),
        book_(book),
        kv_(std::move(node.kv)),
        pins_(node.memory_bytes) {}

  void on_order(const BlockOrder& order, TimePoint now, Actions& out);
  /// Goes on with what is under way.
  void on_tick(TimePoint now, Actions& out);
  /// The lease has expired.
  void expired(const Shelf& shelf, kv::LeaseId lease);
  TimePoint next_wakeup() const;
  bool idle() const {
    return evictions_.empty() && waiting_.empty() && saving_.empty() && reads_.empty() && writes_.empty();
  }

  const OperatorPins& pins() const { return pins_; }
  /// When blocks were used.
  const UseClock& uses() const { return book_.uses(); }
  /// Models and tenants of the blocks.
  const NamespaceBook& names() const { return book_.names(); }
  /// Blocks that failed their checksums when they were read for an operator.
  uint64_t checksum_failures() const { return checksum_failures_; }
  /// Pages of `pool` that the host fills.
  uint64_t owned(const kv::Pool& pool) const;

 private:
  struct Eviction {
    uint64_t id = 0;
    TimePoint deadline{};
    std::unique_ptr<Evicting> work;
  };
  struct Chain {
    Shelf* shelf = nullptr;
    NamespaceId name_space;
    std::vector<BlockHash> hashes;  // from the root
  };
  struct Waiting {  // a pin or a read whose blocks are being loaded
    BlockOrder order;
    Chain chain;
    DiskTier::LoadId load = 0;
    uint64_t loaded = 0;  // blocks that were on disk alone
  };
  struct Saving {  // a durable pin whose blocks are being written
    uint64_t id = 0;
    TimePoint deadline{};
    Shelf* shelf = nullptr;
    std::vector<BlockHash> chain;
    PinReport report;
    std::vector<BlockHash> missing;  // blocks that were not on disk when this round of writes began
    size_t next = 0;                 // the first of them whose write may be to come
  };
  struct Reading {
    Shelf* shelf = nullptr;
    kv::LeaseId lease = 0;
    std::vector<kv::PageIndex> pages;
    std::vector<BlockHash> hashes;  // of the pages
  };
  struct Writing {
    WriteBlocks order;
    Shelf* shelf = nullptr;
    PagesToFill fill;
    WriteReport report;
    std::vector<kv::PageIndex> held;  // pinned pages of the blocks of the chain that were here before
  };

  static void answer(uint64_t id, decltype(OrderAnswer::what) what, Actions& out);
  Result<Chain> chain_to(const BlockHash& last) const;
  std::span<const BlockHash> wanted(const Waiting& waiting) const;
  void begin(const BlockOrder& order, const BlockHash& last, TimePoint now, Actions& out);
  /// Answers an order whose blocks are in memory, as far as they could be brought.
  void finish(const Waiting& waiting, TimePoint now, Actions& out);
  std::vector<BlockHash> not_on_disk(const Saving& saving) const;
  bool has_written(Saving& saving) const;
  /// Goes on with a durable pin. True when it has its answer.
  bool save(Saving& saving, TimePoint now, Actions& out);
  Result<PinReport> pin(const Waiting& waiting, const PinBlocks& order, TimePoint now);
  Result<BlockRun> read(const Waiting& waiting, const ReadBlocks& order, TimePoint now);
  Result<PagesToFill> write(uint64_t id, const WriteBlocks& order);
  void end_read(const Reading& read, std::span<const uint32_t> rotten);
  void end(uint64_t id, bool cancelled, Actions& out);

  BlockSource& source_;
  const std::vector<Shelf*>& shelves_;
  DiskTier& disk_;
  BlockBook& book_;
  const kv::Namespace kv_;
  OperatorPins pins_;
  std::deque<Eviction> evictions_;  // the first one is under way
  std::vector<Waiting> waiting_;
  std::vector<Saving> saving_;
  std::map<uint64_t, Reading> reads_;   // by order
  std::map<uint64_t, Writing> writes_;  // by order
  uint64_t checksum_failures_ = 0;
};

}  // namespace mc::node

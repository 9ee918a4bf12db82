// Blocks that were stored and removed on a node: the numbered events for the conductor's index, the history that
// explains misses, whose blocks they are, and when they were used.
#pragma once

#include <span>
#include <vector>

#include "node/block_memory.h"
#include "node/device_tier.h"
#include "node/disk_tier.h"
#include "node/namespace_book.h"
#include "node/shelf.h"
#include "node/use_clock.h"
#include "wire/messages.h"

namespace mc::node {

class BlockBook {
 public:
  /// The pools append their events to this log.
  kv::EventLog& log() { return log_; }
  uint64_t last_seq() const { return log_.last_seq(); }
  BlockMemory& memory() { return memory_; }
  const BlockMemory& memory() const { return memory_; }
  NamespaceBook& names() { return names_; }
  const NamespaceBook& names() const { return names_; }
  UseClock& uses() { return uses_; }
  const UseClock& uses() const { return uses_; }

  bool has_news() const { return log_.size() > 0; }
  /// Events since the last call, oldest first, at most one message full. The conductor's index has one entry for each
  /// block and node, so an event of one tier is reported as the block's state on the whole node now.
  wire::BlockEvents take(std::span<Shelf* const> shelves, const DiskTier& disk, const DeviceTier& device,
                         TimePoint now);
  /// Blocks of the last take() that were evicted from memory.
  const std::vector<BlockHash>& evicted_from_memory() const { return evicted_; }
  /// All blocks of the shelves and of the disk in messages of bounded size, as of the newest event. All events must
  /// have been taken.
  std::vector<wire::BlockSnapshot> snapshot(std::span<Shelf* const> shelves, const DiskTier& disk,
                                            const DeviceTier& device) const;
  /// Removes blocks from the pool whose bytes fail their checksum. `rotten` has indexes into `hashes` and `pages`.
  void drop_rotten(kv::Pool& pool, std::span<const BlockHash> hashes, std::span<const kv::PageIndex> pages,
                   std::span<const uint32_t> rotten);

 private:
  void remember(const kv::BlockEvent& event, TimePoint now);

  kv::EventLog log_;
  std::vector<BlockHash> evicted_;
  BlockMemory memory_;
  NamespaceBook names_;
  UseClock uses_;
};

}  // namespace mc::node

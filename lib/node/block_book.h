// Blocks that came and went on a node: the numbered events for the conductor's index, and what the node remembers.
#pragma once

#include <span>
#include <vector>

#include "node/block_memory.h"
#include "node/shelf.h"
#include "wire/messages.h"

namespace mc::node {

class BlockBook {
 public:
  /// Pools write their events here.
  kv::EventLog& log() { return log_; }
  uint64_t last_seq() const { return log_.last_seq(); }
  BlockMemory& memory() { return memory_; }
  const BlockMemory& memory() const { return memory_; }

  bool has_news() const { return log_.size() > 0; }
  /// Events since the last call, oldest first, at most as many as one message holds.
  wire::BlockEvents take(TimePoint now);
  /// All blocks of the shelves in messages of bounded size, as of the newest event; events must have been taken.
  std::vector<wire::BlockSnapshot> snapshot(std::span<Shelf* const> shelves) const;
  /// Takes blocks out of the pool whose bytes are not what was sealed; `rotten` numbers pages and hashes.
  void drop_rotten(kv::Pool& pool, std::span<const BlockHash> hashes, std::span<const kv::PageIndex> pages,
                   std::span<const uint32_t> rotten);

 private:
  kv::EventLog log_;
  BlockMemory memory_;
};

}  // namespace mc::node

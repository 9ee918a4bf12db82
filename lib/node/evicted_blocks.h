// Blocks that nodes have evicted, for the reasons of misses. A prefill node knows its own evictions alone, so it
// reports a block that a cache or decode node evicted as cold. The conductor gets the evictions of all nodes with their
// block events. The record has a bounded size; the eviction that was recorded first leaves it first.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "kv/index.h"
#include "wire/messages.h"

namespace mc::node {

class EvictedBlocks {
 public:
  explicit EvictedBlocks(size_t entries_max = 16384) : entries_max_(entries_max) {}

  /// Takes the events of a node. `index` has them already: a block that another node still has is not recorded.
  void note(const NodeId& node, std::span<const wire::BlockEvent> events, const kv::PrefixIndex& index, TimePoint now);
  /// The misses of a request that was placed at `placed`. Runs of cold blocks among `hashes`, the blocks of its prompt,
  /// that were evicted by then become runs of evicted ones.
  std::vector<wire::Miss> explain(std::span<const wire::Miss> misses, std::span<const BlockHash> hashes,
                                  TimePoint placed, TimePoint now) const;

 private:
  struct Entry {
    NodeId node;
    TimePoint at{}, stored_at = kNever;  // stored: on any node, later than `at`
    uint64_t number = 0;                 // an entry of order_ with another number is stale
  };
  const Entry* find(const BlockHash& hash, TimePoint placed) const;

  size_t entries_max_;
  std::unordered_map<BlockHash, Entry, Id128Hash> entries_;
  std::deque<std::pair<uint64_t, BlockHash>> order_;
  uint64_t count_ = 0;
};

}  // namespace mc::node

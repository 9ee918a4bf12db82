// A cache that replays a block trace and counts the leading blocks of each request that are resident. It drives the
// real Pool block by block, as Mooncake's published hit rates are computed (count the leading run first, then touch
// every block from the last to the first, storing the missing ones), so `mc-bench trace` measures the policy that
// serves.
#pragma once

#include <cstdint>
#include <span>

#include "kv/pool.h"

namespace mc::kv {

class TraceCache {
 public:
  static constexpr uint32_t kUnlimited = 0;

  /// A cache of `block_count` blocks; kUnlimited never evicts.
  explicit TraceCache(uint32_t block_count, const Eviction& eviction = kLruTail);

  /// Replays one request. Each of `ids` names a block with its prefix, as hash_ids in a trace do. Returns the number
  /// of leading resident blocks.
  uint32_t request(std::span<const uint64_t> ids);

  uint64_t hit_blocks() const { return hit_blocks_; }
  /// For tests.
  uint64_t seen_blocks() const { return seen_blocks_; }
  const Pool& pool() const { return pool_; }

 private:
  void store(const BlockHash& hash, const BlockHash& parent, uint32_t position);

  EventLog log_{1};  // no owner drains it
  Pool pool_;
  bool unlimited_;
  uint64_t hit_blocks_ = 0, seen_blocks_ = 0;
};

}  // namespace mc::kv

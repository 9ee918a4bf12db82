// One cache replaying a block trace: how many leading blocks of each request would have been there?
// It is the real Pool, driven block by block as Mooncake's published hit rates are computed (count the
// leading run first, then touch every block from the last to the first, storing the missing ones), so
// `mc-bench trace` measures the policy that serves.
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

  /// Replays one request. `ids` name blocks together with their prefix, as hash_ids in a trace do.
  /// Returns how many leading ones were resident.
  uint32_t request(std::span<const uint64_t> ids);

  uint64_t hit_blocks() const { return hit_blocks_; }
  /// For tests.
  uint64_t seen_blocks() const { return seen_blocks_; }
  const Pool& pool() const { return pool_; }

 private:
  void store(const BlockHash& hash, const BlockHash& parent, uint32_t position);

  EventLog log_{1};  // nobody listens
  Pool pool_;
  bool unlimited_;
  uint64_t hit_blocks_ = 0, seen_blocks_ = 0;
};

}  // namespace mc::kv

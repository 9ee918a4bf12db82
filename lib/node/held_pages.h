// The pages of one request in the order of its blocks. A page is pinned (a cached block that others may share) or
// owned (being filled for this request alone); the first kind comes by matching a prefix, the second from the pool's
// free pages. An owned page becomes a pinned one when its block is published.
#pragma once

#include <span>
#include <vector>

#include "kv/kv.h"

namespace mc::node {

class HeldPages {
 public:
  /// Nothing is given back by the destructor: reads and runs may still touch the pages. release() says when.
  HeldPages() = default;

  std::span<const kv::PageIndex> all() const { return pages_; }
  uint32_t size() const { return static_cast<uint32_t>(pages_.size()); }
  bool empty() const { return pages_.empty(); }
  kv::PageIndex operator[](size_t block) const { return pages_.at(block); }
  bool pinned(size_t block) const { return pinned_.at(block); }
  uint32_t pinned_count() const;
  /// So many pages fit without an allocation.
  void reserve(size_t pages) { pages_.reserve(pages), pinned_.reserve(pages); }

  /// Pins the leading run of `hashes` that the pool holds, behind the pages held already. How many it were.
  uint32_t pin_prefix(kv::Pool& pool, std::span<const BlockHash> hashes);
  /// Takes `count` more pages from the pool, all or none.
  Result<void> allocate(kv::Pool& pool, uint32_t count);
  /// Publishes an owned page of the caller as the next block. When the pool has the block already, its page is held
  /// instead.
  void adopt(kv::Pool& pool, kv::PageIndex owned, kv::BlockMeta meta);
  /// Makes the block of an owned page findable. False when the pool has the block already: ours stays private, because
  /// its address may be announced.
  bool publish(kv::Pool& pool, uint32_t block, kv::BlockMeta meta);
  /// Gives back the pages from `first` on.
  void release_from(kv::Pool& pool, uint32_t first);
  void release(kv::Pool& pool) { release_from(pool, 0); }

 private:
  std::vector<kv::PageIndex> pages_;
  std::vector<bool> pinned_;
};

}  // namespace mc::node

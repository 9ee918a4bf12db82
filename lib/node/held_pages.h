// The pages of one request in the order of its blocks. A page is pinned (a cached block that other requests may share)
// or owned (free memory that this request fills). Pinned pages come from a match of the prefix, owned pages from
// allocate(). An owned page becomes a pinned page when its block is published.
#pragma once

#include <span>
#include <vector>

#include "kv/kv.h"

namespace mc::node {

class HeldPages {
 public:
  /// The destructor gives no page back, because reads and runs may still use the pages. The owner calls release().
  HeldPages() = default;

  std::span<const kv::PageIndex> all() const { return pages_; }
  uint32_t size() const { return static_cast<uint32_t>(pages_.size()); }
  bool empty() const { return pages_.empty(); }
  kv::PageIndex operator[](size_t block) const { return pages_.at(block); }
  bool pinned(size_t block) const { return pinned_.at(block); }
  uint32_t pinned_count() const;
  /// Up to `pages` pages fit without an allocation.
  void reserve(size_t pages) { pages_.reserve(pages), pinned_.reserve(pages); }

  /// Pins the leading run of `hashes` that the pool holds, after the pages held already. Returns the length of the
  /// run.
  uint32_t pin_prefix(kv::Pool& pool, std::span<const BlockHash> hashes);
  /// Takes `count` more pages from the pool, or none.
  Result<void> allocate(kv::Pool& pool, uint32_t count);
  /// Holds owned pages of the caller as the next blocks, which may be filled later.
  void append(std::span<const kv::PageIndex> owned);
  /// The caller owns the pages from index `first` on again. None of them is pinned.
  void forget_from(uint32_t first);
  /// Publishes the caller's owned page as the next block. When the pool has the block already, the pool's page is held
  /// instead.
  void adopt(kv::Pool& pool, kv::PageIndex owned, kv::BlockMeta meta);
  /// Publishes the block of an owned page. False when the pool has the block already. The owned page then stays
  /// private, because peers may have been given its address.
  bool publish(kv::Pool& pool, uint32_t block, kv::BlockMeta meta);
  /// Gives back the pages from index `first` on.
  void release_from(kv::Pool& pool, uint32_t first);
  void release(kv::Pool& pool) { release_from(pool, 0); }

 private:
  std::vector<kv::PageIndex> pages_;
  std::vector<bool> pinned_;
};

}  // namespace mc::node

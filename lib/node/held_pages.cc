#include "node/held_pages.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

uint32_t HeldPages::pinned_count() const {
  MC_ASSERT_EQ(pages_.size(), pinned_.size());
  return static_cast<uint32_t>(std::count(pinned_.begin(), pinned_.end(), true));
}

uint32_t HeldPages::pin_prefix(kv::Pool& pool, std::span<const BlockHash> hashes) {
  const auto found = pool.pin_prefix(hashes);
  pages_.insert(pages_.end(), found.begin(), found.end());
  pinned_.resize(pages_.size(), true);
  MC_ASSERT_LE(found.size(), hashes.size());
  return static_cast<uint32_t>(found.size());
}

Result<void> HeldPages::allocate(kv::Pool& pool, uint32_t count) {
  const size_t held = pages_.size();
  if (count > pool.available()) return {Code::busy, "the pool has fewer pages"};  // checked before any vector grows
  pages_.resize(held + count);
  pinned_.resize(held + count, false);
  const auto taken = pool.allocate(std::span(pages_).subspan(held));
  MC_ASSERT(taken.has_value());  // all or none: the vectors have grown
  MC_ASSERT_EQ(pages_.size(), pinned_.size());
  return {};
}

void HeldPages::append(std::span<const kv::PageIndex> owned) {
  pages_.insert(pages_.end(), owned.begin(), owned.end());
  pinned_.resize(pages_.size(), false);
}

void HeldPages::forget_from(uint32_t first) {
  MC_ASSERT_LE(first, pages_.size());
  MC_ASSERT(std::find(pinned_.begin() + first, pinned_.end(), true) == pinned_.end());
  pages_.resize(first);
  pinned_.resize(first);
}

void HeldPages::adopt(kv::Pool& pool, kv::PageIndex owned, kv::BlockMeta meta) {
  pages_.push_back(pool.publish(owned, std::move(meta)).page);
  pinned_.push_back(true);
  MC_ASSERT_EQ(pages_.size(), pinned_.size());
}

bool HeldPages::publish(kv::Pool& pool, uint32_t block, kv::BlockMeta meta) {
  MC_ASSERT_LT(block, pages_.size());
  if (pinned_[block] || pool.find(meta.hash) != kv::kNoPage) return false;
  const auto published = pool.publish(pages_[block], std::move(meta));
  MC_ASSERT(!published.duplicate && published.page == pages_[block]);
  pinned_[block] = true;
  return true;
}

void HeldPages::release_from(kv::Pool& pool, uint32_t first) {
  MC_ASSERT_EQ(pages_.size(), pinned_.size());
  for (size_t i = first; i < pages_.size(); ++i) {
    if (pinned_[i])
      pool.unpin(pages_[i]);
    else
      pool.release(pages_[i]);
  }
  pages_.resize(std::min<size_t>(pages_.size(), first));
  pinned_.resize(pages_.size());
}

}  // namespace mc::node

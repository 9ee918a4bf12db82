#include "node/reader_shares.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

/// The share with its count as of now.
ReaderShares::Share& ReaderShares::counted(const Shelf& shelf, const InstanceId& reader, TimePoint now) {
  Share& share = shares_.try_emplace({reader, &shelf}, Share{.at = now}).first->second;
  const Duration passed = std::max<Duration>(now - share.at, Duration{});
  share.at += passed;
  if (share.pages > half(shelf))
    share.above = std::min(share.above + passed, limit_);
  else
    share.above = std::max(share.above - passed, Duration{});
  if (share.above == limit_) share.is_bound = true;
  if (share.above == Duration{}) share.is_bound = false;
  return share;
}

uint32_t ReaderShares::room(const Shelf& shelf, const InstanceId& reader, TimePoint now) {
  const Share& share = counted(shelf, reader, now);
  if (!share.is_bound) return UINT32_MAX;
  return static_cast<uint32_t>(half(shelf) - std::min(half(shelf), share.pages));
}

bool ReaderShares::may_renew(const Shelf& shelf, const InstanceId& reader, TimePoint now) {
  const Share& share = counted(shelf, reader, now);
  return !share.is_bound || share.pages <= half(shelf);
}

void ReaderShares::begun(const Shelf& shelf, const InstanceId& reader, uint32_t pages, TimePoint now) {
  counted(shelf, reader, now).pages += pages;
}

void ReaderShares::ended(const Shelf& shelf, const InstanceId& reader, uint32_t pages, TimePoint now) {
  Share& share = counted(shelf, reader, now);
  MC_ASSERT(share.pages >= pages);
  share.pages -= pages;
  if (share.pages == 0 && share.above == Duration{}) shares_.erase({reader, &shelf});
}

void ReaderShares::forget(const InstanceId& reader) {
  std::erase_if(shares_, [&](const auto& share) { return share.first.first == reader; });
}

}  // namespace mc::node

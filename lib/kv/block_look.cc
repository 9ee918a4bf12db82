#include "kv/block_look.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::kv {

BlockLook::BlockLook(std::span<const BlockHash> hashes, uint64_t buckets, uint64_t epoch)
    : hashes_(hashes.begin(), hashes.end()), buckets_(buckets), epoch_(epoch), held_(hashes.size()) {
  for (const BlockHash& hash : hashes_)
    for (const uint64_t bucket : wire::buckets_of(hash, buckets_)) wanted_.push_back(bucket);
  std::ranges::sort(wanted_);
  wanted_.erase(std::ranges::unique(wanted_).begin(), wanted_.end());
}

void BlockLook::take(std::span<const wire::BlockBucket> copies) {
  MC_ASSERT_EQ(copies.size(), wanted_.size());
  MC_ASSERT(!copies.empty());
  std::vector<uint64_t> torn;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!wire::is_sound(copies[i], epoch_)) {
      torn.push_back(wanted_[i]);
      continue;
    }
    for (size_t h = 0; h < hashes_.size(); ++h)
      if (held_[h] == wire::HeldIn::none) {
        const auto at = wire::buckets_of(hashes_[h], buckets_);
        if (at[0] == wanted_[i] || at[1] == wanted_[i]) held_[h] = wire::find_block(copies[i], hashes_[h]);
      }
  }
  torn_ = torn.size();
  torn_copies_ += torn_;
  wanted_ = ++rounds_ < kRoundsMax ? std::move(torn) : std::vector<uint64_t>();
}

}  // namespace mc::kv

#include "door/recent_removals.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::door {

void RecentRemovals::note(const node::ValueKey& key, uint64_t version) {
  const std::lock_guard lock(mutex_);
  const TimePoint now = clock_.now();
  Removal& removal = removals_[key];
  by_end_.erase({removal.until, key});
  removal = {std::max(removal.version, version), after(now, kKeptFor)};
  by_end_.emplace(removal.until, key);
  while (by_end_.begin()->first <= now || by_end_.size() > kMost) {
    removals_.erase(by_end_.begin()->second);
    by_end_.erase(by_end_.begin());
  }
  MC_ASSERT_EQ(removals_.size(), by_end_.size());
}

uint64_t RecentRemovals::version_of(const node::ValueKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto removal = removals_.find(key);
  return removal != removals_.end() && removal->second.until > clock_.now() ? removal->second.version : 0;
}

}  // namespace mc::door

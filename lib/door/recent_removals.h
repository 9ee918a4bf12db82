// The values with replicas that were removed lately (door/replicas.h). A put or an offer that was under way when its
// value was removed brings the value to no node again.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "base/clock.h"
#include "node/value_store.h"

namespace mc::door {

/// Any thread may call anything.
class RecentRemovals {
 public:
  static constexpr Duration kKeptFor = 120s;  // longer than an offer or a get is under way
  static constexpr size_t kMost = 65'536;     // beyond it the oldest one is forgotten

  /// `clock` outlives it.
  explicit RecentRemovals(const Clock& clock) : clock_(clock) {}
  /// The key's value of this version was removed, and so were all earlier ones.
  void note(const node::ValueKey& key, uint64_t version);
  /// 0: no value of the key was removed lately.
  uint64_t version_of(const node::ValueKey& key) const;
  bool has(const node::ValueKey& key, uint64_t version) const { return version > 0 && version <= version_of(key); }

 private:
  struct Removal {
    uint64_t version = 0;
    TimePoint until;
  };

  const Clock& clock_;
  mutable std::mutex mutex_;  // of the members below
  std::map<node::ValueKey, Removal> removals_;
  std::set<std::pair<TimePoint, node::ValueKey>> by_end_;
};

}  // namespace mc::door

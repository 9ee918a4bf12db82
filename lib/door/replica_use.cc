#include "door/replica_use.h"

#include <algorithm>

namespace mc::door {

void ReplicaUse::note(const InstanceId& node, bool has_begun) {
  if (has_begun) return begin();
  constexpr size_t kNodesMax = 4096;
  const std::lock_guard lock(mutex_);
  const TimePoint now = clock_.now();
  if (sure_.size() >= kNodesMax) std::erase_if(sure_, [&](const auto& entry) { return entry.second <= now; });
  if (sure_.size() < kNodesMax || sure_.contains(node)) sure_[node] = after(now, kSureFor);
}

bool ReplicaUse::is_possible(std::span<const Node> nodes) const {
  if (nodes.empty()) return false;
  if (has_begun()) return true;
  const std::lock_guard lock(mutex_);
  const TimePoint now = clock_.now();
  return std::ranges::any_of(nodes, [&](const Node& node) {
    const auto entry = sure_.find(node.instance);
    return entry == sure_.end() || entry->second <= now;
  });
}

}  // namespace mc::door

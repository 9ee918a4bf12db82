#include "node/replica_keeper.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/hash.h"

namespace mc::node {

std::vector<std::string> replica_order(const ValueKey& key, std::vector<std::string> nodes) {
  std::vector<std::pair<Id128, std::string>> ranked;
  for (std::string& node : nodes) {
    Sha256 hash;
    for (const std::string* part : std::initializer_list<const std::string*>{&key.tenant, &key.name, &node})
      hash.update_u64(part->size()).update(std::string_view(*part));
    ranked.emplace_back(hash.finish128(), std::move(node));
  }
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first.bytes > b.first.bytes; });
  std::vector<std::string> out;
  for (auto& [rank, node] : ranked) out.push_back(std::move(node));
  return out;
}

void ReplicaKeeper::set_members(const std::string& self, const std::vector<Node>& others, TimePoint now) {
  if (self.empty()) return;
  if (std::exchange(self_, self).empty()) first_seen_ = round_at_ = now;
  std::map<std::string, InstanceId> alive;
  for (const Node& node : others) alive.emplace(node.name, node.instance);
  if (alive == alive_) return;
  for (const auto& [name, instance] : alive) {
    const auto known = alive_.find(name);
    if (known == alive_.end() || known->second != instance) round_at_ = std::min(round_at_, now);
    away_.erase(name);
  }
  for (const auto& [name, instance] : alive_) {
    if (alive.contains(name)) continue;
    constexpr size_t kAwayMax = 4096;
    if (away_.size() >= kAwayMax) away_.erase(away_.begin());
    away_.emplace(name, now);
    round_at_ = std::min(round_at_, after(now, options_.grace));
  }
  alive_ = std::move(alive);
}

void ReplicaKeeper::begin_round(TimePoint now) {
  MC_ASSERT(wants_round(now));
  failed_.clear();
  is_incomplete_ = false;
  round_at_ = kNever;  // a change during the round asks for the next one
}

void ReplicaKeeper::end_round(TimePoint now) {
  const bool is_done = failed_.empty() && !is_incomplete_;
  TimePoint next = after(now, is_done ? options_.interval : options_.again);
  for (const auto& [name, since] : away_)
    if (const TimePoint due = after(since, options_.grace); due > now) next = std::min(next, due);
  if (const TimePoint due = after(first_seen_, options_.grace); due > now) next = std::min(next, due);
  round_at_ = std::min(round_at_, next);
}

ReplicaKeeper::Work ReplicaKeeper::work(const ValueKey& key, const wire::ReplicaSet& set, bool is_durable,
                                        TimePoint now) const {
  MC_ASSERT(!self_.empty());
  Work out;
  const auto keeper =
      std::find_if(set.holders.begin(), set.holders.end(), [&](const std::string& holder) { return is_alive(holder); });
  out.is_keeper = keeper != set.holders.end() && *keeper == self_;
  if (!out.is_keeper) {
    for (const std::string& holder : set.holders) {
      if (holder == self_) return out;
      if (is_alive(holder) && !failed_.contains(holder)) out.confirm.push_back(holder);
    }
    out.confirm.clear();  // this node is no holder
    return out;
  }
  uint32_t counted = 0;
  for (const std::string& holder : set.holders) {
    if (is_alive(holder)) {
      ++counted;
      if (holder != self_ && !failed_.contains(holder)) out.confirm.push_back(holder);
      continue;
    }
    // A holder that this process has never seen counts as away since the process has had a list of members.
    const auto away = away_.find(holder);
    const bool is_long = now >= after(away == away_.end() ? first_seen_ : away->second, options_.grace);
    counted += !is_long;
    if (is_long && !is_durable) out.drop.push_back(holder);
  }
  std::vector<std::string> others;
  for (const auto& [name, instance] : alive_)
    if (!set.has(name) && !failed_.contains(name)) others.push_back(name);
  const size_t room = wire::kReplicasMax - (set.holders.size() - out.drop.size());
  const size_t wanted = std::min<size_t>(set.copies - std::min(set.copies, counted), room);
  for (std::string& node : replica_order(key, std::move(others)))
    if (out.add.size() < wanted) out.add.push_back(std::move(node));
  return out;
}

}  // namespace mc::node

#include "node/peers.h"

#include "base/assert.h"

namespace mc::node {

const wire::Peer* Peers::find(const NodeId& node) const {
  const auto it = peers_.find(node);
  return it == peers_.end() ? nullptr : &it->second;
}

bool Peers::has(const NodeId& node, const InstanceId& instance) const {
  const wire::Peer* p = find(node);
  return p && p->instance == instance;
}

std::vector<const wire::Peer*> Peers::caches() const {
  std::vector<const wire::Peer*> out;
  for (const auto& [name, p] : peers_)
    if (p.role == wire::Role::cache) out.push_back(&p);
  return out;
}

std::optional<std::vector<wire::Peer>> Peers::gone(const wire::Peers& list) const {
  if (list.version < version_) return std::nullopt;
  std::map<std::string, InstanceId> next;
  for (const auto& p : list.peers) next[p.name] = p.instance;
  std::vector<wire::Peer> out;
  for (const auto& [name, old] : peers_) {
    const auto it = next.find(name);
    if (it == next.end() || it->second != old.instance) out.push_back(old);
  }
  return out;
}

void Peers::take(const wire::Peers& list) {
  MC_ASSERT_LE(version_, list.version);
  peers_.clear();
  for (const auto& p : list.peers)
    if (p.instance != self_) peers_[p.name] = p;
  version_ = list.version;
  std::erase_if(former_, [&](const wire::Peer& p) { return peers_.contains(p.name); });
}

void Peers::forget(const NodeId& node, const InstanceId& instance) {
  if (!has(node, instance)) return;
  peers_.erase(node);
  version_ = 0;
}

void Peers::new_conductor(TimePoint until) {
  version_ = 0;
  for (const auto& [name, peer] : peers_) former_.push_back(peer);
  if (!former_.empty()) former_until_ = until;
}

void Peers::lost_former(const InstanceId& instance) {
  std::erase_if(former_, [&](const wire::Peer& p) { return p.instance == instance; });
}

bool Peers::drop_former(TimePoint now) {
  if (now < former_until_) return false;
  former_.clear();
  former_until_ = kNever;
  return true;
}

SetPeers Peers::told() const {
  SetPeers set;
  for (const auto& [name, p] : peers_) set.peers.push_back(p);
  set.peers.insert(set.peers.end(), former_.begin(), former_.end());
  return set;
}

}  // namespace mc::node

// The other members of the cluster as the conductor lists them, for one worker.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "node/node.h"

namespace mc::node {

class Peers {
 public:
  /// `self` is left out of every list.
  explicit Peers(const InstanceId& self) : self_(self) {}

  const std::map<std::string, wire::Peer>& all() const { return peers_; }
  const wire::Peer* find(const NodeId& node) const;
  bool has(const NodeId& node, const InstanceId& instance) const;
  /// Version of the newest list. 0 makes the conductor send the list again.
  uint64_t version() const { return version_; }
  std::vector<const wire::Peer*> caches() const;

  /// The known members that a newer list lacks or lists under another instance. nullopt for an older list.
  std::optional<std::vector<wire::Peer>> gone(const wire::Peers& list) const;
  void take(const wire::Peers& list);
  /// Removes an instance that is gone. The link between two living nodes may have broken, so the conductor's list is
  /// requested again.
  void forget(const NodeId& node, const InstanceId& instance);

  /// A new conductor learns of the members one by one. Until `until` the connections to the members under the old
  /// conductor are kept.
  void new_conductor(TimePoint until);
  void lost_former(const InstanceId& instance);
  /// True when the members under the old conductor have just been removed.
  bool drop_former(TimePoint now);
  TimePoint next_wakeup() const { return former_until_; }

  SetPeers told() const;

 private:
  InstanceId self_;
  std::map<std::string, wire::Peer> peers_;
  uint64_t version_ = 0;
  std::vector<wire::Peer> former_;
  TimePoint former_until_ = kNever;
};

}  // namespace mc::node

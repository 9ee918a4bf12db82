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
  /// Of the newest list; 0 asks the conductor for it again.
  uint64_t version() const { return version_; }
  std::vector<const wire::Peer*> caches() const;

  /// The members that a newer list lacks, or lists under another instance; nothing for a list that is older.
  std::optional<std::vector<wire::Peer>> gone(const wire::Peers& list) const;
  void take(const wire::Peers& list);
  /// This instance is gone. The conductor may know better (a link that broke between two living nodes), so its list is
  /// asked for again. What it was, if it was a member.
  std::optional<wire::Role> forget(const NodeId& node, const InstanceId& instance);

  /// Another conductor learns of the members one by one: until `until` the connections to those of before are kept.
  void new_conductor(TimePoint until);
  void lost_former(const InstanceId& instance);
  /// True when the former members have just been given up.
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

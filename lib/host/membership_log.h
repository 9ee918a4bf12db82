// The conductor's log of its nodes: one line at info for each node that joined, was lost or changed its state.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "node/conductor.h"

namespace mc::host {

class MembershipLog {
 public:
  enum class Kind : uint8_t { joined, left, state };
  /// One change between the last call and this one.
  struct Change {
    Kind kind = Kind::joined;
    std::string node;
    wire::Role role = wire::Role::prefill;
    node::NodeState state = node::NodeState::ready;
    std::string detail;  // the address of a node that joined; the missing part of a partial node; why a node left
    bool operator==(const Change&) const = default;
    std::string event() const;
  };
  /// `lost` tells why nodes left.
  std::vector<Change> changes(const std::vector<node::Conductor::NodeStatus>& nodes,
                              const std::deque<node::Members::Lost>& lost);
  /// Logs the changes.
  void update(const std::vector<node::Conductor::NodeStatus>& nodes, const std::deque<node::Members::Lost>& lost);

 private:
  struct Known {
    std::string name;
    wire::Role role;
    node::NodeState state;
  };
  std::map<InstanceId, Known> known_;
};

}  // namespace mc::host

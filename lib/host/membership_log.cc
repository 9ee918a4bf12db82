#include "host/membership_log.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "wire/codec.h"

namespace mc::host {

std::string MembershipLog::Change::event() const {
  if (kind == Kind::joined) return "node joined";
  if (kind == Kind::left) return "node left";
  return "node is " + std::string(to_string(state));
}

std::vector<MembershipLog::Change> MembershipLog::changes(const std::vector<node::Conductor::NodeStatus>& nodes,
                                                          const std::deque<node::Members::Lost>& lost) {
  std::vector<Change> out;
  std::map<InstanceId, Known> now;
  for (const auto& node : nodes) {
    now.emplace(node.instance, Known{node.name, node.role, node.state});
    const auto before = known_.find(node.instance);
    const bool is_new = before == known_.end();
    if (is_new) out.push_back({Kind::joined, node.name, node.role, node.state, node.control_uri});
    if (node.state != (is_new ? node::NodeState::ready : before->second.state))
      out.push_back({Kind::state, node.name, node.role, node.state, node.lacks});
  }
  for (const auto& [instance, before] : known_) {
    if (now.contains(instance)) continue;
    // A node that was silent and came back is lost a second time under the same instance: the newest reason counts.
    const auto told = std::find_if(lost.rbegin(), lost.rend(), [&](const auto& l) { return l.instance == instance; });
    out.push_back({Kind::left, before.name, before.role, before.state, told == lost.rend() ? "" : told->why});
  }
  known_ = std::move(now);
  return out;
}

void MembershipLog::update(const std::vector<node::Conductor::NodeStatus>& nodes,
                           const std::deque<node::Members::Lost>& lost) {
  for (const Change& change : changes(nodes, lost))
    log_info(change.event(),
             {{"name", change.node}, {"role", wire::to_string(change.role)}, {"detail", change.detail}});
}

}  // namespace mc::host

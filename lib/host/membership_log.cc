#include "host/membership_log.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "wire/codec.h"

namespace mc::host {

std::string MembershipLog::Change::event() const {
  if (kind == Kind::joined) return "node joined";
  if (kind == Kind::left) return "node left";
  if (kind == Kind::index_full) return "the index takes no more blocks of the node, so its further ones are not reused";
  return "node is " + std::string(to_string(state));
}

std::vector<MembershipLog::Change> MembershipLog::changes(const std::vector<node::Conductor::NodeStatus>& nodes,
                                                          const std::deque<node::Members::Lost>& lost) {
  std::vector<Change> out;
  std::map<InstanceId, Known> now;
  for (const auto& node : nodes) {
    const auto before = known_.find(node.instance);
    const bool is_new = before == known_.end();
    const bool was_full = !is_new && before->second.was_full;
    now.emplace(node.instance, Known{node.name, node.role, node.state, was_full || node.indexed.is_full});
    if (is_new) out.push_back({Kind::joined, node.name, node.role, node.state, node.control_uri});
    if (node.state != (is_new ? node::NodeState::ready : before->second.state))
      out.push_back({Kind::state, node.name, node.role, node.state, node.lacks});
    if (node.indexed.is_full && !was_full)
      out.push_back(
          {Kind::index_full, node.name, node.role, node.state,
           std::to_string(node.indexed.count) + " blocks, " + std::to_string(node.indexed.all) + " of all nodes"});
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
    log(change.kind == Kind::index_full ? LogLevel::warn : LogLevel::info, change.event(),
        {{"name", change.node}, {"role", wire::to_string(change.role)}, {"detail", change.detail}});
}

RefusalLog::Lines RefusalLog::lines(const node::Members::Refusals& refused, TimePoint now) {
  MC_ASSERT(refused.count >= seen_ && refused.count >= refused.last.size());
  std::erase_if(said_, [&](const auto& line) { return now - line.second >= kQuiet; });
  Lines out;
  const uint64_t fresh = std::min<uint64_t>(refused.count - seen_, refused.last.size());
  left_out_ += refused.count - seen_ - fresh;
  seen_ = refused.count;
  for (auto node = refused.last.end() - static_cast<std::ptrdiff_t>(fresh); node != refused.last.end(); ++node) {
    const std::pair key(node->instance, node->why.mc);
    if (said_.contains(key)) continue;
    if (said_.size() == kLinesMax) {
      ++left_out_;
      continue;
    }
    said_[key] = now;
    out.nodes.push_back(*node);
  }
  if (!out.nodes.empty()) out.left_out = std::exchange(left_out_, 0);
  return out;
}

void RefusalLog::update(const node::Members& members, TimePoint now) {
  const Lines due = lines(members.refused(), now);
  for (const auto& node : due.nodes)
    log_warn("node refused", {{"name", node.name},
                              {"role", wire::to_string(node.role)},
                              {"control", node.control_uri},
                              {"why", "MC" + std::to_string(node.why.mc) + ": " + node.why.message}});
  if (due.left_out > 0) log_warn("more nodes were refused", {{"refusals", due.left_out}});
}

}  // namespace mc::host

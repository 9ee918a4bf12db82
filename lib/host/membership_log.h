// The conductor's log of its nodes: one line at info for each node that joined, was lost or changed its state, and one
// at warn for each process that may not join.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "node/conductor.h"

namespace mc::host {

class MembershipLog {
 public:
  enum class Kind : uint8_t { joined, left, state, index_full };
  /// One change between the last call and this one.
  struct Change {
    Kind kind = Kind::joined;
    std::string node;
    wire::Role role = wire::Role::prefill;
    node::NodeState state = node::NodeState::ready;
    // the address of a node that joined; the missing part of a partial node; why a node left; the blocks in the index
    std::string detail;
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
    bool was_full;  // the index took no more of its blocks at some time: told once
  };
  std::map<InstanceId, Known> known_;
};

/// A process that is refused asks again twice a second, and strangers may ask as often as they like. So the log has one
/// line for each process and cause in kQuiet, and at most kLinesMax lines in that time.
class RefusalLog {
 public:
  static constexpr Duration kQuiet = 60s;
  static constexpr size_t kLinesMax = 10;

  struct Lines {
    std::vector<node::Members::RefusedNode> nodes;
    uint64_t left_out = 0;  // lines about other processes that kLinesMax has kept back since the last line
  };
  /// The lines that are due.
  Lines lines(const node::Members::Refusals& refused, TimePoint now);
  /// Logs them.
  void update(const node::Members& members, TimePoint now);

 private:
  uint64_t seen_ = 0;  // refusals
  uint64_t left_out_ = 0;
  std::map<std::pair<InstanceId, uint32_t>, TimePoint> said_;  // when, at most kLinesMax of them
};

}  // namespace mc::host

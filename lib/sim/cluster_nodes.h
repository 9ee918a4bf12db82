// The nodes of a simulated cluster as its conductor lists them: which are up since when, and the board slot of each.
//
//   slots   0 .. count()-1   nodes that compute prompts and hold caches; coupled ones decode as well
//           count() ..       decode nodes, unless the nodes are coupled
#pragma once

#include <cstdint>
#include <vector>

#include "sched/sched.h"
#include "sim/cluster.h"

namespace mc::sim {

class ClusterNodes {
 public:
  /// All nodes are up. `count` nodes compute prompts. `options` must outlive the object.
  ClusterNodes(const ClusterOptions& options, uint32_t count);

  uint32_t count() const { return static_cast<uint32_t>(outages_.size()); }
  bool coupled() const { return options_.shape.coupled > 0; }
  int slot_of_decode(uint32_t decode) const;
  /// The nodes must not be coupled.
  uint32_t decode_of_slot(uint32_t slot) const;

  bool is_up(uint32_t node) const { return outages_[node] == 0; }
  /// Whether a node of each phase is up.
  bool serves() const;
  /// Begins or ends an outage of the node. A node is up when all of its outages have ended, and counts as new from that
  /// time on. An end without an outage is ignored. Returns whether the node went down or came up.
  bool set_up(uint32_t node, bool up, double now_s);
  /// Likewise for a decode node. The nodes must not be coupled.
  bool set_decode_up(uint32_t decode, bool up);

  /// The nodes that are up, in the order of their slots. A group of prefill nodes is one member, whose announced cost
  /// is that of a stage.
  std::vector<sched::BoardMember> members() const;

 private:
  using Outages = std::vector<uint32_t>;  // outages of each node that have not ended
  static bool change(uint32_t& outages, bool up);

  const ClusterOptions& options_;
  Outages outages_, decode_outages_;
  std::vector<double> up_since_s_;  // of the nodes that compute prompts
};

}  // namespace mc::sim

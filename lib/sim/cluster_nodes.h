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

  uint32_t count() const { return static_cast<uint32_t>(up_.size()); }
  bool coupled() const { return options_.shape.coupled > 0; }
  int slot_of_decode(uint32_t decode) const;
  /// The nodes must not be coupled.
  uint32_t decode_of_slot(uint32_t slot) const;

  bool is_up(uint32_t node) const { return up_[node]; }
  /// Whether a node of each phase is up.
  bool serves() const;
  /// A node that comes up counts as new from now_s on. A change to the present state is ignored.
  void set_up(uint32_t node, bool up, double now_s);
  /// The nodes must not be coupled.
  void set_decode_up(uint32_t decode, bool up);

  /// The nodes that are up, in the order of their slots. A group of prefill nodes is one member, whose announced cost
  /// is that of a stage.
  std::vector<sched::BoardMember> members() const;

 private:
  const ClusterOptions& options_;
  std::vector<bool> up_, decode_up_;
  std::vector<double> up_since_s_;  // of the nodes that compute prompts
};

}  // namespace mc::sim

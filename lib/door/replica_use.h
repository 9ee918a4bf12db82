// ReplicaUse answers whether other cache nodes may have values with replicas (door/replicas.h). Calls of clients ask
// other nodes only then, so a cluster that has no such values pays one question a minute for them.
//
//   not known --the node answers that none has begun--> none, for kSureFor --> not known
//       '------- a put with replicas, an offer, or a node answers that they have begun -------> begun
//
// A put with replicas brings this node and all other members to `begun` before it stores anything. So when the put is
// acknowledged, no member is in `none`. A node that was cut off from the cluster meanwhile may be in `none` until the
// end of kSureFor.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <span>

#include "base/clock.h"
#include "base/ids.h"
#include "door/replica_link.h"

namespace mc::door {

/// Any thread may call anything.
class ReplicaUse {
 public:
  static constexpr Duration kSureFor = 60s;
  using Node = ReplicaLink::Node;

  /// `clock` outlives it.
  explicit ReplicaUse(const Clock& clock) : clock_(clock) {}
  /// The cluster has values with replicas, or is about to have one.
  void begin() { begun_ = true; }
  bool has_begun() const { return begun_; }
  /// The node has answered a call.
  void note(const InstanceId& node, bool has_begun);
  /// Whether one of the nodes may have a value with replicas.
  bool is_possible(std::span<const Node> nodes) const;

 private:
  const Clock& clock_;
  std::atomic<bool> begun_{false};        // until the process ends
  mutable std::mutex mutex_;              // of the member below
  std::map<InstanceId, TimePoint> sure_;  // nodes that are in `none` -> end of that state; bounded
};

}  // namespace mc::door

// Slow start of cache nodes. A cache node that joins holds no block, so every chain that becomes its own at once would
// be read by it at once, from all nodes that fill up. So it takes a small part of its share of the chains at first, and
// its part grows with the time since it joined. The conductor tells that time to all nodes alike, and they choose alike
// (node/demoter.h). Cache nodes of one age, as in a cluster that has just started, hold each other in balance.
#pragma once

#include <map>

#include "node/node.h"

namespace mc::node {

class SlowStart {
 public:
  static constexpr Duration kTime = 60s;          // until a node has its whole share
  static constexpr double kFirstPart = 1.0 / 16;  // of a node that has just joined

  /// The list of all members, which came now.
  void take(const wire::Peers& list, TimePoint now);
  /// The part of its share that the cache node takes, above 0 and at most 1. A node whose age is not known takes all.
  double part(const InstanceId& cache, TimePoint now) const;

 private:
  std::map<InstanceId, TimePoint> whole_at_;  // of the cache nodes that have not their whole share yet
};

}  // namespace mc::node

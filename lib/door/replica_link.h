// The other cache nodes of a cluster, as the replicas of values (door/replicas.h) reach them. lib/host implements it
// over the control plane.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "node/replica_keeper.h"
#include "wire/replica_messages.h"

namespace mc::door {

/// Any thread may call anything.
class ReplicaLink {
 public:
  using Node = node::ReplicaKeeper::Node;
  struct Members {
    std::string self;  // empty before the node is a member
    std::vector<Node> others;
    const Node* find(const std::string& name) const {
      for (const Node& node : others)
        if (node.name == name) return &node;
      return nullptr;
    }
  };
  /// Answers a call. It may be called once, later and on another thread.
  using Answer = std::function<void(wire::Bytes)>;
  /// A call of the node `from`, on a thread that must not wait.
  using Handler = std::function<void(const std::string& from, wire::ReplicaCall call, Answer answer)>;

  virtual ~ReplicaLink() = default;
  virtual Members members() const = 0;
  /// Waits for the answer of the node. MC2101 when none comes within `time`. An answer with an error is no error here.
  virtual Result<wire::ReplicaAnswer> call(const Node& to, const wire::ReplicaCall& call, Duration time) = 0;
  /// Gives calls of other nodes to `handler`, until an empty one takes its place: then no call of it is running.
  virtual void serve(Handler handler) = 0;
};

}  // namespace mc::door

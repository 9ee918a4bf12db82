// ReplicaLink carries calls about replicas of values (door/replicas.h) to the other cache nodes of a cluster. lib/host
// implements it over the control plane.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
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
    bool awaits_list = false;  // the node is a member, and the first list of the others has not come
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
  using Answers = std::vector<Result<wire::ReplicaAnswer>>;
  /// Whether an answer makes the others unnecessary. It may run with a lock of the link held.
  using Suffices = std::function<bool(const wire::ReplicaAnswer&)>;
  /// Asks all nodes at once. Returns when each has answered, `time` is over, or an answer suffices (null: none does).
  /// The answers have the order of the nodes; MC2101 stands for one that has not come. An answer with an error is no
  /// error here.
  virtual Answers call_all(std::span<const Node> to, const wire::ReplicaCall& call, Duration time,
                           const Suffices& suffices) = 0;
  Result<wire::ReplicaAnswer> call(const Node& to, const wire::ReplicaCall& call, Duration time) {
    return std::move(call_all({&to, 1}, call, time, nullptr).front());
  }
  /// Calls of other nodes go to `handler` from now on; with an empty one they are dropped. When it returns, the former
  /// handler is not running.
  virtual void serve(Handler handler) = 0;
};

}  // namespace mc::door

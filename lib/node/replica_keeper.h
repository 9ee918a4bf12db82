// ReplicaKeeper decides which cache nodes hold a value with replicas, and which of them makes a lost replica again. It
// has no sockets, threads or clocks: door/replicas.h carries the decisions out, and every call brings the time.
//
//              lists another instance         is not listed for `grace`
//   member ----------------------------> round <------------------------ away
//                                          ^
//                                          '-- every `interval`, and `again` after a round with a failure
//
// In a round the keeper of a value, which is its first living holder, asks each other living holder whether it still
// has the value, and chooses nodes in place of holders that are away for long. The keeper itself may have lost the
// value with its disk, so every other holder asks those before it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "node/value_store.h"
#include "wire/replica_set.h"

namespace mc::node {

/// The nodes in the order in which they take replicas of a key, by the highest hash of key and node (rendezvous
/// hashing; Thaler and Ravishankar, IEEE/ACM ToN 1998). A node that comes or goes moves no other replica.
std::vector<std::string> replica_order(const ValueKey& key, std::vector<std::string> nodes);

class ReplicaKeeper {
 public:
  struct Options {
    Duration grace = 30s;     // a holder is away for so long before another node takes its place
    Duration interval = 60s;  // from round to round
    Duration again = 2s;      // to the next round after one with a failure
  };
  struct Node {
    std::string name;
    InstanceId instance;
  };
  struct Work {
    std::vector<std::string> confirm;  // living holders that this node asks for the value
    std::vector<std::string> add;      // nodes that become holders
    std::vector<std::string> drop;     // away for long; a value in memory ended with the process that held it
    bool is_keeper = false;            // else another node adds and drops
  };

  explicit ReplicaKeeper(const Options& options) : options_(options) {}

  /// The other cache nodes that are members now.
  void set_members(const std::string& self, const std::vector<Node>& others, TimePoint now);
  const std::string& self() const { return self_; }
  bool is_alive(const std::string& node) const { return node == self_ || alive_.contains(node); }
  bool wants_round(TimePoint now) const { return !self_.empty() && now >= round_at_; }
  void begin_round(TimePoint now);
  /// The node did not answer: the rest of the round goes on without it.
  void fail(const std::string& node) { failed_.insert(node); }
  bool has_failed(const std::string& node) const { return failed_.contains(node); }
  /// A replica could not be made; the next round comes soon.
  void set_incomplete() { is_incomplete_ = true; }
  void end_round(TimePoint now);
  Work work(const ValueKey& key, const wire::ReplicaSet& set, bool is_durable, TimePoint now) const;

 private:
  const Options options_;
  std::string self_;
  std::map<std::string, InstanceId> alive_;
  std::map<std::string, TimePoint> away_;  // nodes that were members, by the time at which they were missed; bounded
  std::set<std::string> failed_;           // in this round
  TimePoint round_at_{}, first_seen_{};
  bool is_incomplete_ = false;
};

}  // namespace mc::node

// Values that several cache nodes hold. Each holder keeps the names of all holders with the value (wire/replica_set.h),
// so there is no directory. A change reaches all holders, and one holder is enough for a read:
//
//   put      choose the holders -> store here -> offer to the others, which read the bytes from here -> acknowledge
//   get      no value here, or a damaged one: ask the other nodes at once, read from one that has it, store it again
//   remove   all holders are there? -> remove on each -> acknowledge
//   upkeep   the first living holder of a value makes lost replicas again (node/replica_keeper.h)
//
// A holder that is away would bring an old value back later. So a value is not changed without it, unless a removal is
// forced. Two values of one key are ordered by their versions, and a node that has the lower one replaces it.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "door/door_pool.h"
#include "door/lent_values.h"
#include "door/recent_removals.h"
#include "door/replica_link.h"
#include "door/replica_use.h"
#include "door/stored_values.h"
#include "node/replica_keeper.h"

namespace mc::door {

class Replicas {
 public:
  using Found = StoredValues::Found;
  using PutResult = StoredValues::PutResult;

  /// All outlive it. `value_bytes_max`: the largest value that it takes from another node.
  Replicas(StoredValues& values, ReplicaLink& link, const Clock& clock, const node::ReplicaKeeper::Options& options,
           uint64_t value_bytes_max);
  /// stop()s.
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;
  /// Serves other nodes, and runs the upkeep on a thread of its own. std::system_error when there are no threads.
  void start();
  void stop();

  // Calls of clients. They wait for other nodes until `until` at most, which is a time of the system clock.

  /// Acknowledged when all holders have the value at its level. Errors: those of StoredValues::put(), of this node or
  /// of another one, which the error names; MC4031 there are too few nodes; MC2101 a node does not answer. After an
  /// error the nodes that did not have the value do not have it, as far as they can be reached.
  /// A put that asks for no replicas keeps those of the key's value. Where no node that answers has any, this node
  /// alone gets the value, as StoredValues::put() does with `later`.
  Result<PutResult> put(const node::ValueKey& key, const node::SharedValue& value, node::ValueTerms terms,
                        TimePoint until, StoredValues::Later* later = nullptr);
  /// The value from another node that holds it. MC4007: no node has it. A node that should hold it stores it again.
  Result<Found> get(const node::ValueKey& key, TimePoint until);
  Result<node::ValueInfo> find(const node::ValueKey& key, TimePoint until);
  /// MC2101, and nothing is removed, when a holder is away; `forced` removes what can be reached. A holder that stops
  /// answering under way is MC2101, too: the value stays here, and other holders may have removed it.
  Result<void> remove(const node::ValueKey& key, bool forced, TimePoint until);
  Result<void> pin(const node::ValueKey& key, Duration time, TimePoint until);

  /// Whether other nodes may have a value with replicas of a key that has no value here.
  bool may_be_elsewhere() const {
    const Members there = link_.members();
    return there.awaits_list || use_.is_possible(there.others);
  }
  /// Number of replicas that were asked for and are not there: their nodes are away, or lacked the value when they were
  /// asked last.
  uint32_t missing(const node::ValueKey& key, const wire::ReplicaSet& set) const;

  /// One look at the members, and a round of the upkeep if it is time. start() calls it; for tests.
  void tend();
  /// Answers a call of another node at once; for tests.
  wire::ReplicaAnswer answer(const std::string& from, const wire::ReplicaCall& call);
  void update(Metrics& metrics);

 private:
  using Members = ReplicaLink::Members;
  using Node = ReplicaLink::Node;
  using Answers = ReplicaLink::Answers;
  /// The value of a key as another node has it.
  struct Elsewhere {
    Node node;
    wire::ReplicaValue value;
  };
  struct Copied {
    node::SharedValue bytes;
    wire::ReplicaValue value;
  };
  struct Lacking {
    std::vector<std::string> nodes;
    uint64_t round = 0;  // in which they were asked
  };
  /// A put on its way through the holders.
  struct Spread;

  Result<Members> members(bool forced = false) const;
  Answers ask_all(std::span<const Node> nodes, const wire::ReplicaCall& call, TimePoint until,
                  const ReplicaLink::Suffices& suffices = nullptr);
  Result<wire::ReplicaAnswer> ask(const Node& node, const wire::ReplicaCall& call, TimePoint until);
  Result<std::optional<Elsewhere>> look(const node::ValueKey& key, std::span<const Node> nodes, TimePoint until);
  Result<wire::ReplicaSet> standing(const node::ValueKey& key, const Members& members, bool forced, TimePoint until);
  Result<wire::ReplicaSet> choose(const node::ValueKey& key, const node::ValueTerms& terms,
                                  const wire::ReplicaSet& before, const Members& members);
  Result<PutResult> spread(Spread& put);
  void undo(const Spread& put);
  Result<Copied> read(const node::ValueKey& key, const Node& node, TimePoint until);
  Result<node::SharedValue> read_bytes(const Node& node, uint64_t transfer, const wire::ReplicaValue& value,
                                       TimePoint until);
  Result<void> store(const node::ValueKey& key, const node::SharedValue& value, const wire::ReplicaValue& terms,
                     bool replaces);
  void handle(const std::string& from, wire::ReplicaCall call, const ReplicaLink::Answer& answer);
  Result<void> take_offer(const std::string& from, const wire::ReplicaCall& call, wire::ReplicaAnswer& out);
  Result<void> give(const wire::ReplicaCall& call, wire::ReplicaAnswer& out);
  Result<void> read_part(const wire::ReplicaCall& call, wire::ReplicaAnswer& out);

  void run();
  void tend_value(const node::ValueKey& key);
  bool offer_again(const node::ValueKey& key, const node::ValueInfo& info, const wire::ReplicaSet& set,
                   const std::string& node);
  void give_way(const node::ValueKey& key, const node::ValueInfo& info, const Node& node,
                const wire::ReplicaAnswer& answer);
  void set_lacking(const node::ValueKey& key, std::vector<std::string> nodes);

  StoredValues& values_;
  ReplicaLink& link_;
  const Clock& clock_;
  const uint64_t value_bytes_max_;
  LentValues lent_;
  RecentRemovals removals_;
  ReplicaUse use_;
  mutable std::mutex mutex_;  // of the members below, up to counts_
  std::condition_variable changed_;
  bool stopping_ = false;
  node::ReplicaKeeper keeper_;
  uint64_t last_version_ = 0;
  uint64_t round_ = 0;
  std::map<node::ValueKey, Lacking> lacking_;  // values that holders lacked when they were asked last; bounded
  struct Counts {
    uint64_t made = 0, failed = 0, fetched = 0;
  } counts_, reported_;  // now, and at the last update()
  // Offers have threads of their own, because an offer waits until it has read the value from its caller. All other
  // calls wait for no node.
  std::unique_ptr<DoorPool> offers_, calls_;
  std::thread upkeep_;
};

}  // namespace mc::door

// The line (waiting queue): requests that wait at the conductor for their turn (sched/fair.h has the order), and the
// quota of every tenant. A held request waits here and not in a node's queue, so its order can still change, and its
// place is chosen by the state of the cluster at its turn. A turn comes when a prefill node is about to be free.
//
// A held request that could not run at its turn moves from the queue to the group of requests that wait for one change.
// When that change happens, a few requests of each tenant return to the queue at a time, in order. So the cost of an
// event depends on the size of the change and not on the number of held requests.
//
//   members  no node for the request is registered      back when one joins (set_has_nodes)
//   pin      its prefill node is absent or busy         back when that node has room
//   prefix   a node computes its prefix                 back when that node ends a prefill, goes or takes too long
//   room     no idle node could take the request        back when any node gets room
//   load     admission refused it for the decode load   back when any node gets room: the first few of its tenant.
//                                                       After each second: the next few of its tenant
//
// A request that waits for a lower decode load keeps its place before later requests. If each newcomer could take the
// little room that has come up meanwhile, waiting requests would get none until their time has nearly run out. Then
// admission holds nothing back, and every request would have waited that long. The first few may be too much for the
// decode nodes for a long time. So the next few are asked once a second, each time those that follow: of N requests of
// a tenant each is asked within N/4 + 1 seconds as long as a prefill node is idle at times.
//
// The class reads no clock and no messages. The order of the calls and their times decide everything.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "sched/board.h"
#include "sched/fair.h"

namespace mc::sched {

struct LineOptions {
  /// automatic: requests are held as long as there are tenants or prioritised requests.
  enum class Hold : uint8_t { off, automatic, on };
  Hold hold = Hold::off;
  Duration lead = 300ms;  // a node is about to be free when its queue is at most so long
  FairOptions fair;
};

/// A request in the waiting queue.
struct HeldRequest {
  RequestId id;
  uint32_t tenant = 0;
  int priority = 0;
  double tokens = 0;  // tokens of the prompt
  double work_s = 0;  // predicted seconds of prefill
  TimePoint arrived{}, deadline = kNever;
  TimePoint expires = kNever;  // from this time on the TTFT bound cannot be met
  NodeId pin;                  // prefill node that the request is pinned to; "" = any
  std::string destination;     // requests with one destination share decode nodes and a range of bounds of TBT
};

/// The change that a held request waits for. `of` is its pin, or the node that computes its prefix, or for load its
/// destination.
struct Wait {
  enum class For : uint8_t { nothing, members, pin, prefix, room, load } why = For::nothing;
  std::string of;
  auto operator<=>(const Wait&) const = default;
};

class Line {
 public:
  explicit Line(const LineOptions& options = {}) : options_(options), fair_(options.fair) {}

  // ---- quotas ----
  FairQueue& tenants() { return fair_; }
  const FairQueue& tenants() const { return fair_; }
  /// Admits a request, which later ends by one leave(). nullopt: admitted.
  std::optional<FairQueue::Refusal> admit(uint32_t tenant, int priority, double tokens, TimePoint now);
  /// `refund_tokens`: tokens of a request that was rejected before any work; they return to the quota of its tenant.
  void leave(uint32_t tenant, int priority, std::optional<double> refund_tokens, TimePoint now);

  // ---- waiting ----
  /// Whether a request that arrives now is held. `priority`: treats the queue as if it had a request of that priority.
  bool holds(int priority = 0) const;
  /// Predicted seconds until the request's turn: the shortest node queue, then the work ahead, spread over the nodes.
  double ahead_s(const HeldRequest& request, const Board::Queues& queues, TimePoint now) const;
  /// The predicted TTFT of a new request when it misses its bound; nullopt: the request may wait.
  std::optional<double> predicted_miss_s(const HeldRequest& request, double ttft_slo_s, const Board::Queues& queues,
                                         TimePoint now) const;
  void push(HeldRequest request);
  bool contains(const RequestId& id) const { return held_.contains(id); }
  size_t size() const { return fair_.size(); }
  /// Number of times that a held request got its turn. For tests.
  uint64_t asked() const { return fair_.pops(); }
  /// Removes a request that was placed or has ended.
  void erase(const RequestId& id);

  // ---- turns ----
  /// A node has more room, or the members changed: requests that found no place may find one now.
  void room_changed();
  /// Sets whether nodes are registered that the request may use, busy or not. False: the request waits for members.
  void set_has_nodes(const RequestId& id, bool has_nodes);
  /// A round of turns: as long as take_turn() returns a request, the caller places it and calls erase(), or calls
  /// put_back().
  bool wants_round(TimePoint now) const { return !fair_.empty() && (look_again_ || now >= next_turn_); }
  void begin_round(const Board& board, TimePoint now);
  std::optional<RequestId> take_turn(const Board& board, TimePoint now);
  void put_back(const RequestId& id, const Board& board, TimePoint now);
  /// The result of a turn, by the place that was found. A waiting request may find a better moment or node later. A
  /// refused request cannot.
  enum class Turn : uint8_t { go, wait, wait_for_nodes, refuse };
  Turn turn_of(const RequestId& id, const Placement& placement);
  void end_round(const Board& board, TimePoint now);
  /// A time in the past when a change may give a request its turn now.
  TimePoint next_wakeup() const { return fair_.empty() ? kNever : look_again_ ? TimePoint{} : next_turn_; }

  // ---- waiting for a prefix ----
  /// The node whose computation of the prefix the request waits for; null = none.
  const NodeId* prefix_node(const RequestId& id, TimePoint now) const;
  /// Goes on with the wait, because the node still computes the prefix.
  void keep_waiting(const RequestId& id, const Board& board);
  /// The node whose computation of the prefix the request should wait for, instead of running as `chosen`; nullopt: run
  /// now. Computing a prefix twice delays other requests. Waiting delays this request by the wait minus the work that
  /// it saves. The wait is worth it while that delay is at most half of the saved work. A request waits once, and not
  /// much longer than predicted, so a lost or slow node delays nothing for long.
  std::optional<NodeId> wait_for_prefix(const RequestId& id, const Snapshot& snapshot, const Candidate& chosen,
                                        const Board& board, TimePoint now);

  void check() const;

 private:
  /// Whether a request in the queue came back from the group of those that wait for load, and by which walk.
  enum class Recalled : uint8_t { no, by_change, by_sweep };
  struct Held {
    HeldRequest request;
    bool has_nodes = true;
    // State of a wait for a prefix.
    TimePoint prefix_until = kNever;
    NodeId prefix_node;
    uint64_t prefix_seen = 0;  // Board::ended_prefills of that node at the last check
    bool prefix_tried = false;
    bool refused = false;  // admission refused the request at its last turn
    Recalled recalled = Recalled::no;
    // State of a request that is in a group instead of the queue.
    Wait wait;
    FairQueue::Key key;
  };
  using Members = std::map<FairQueue::Key, RequestId>;
  /// A walk through the requests of a tenant in a group, a few at a time.
  struct Walk {
    std::optional<FairQueue::Key> last;  // the last request that was recalled; nullopt: the walk begins at the first
    std::optional<FairQueue::Key> end;   // the last request of the walk; nullopt: the walk has no end
    uint32_t refused = 0;                // number of requests of the walk that admission refused again
  };
  /// The held requests that wait for one change, by tenant, in the tenant's order.
  struct Group {
    std::map<uint32_t, Members> members;
    uint64_t seen = 0;               // result of change_of() when every request had been recalled
    uint64_t asking = 0;             // result of change_of() when the recalls last began at the front
    std::map<uint32_t, Walk> front;  // begins again at each change
    std::map<uint32_t, Walk> sweep;  // for load: goes on after each pause
    bool sweeping = false;           // the sweep has more requests to recall before the next pause
  };

  FairQueue::Entry entry_of(const HeldRequest& request) const;
  Wait wait_of(const Held& held, const Board& board, TimePoint now) const;
  bool is_behind(const Held& held) const;
  uint32_t recall_max(const Wait& wait, const Walk& walk) const;
  static bool walk_on(const Members& members, Walk& walk, uint32_t most, std::vector<RequestId>& back);
  uint64_t change_of(const Wait& wait, const Board& board) const;
  bool is_open(const Wait& wait, const Group& group, const Board& board, TimePoint now) const;
  void set_aside(Held& held, FairQueue::Entry entry, Wait wait, const Board& board);
  void leave_group(Held& held);
  void recall(const RequestId& id, Recalled by);
  bool recall_some(const Wait& wait, Group& group, const Board& board);
  void recall_open(const Board& board, TimePoint now);
  void end_pause();

  LineOptions options_;
  FairQueue fair_;
  std::map<RequestId, Held> held_;
  std::optional<FairQueue::Entry> turn_;  // the request that take_turn() returned and that is not back yet
  std::map<Wait, Group> groups_;
  std::set<std::pair<TimePoint, RequestId>> prefix_ends_;  // ends of waits for a prefix
  size_t prioritised_ = 0;                                 // number of unfinished requests with a priority
  uint64_t rooms_ = 1;             // calls of room_changed(), and times when room came with the clock alone
  uint32_t tries_ = 0;             // unsuccessful tries in this round
  uint32_t asides_ = 0;            // requests that this round has set aside untried
  bool look_again_ = false;        // a change may give a request its turn
  bool more_ = false;              // more requests wait for recall than one round may recall
  TimePoint next_room_ = kNever;   // next time when the clock alone may make room
  TimePoint next_turn_ = kNever;   // next time when requests are recalled
  TimePoint pause_ends_ = kNever;  // next time when the next requests that wait for load are recalled
};

}  // namespace mc::sched

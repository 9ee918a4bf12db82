// Requests that wait at the scheduler for their turn (sched/fair.h has the order), and every tenant's quota. A held
// request waits here, not in a node's queue, so that the order can still change and its place is chosen by the cluster
// of that moment. A turn comes when a prefill node is about to be free.
//
// A held request that could not run at its turn moves from the queue to the group of requests that wait for the same
// change. When the change happens, a few requests of each tenant return to the queue at a time, in order, so that the
// cost of an event depends on what it changes and not on how many requests wait.
//
//   members  no node for it is here                     back when one comes (set_has_nodes)
//   pin      its prefill node is away or busy           back when that has room
//   prefix   a node computes its prefix                 back when that node ends a prefill, goes or takes too long
//   room     it was asked, and no idle node would do    back when any node gets room
//
// Pure: no clock, no messages. The order of calls and their times decide everything.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "base/clock.h"
#include "sched/board.h"
#include "sched/fair.h"

namespace mc::sched {

struct LineOptions {
  /// automatic: requests are held as long as there are tenants, or requests with a priority.
  enum class Hold : uint8_t { off, automatic, on };
  Hold hold = Hold::off;
  Duration lead = 300ms;  // a node is about to be free when its queue is at most so long
  FairOptions fair;
};

/// A request that waits.
struct HeldRequest {
  RequestId id;
  uint32_t tenant = 0;
  int priority = 0;
  double tokens = 0;  // of the prompt
  double work_s = 0;  // of prefill, predicted
  TimePoint arrived{}, deadline = kNever;
  TimePoint expires = kNever;  // from then on it could not keep its TTFT promise
  NodeId pin;                  // the prefill node it insists on; "" = any
};

/// What must change before a held request can run; `node` is its pin, or computes its prefix.
struct Wait {
  enum class For : uint8_t { nothing, members, pin, prefix, room } why = For::nothing;
  NodeId node;
  auto operator<=>(const Wait&) const = default;
};

class Line {
 public:
  explicit Line(const LineOptions& options = {}) : options_(options), fair_(options.fair) {}

  // ---- quotas ----
  FairQueue& tenants() { return fair_; }
  const FairQueue& tenants() const { return fair_; }
  /// An admitted request ends by one leave(). nullopt: it is admitted.
  std::optional<FairQueue::Refusal> admit(uint32_t tenant, int priority, double tokens, TimePoint now);
  /// `refund_tokens`: of a request that was rejected before any work, returned to its tenant's quota.
  void leave(uint32_t tenant, int priority, std::optional<double> refund_tokens, TimePoint now);

  // ---- waiting ----
  /// Whether a request that comes now is held; `priority`: as if one with that priority were here already.
  bool holds(int priority = 0) const;
  /// Predicted seconds until its turn: the work that goes before it, spread over the nodes, after the shortest queue.
  double ahead_s(const HeldRequest& request, const Board::Queues& queues, TimePoint now) const;
  /// The TTFT of a new request when it is predicted to miss its bound; nullopt: it may wait.
  std::optional<double> predicted_miss_s(const HeldRequest& request, double ttft_slo_s, const Board::Queues& queues,
                                         TimePoint now) const;
  void push(HeldRequest request);
  bool contains(const RequestId& id) const { return held_.contains(id); }
  size_t size() const { return fair_.size(); }
  /// Times that a held request was asked whether it can run now. For tests.
  uint64_t asked() const { return fair_.pops(); }
  /// Removes a request that was placed or ended, wherever it waits.
  void erase(const RequestId& id);

  // ---- turns ----
  /// A node has more room, or other nodes are here: requests that found no place may find one.
  void room_changed();
  /// Whether nodes are here that the request may go to, busy or not. False: it waits for members.
  void set_has_nodes(const RequestId& id, bool has_nodes);
  /// A round of turns: while take_turn() gives a request, place it and erase() it, or put_back() what cannot run now.
  bool wants_round(TimePoint now) const { return !fair_.empty() && (look_again_ || now >= next_turn_); }
  void begin_round(const Board& board, TimePoint now);
  std::optional<RequestId> take_turn(const Board& board, TimePoint now);
  void put_back(const RequestId& id, const Board& board, TimePoint now);
  /// What becomes of the request that has its turn, by the place that was found. A request that waits may find a better
  /// moment or node; one that is refused cannot.
  enum class Turn : uint8_t { go, wait, wait_for_nodes, refuse };
  Turn turn_of(const RequestId& id, const Placement& placement) const;
  void end_round(const Board& board, TimePoint now);
  TimePoint next_wakeup() const { return fair_.empty() ? kNever : next_turn_; }

  // ---- waiting for a prefix ----
  /// The node whose work on its prefix the request waits for; null = none.
  const NodeId* prefix_node(const RequestId& id, TimePoint now) const;
  /// That node still computes it.
  void keep_waiting(const RequestId& id, const Board& board);
  /// The node that the request waits for to compute its prefix, instead of running as `chosen`; nullopt: it runs now.
  /// Computing a prefix twice costs other requests; waiting makes this request late by the wait less the work it saves.
  /// The wait is worth it while the delay is at most half of the work saved. A request waits once and not much longer
  /// than predicted, so that a node that dies or is slow delays nothing for long.
  std::optional<NodeId> wait_for_prefix(const RequestId& id, const Snapshot& snapshot, const Candidate& chosen,
                                        const Board& board, TimePoint now);

  void check() const;

 private:
  struct Held {
    HeldRequest request;
    bool has_nodes = true;
    // Waiting for a prefix.
    TimePoint prefix_until = kNever;
    NodeId prefix_node;
    uint64_t prefix_seen = 0;  // Board::ended_prefills of that node when it was looked at
    bool prefix_tried = false;
    // Out of the queue, in a group.
    Wait wait;
    FairQueue::Key key;
  };
  /// Held requests that wait for one change, by tenant in its order.
  struct Group {
    std::map<uint32_t, std::map<FairQueue::Key, RequestId>> members;
    uint64_t seen = 0;                         // what change_of() was when all had been asked
    uint64_t asking = 0;                       // what it was when they were last asked from the front
    std::map<uint32_t, FairQueue::Key> asked;  // up to which, since then
  };

  FairQueue::Entry entry_of(const HeldRequest& request) const;
  Wait wait_of(const Held& held, const Board& board, TimePoint now) const;
  uint64_t change_of(const Wait& wait, const Board& board) const;
  bool is_open(const Wait& wait, const Group& group, const Board& board, TimePoint now) const;
  void set_aside(Held& held, FairQueue::Entry entry, Wait wait, const Board& board);
  void leave_group(Held& held);
  void recall(const RequestId& id);
  bool recall_some(const Wait& wait, Group& group, const Board& board);
  void recall_open(const Board& board, TimePoint now);

  LineOptions options_;
  FairQueue fair_;
  std::map<RequestId, Held> held_;
  std::optional<FairQueue::Entry> turn_;  // of the request that take_turn() gave and that is not back yet
  std::map<Wait, Group> groups_;
  std::set<std::pair<TimePoint, RequestId>> prefix_ends_;  // of those that wait for a prefix
  size_t prioritised_ = 0;                                 // unfinished requests with a priority
  uint64_t rooms_ = 1;            // calls of room_changed(), and times that the clock alone made room
  uint32_t tries_ = 0;            // of this round
  bool look_again_ = false;       // something changed that may give one its turn
  bool more_ = false;             // more of them wait to be asked than one round may
  TimePoint next_room_ = kNever;  // when time alone may make room
  TimePoint next_turn_ = kNever;  // when they are asked again
};

}  // namespace mc::sched

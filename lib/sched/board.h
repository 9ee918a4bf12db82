// The books of a cluster: the unfinished requests of each node, the progress of each prefill queue, the cost of each
// node's work as its reports show it, and the Snapshot of these that policies decide by. The snapshot follows every
// change of the books, so a decision adds only the blocks that nodes hold of its prompt and the time.
//
//   set_members   the nodes of the cluster and the phases they serve; nodes that stay keep their books
//   place         a request goes to a prefill and a decode node: one Booking, which its owner gives back part by part
//   look          the cluster for one request, restricted to the nodes that may take it
//
// Pure: no clock, no messages. Nodes are named by slots, small numbers that the caller gives.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kv/index.h"
#include "sched/breaker.h"
#include "sched/policy.h"
#include "sched/predict.h"

namespace mc::sched {

/// A node of the cluster. A slot belongs to one node from the first call of set_members() with it to the first call
/// without it.
struct BoardMember {
  uint32_t slot = 0;
  NodeId name;
  bool prefill = false, decode = false;  // the phases it serves now; a cache node serves none
  bool readable = true;                  // others may fetch its blocks
  bool draining = false;
  std::string model;
  uint64_t capacity_tokens = 0;  // of a decode node
  TimePoint since{};             // it joined
  Cost announced;
};

/// The part of a request in the books. Its owner keeps it and passes it to the board, which alone changes it.
struct Booking {
  int prefill = -1, decode = -1;  // slots
  int source = -1;                // slot of the node that blocks are fetched from while the request is queued
  double prefill_s = 0;           // predicted
  uint64_t tokens = 0;            // context
  bool placed = false;            // this and what follows are the board's
  bool queued = false;            // no first token yet
  bool arrived = false;           // its KV counts as being on the decode node
};

class Board {
 public:
  /// The snapshot has the ages of nodes when slow_start_s (Options) is above 0.
  explicit Board(double slow_start_s = 0) : slow_start_s_(slow_start_s) {}

  // ---- who is here ----
  /// -1 = no node of that name is here.
  int find(const NodeId& name) const;
  /// Members in the order in which the snapshot shows them.
  void set_members(std::span<const BoardMember> members, uint32_t block_tokens, uint64_t block_bytes);
  /// Place in Snapshot::prefill or Snapshot::decode; -1 = it serves no such phase.
  int prefill_at(int slot) const { return slot < 0 ? -1 : at(slot).prefill; }
  int decode_at(int slot) const { return slot < 0 ? -1 : at(slot).decode; }
  uint32_t prefill_slot(size_t view) const { return prefills_[view].slot; }
  uint32_t holder_slot(size_t holder) const { return holders_[holder]; }

  // ---- books ----
  /// `booking` names the nodes, the predicted seconds of prefill and the tokens of the context.
  void place(Booking& booking, TimePoint now);
  /// The prefill node has ended its part, or is gone: the request leaves its queue and the link of its source.
  void end_prefill(Booking& booking, TimePoint now);
  void arrive(Booking& booking);
  void add_tokens(Booking& booking, uint64_t tokens);
  /// The rows of a decode node made so many tokens. The caller counts the part of each row and passes it to end().
  void grow(int slot, uint64_t tokens);
  /// The request leaves both nodes. `grown` are its tokens that grow() counted.
  void end(Booking& booking, TimePoint now, uint64_t grown = 0);
  /// The node that the request fetches from is gone.
  void forget_source(Booking& booking) { booking.source = -1; }
  /// A copy of blocks leaves the node.
  void begin_transfer(int slot);
  void end_transfer(int slot);

  // ---- what nodes report ----
  const Predictor& predictor(int slot) const { return at(slot).predictor; }
  /// The node's cost as it announced and reported it.
  const Cost& cost(int slot) const { return at(slot).predictor.cost(); }
  void prefilled(int slot, double tokens, double reused, double seconds);
  void stepped(int slot, double rows, double kv_tokens, double seconds);
  void read(int slot, double bytes, double seconds);
  void answered(uint32_t tokens, double seconds);

  // ---- looking ----
  /// A request that needs a place.
  struct Ask {
    uint32_t tokens = 0, answer_tokens = 0;
    const std::string* model = nullptr;                  // "" = any
    const NodeId *prefill = nullptr, *decode = nullptr;  // pinned to; "" = any
    int avoid = -1;                                      // slot of a node that failed, not used while there is another
    std::span<const kv::NodeMatch> matches;              // blocks of the prompt, by slot
    const Breakers* breakers = nullptr;
    std::span<const Part> failed_on;    // pairs that failed this request
    std::optional<double> queue_max_s;  // prefill nodes with a longer queue are left alone
  };
  /// The cluster for one request; valid until the next look.
  Snapshot& look(const Ask& ask, TimePoint now);
  /// Whether an accepting prefill node's queue is at most so long.
  bool any_idle(Duration queue_max, TimePoint now) const;
  double queue_s(int slot, TimePoint now) const;
  /// When the prefill queue is predicted to be done; TimePoint::min() = it is empty.
  TimePoint busy_until(int slot) const { return at(slot).busy_until; }
  bool is_draining(int slot) const { return at(slot).draining; }
  /// Requests that ended their prefill on the node.
  uint64_t ended_prefills(int slot) const { return at(slot).ended_prefills; }
  uint32_t requests(int slot) const { return at(slot).unfinished + at(slot).rows; }
  /// Accepting prefill nodes of a model, and the shortest queue among them.
  struct Queues {
    uint32_t nodes = 0;
    double least_s = 1e9;
  };
  Queues queues(const std::string& model, TimePoint now) const;
  /// The first moment after `now` at which a queue is at most `queue_max` long; kNever = none gets shorter.
  TimePoint next_idle(Duration queue_max, TimePoint now) const;

  /// Asserts that the books are the sum of these bookings and of `transfers` (slots that copies leave from), and that
  /// the snapshot shows the books.
  void check(std::span<const Booking* const> bookings, std::span<const int> transfers) const;

 private:
  static constexpr TimePoint kIdle = TimePoint::min();
  /// A node's books and its places in the snapshot.
  struct Node {
    bool here = false, draining = false, readable = true;
    int holder = -1, prefill = -1, decode = -1;
    NodeId name;
    std::string model;
    TimePoint since{}, busy_until = kIdle;
    double queued_s = 0;  // of prefill, of the requests that are queued
    uint32_t unfinished = 0, rows = 0, arrived_rows = 0, transfers = 0;
    uint64_t kv_tokens = 0, arrived_tokens = 0, ended_prefills = 0;
    Predictor predictor;
  };
  struct PrefillPlace {
    uint32_t slot = 0;
    bool ready = false;  // not draining
    TimePoint since{}, busy_until = kIdle;
  };
  struct DecodePlace {
    uint32_t slot = 0;
    bool ready = false;
  };
  /// Observed / announced cost: the mean of the nodes that have served, applied to the nodes that have not.
  struct Corrections {
    double prefill = 1, step = 1;
  };

  Node& at(int slot);
  const Node& at(int slot) const { return const_cast<Board*>(this)->at(slot); }
  Corrections corrections() const;
  static bool has_served(const Node& node);
  static Cost cost_of(const Node& node, const Corrections& corrections);
  static uint32_t unfinished_of(const Node& node);
  void show(const Node& node);
  void refresh_costs();
  void look_at_blocks(std::span<const kv::NodeMatch> matches);
  void restrict_nodes(const Ask& ask);
  void set_bars(const Ask& ask, TimePoint now);

  double slow_start_s_;
  Snapshot snapshot_;
  Lengths lengths_;          // of answers
  std::vector<Node> nodes_;  // by slot
  std::map<NodeId, uint32_t, std::less<>> slots_;
  std::vector<uint32_t> holders_;
  std::vector<PrefillPlace> prefills_;
  std::vector<DecodePlace> decodes_;
  uint32_t ready_prefills_ = 0, ready_decodes_ = 0;
  Corrections corrections_;
  bool corrections_stale_ = false;
  std::vector<uint32_t> unserved_;      // nodes whose costs follow corrections_
  std::vector<kv::NodeMatch> matches_;  // that the views show
  bool decode_restricted_ = false;      // DecodeView::accepting is that of one request
};

}  // namespace mc::sched

// The books of a cluster: the unfinished requests of each node, the progress of each prefill queue, and the Snapshot
// for the policies, with the cost of each node's work (sched/node_costs.h). Every change of the books updates the
// snapshot, so a decision adds only the time and the blocks that nodes hold of its prompt.
//
// The cost of reads between two nodes is learnt apart from the cost of each node's work (sched/transfer_costs.h).
//
//   set_members   sets the nodes of the cluster and their phases; a node that stays keeps its books
//   place         books a request at a prefill and a decode node: one Booking, which its owner gives back in parts
//   look          gives the cluster for one request, restricted to the nodes that may take it
//
// The board reads no clock and no messages. Nodes are named by slots, small numbers that the caller assigns.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kv/index.h"
#include "sched/breaker.h"
#include "sched/node_costs.h"
#include "sched/policy.h"
#include "sched/transfer_costs.h"

namespace mc::sched {

/// A node of the cluster. A slot belongs to one node from the first call of set_members() with it to the first call
/// without it.
struct BoardMember {
  uint32_t slot = 0;
  NodeId name;
  bool prefill = false, decode = false;  // phases that the node serves now; a cache node serves none
  bool readable = true;                  // others may fetch its blocks
  bool draining = false;
  std::string model;
  uint64_t capacity_tokens = 0;  // decode nodes only
  uint32_t inline_tokens = 0;    // of a prompt that a decode node computes itself; 0 = it computes no prompts
  TimePoint since{};             // time when the node joined
  Cost announced;
};

/// A request's entry in the books. Its owner stores it and passes it to the board. Only the board changes it.
struct Booking {
  int prefill = -1, decode = -1;  // slots; one and the same for a prompt that its decode node computes
  std::vector<int> sources;       // slots of the nodes from which blocks are fetched while the request is queued
  double prefill_s = 0;           // predicted seconds of prefill
  uint64_t tokens = 0;            // tokens of the context
  bool placed = false;            // the board sets this field and the following ones
  bool queued = false;            // the first token has not arrived
  TimePoint ends{};               // predicted end of prefill, when the request was placed
  bool arrived = false;           // the KV counts as present on the decode node
};

class Board {
 public:
  /// The snapshot contains the ages of nodes when slow_start_s (Options) is above 0.
  explicit Board(double slow_start_s = 0) : slow_start_s_(slow_start_s) {}

  // ---- members ----
  /// The slot of the node; -1 = no member has that name.
  int find(const NodeId& name) const;
  /// Sets the members in the order of the snapshot.
  void set_members(std::span<const BoardMember> members, uint32_t block_tokens, uint64_t block_bytes);
  /// Index in Snapshot::prefill or Snapshot::decode; -1 = the node does not serve that phase.
  int prefill_at(int slot) const { return slot < 0 ? -1 : at(slot).prefill; }
  int decode_at(int slot) const { return slot < 0 ? -1 : at(slot).decode; }
  uint32_t prefill_slot(size_t view) const { return prefills_[view].slot; }
  uint32_t decode_slot(size_t view) const { return decodes_[view].slot; }
  uint32_t holder_slot(size_t holder) const { return holders_[holder]; }

  // ---- books ----
  /// `booking` has the nodes, the predicted seconds of prefill, and the tokens of the context.
  void place(Booking& booking, TimePoint now);
  /// The request leaves the queue and the link of its source. `finished`: its prefill is over. Otherwise the request
  /// was cancelled or has failed, and the prefill that runs on the node may be another one.
  void end_prefill(Booking& booking, TimePoint now, bool finished = true);
  void arrive(Booking& booking);
  void add_tokens(Booking& booking, uint64_t tokens);
  /// Counts `tokens` new tokens on a decode node. The caller adds up the part of each row for end().
  void grow(int slot, uint64_t tokens);
  /// The request leaves both nodes. `grown` is the number of its tokens that grow() has counted.
  void end(Booking& booking, TimePoint now, uint64_t grown = 0);
  /// A node that requests fetch from is gone.
  static void forget_source(Booking& booking, int slot) { std::erase(booking.sources, slot); }
  /// A copy of blocks starts to leave the node.
  void begin_transfer(int slot);
  void end_transfer(int slot);

  // ---- what nodes report ----
  /// The node's cost, as announced and corrected by its reports.
  const Predictor& predictor(int slot) const { return costs_.predictor(slot); }
  void prefilled(int slot, double tokens, double reused, double seconds);
  void stepped(int slot, double rows, double kv_tokens, double seconds);
  /// A read from one node into another has ended. Other transfers that leave the source are counted now.
  void read(int source, int reader, double bytes, double seconds, TimePoint now);
  const TransferCosts& transfers() const { return transfers_; }
  /// Seconds of moving one block up a tier of a node.
  struct BlockSeconds {
    double disk = 0;    // from its disk into memory; 0 = the node has no disk, or nothing on it
    double device = 0;  // from the host's memory into its device's; 0 = it computes without a copy
  };
  void loads(int slot, BlockSeconds block);
  void answered(uint32_t tokens, double seconds);

  // ---- looking ----
  /// A request that is to be placed.
  struct Ask {
    uint32_t tokens = 0, answer_tokens = 0;
    const std::string* model = nullptr;                  // "" = any
    const NodeId *prefill = nullptr, *decode = nullptr;  // nodes that the request is pinned to; "" = any
    // Slot of a node that failed; it is used only when no other node is left.
    int avoid = -1;
    std::span<const kv::NodeMatch> matches;  // blocks of the prompt that each slot holds
    std::span<const kv::NodeRun> runs;       // runs of blocks behind the longest match
    const Breakers* breakers = nullptr;
    std::span<const Part> failed_on;    // pairs that failed this request
    std::optional<double> queue_max_s;  // prefill nodes with a longer queue are excluded
  };
  /// The cluster for one request; valid until the next call of look().
  Snapshot& look(const Ask& ask, TimePoint now);
  /// Whether the queue of some accepting prefill node is at most so long.
  bool any_idle(Duration queue_max, TimePoint now) const;
  double queue_s(int slot, TimePoint now) const;
  /// Predicted end of the prefill queue; TimePoint::min() = the queue is empty.
  TimePoint busy_until(int slot) const { return at(slot).busy_until; }
  bool is_draining(int slot) const { return at(slot).draining; }
  /// Number of requests that have ended their prefill on the node.
  uint64_t ended_prefills(int slot) const { return at(slot).ended_prefills; }
  uint32_t requests(int slot) const {
    const Node& node = at(slot);
    return node.rows + (node.prefill >= 0 ? node.unfinished : 0);  // what a decode node computes is a row of it too
  }
  /// The accepting prefill nodes of a model, and the shortest queue of them.
  struct Queues {
    uint32_t nodes = 0;
    double least_s = 1e9;
  };
  Queues queues(const std::string& model, TimePoint now) const;
  /// The first time after `now` at which some queue is at most `queue_max` long; kNever = no queue gets shorter.
  TimePoint next_idle(Duration queue_max, TimePoint now) const;

  /// Asserts that the books are the sum of these bookings and of `transfers` (slots that copies leave from), and that
  /// the snapshot agrees with the books.
  void check(std::span<const Booking* const> bookings, std::span<const int> transfers) const;

 private:
  static constexpr TimePoint kIdle = TimePoint::min();
  /// The books of a node, and its indexes in the snapshot.
  struct Node {
    bool here = false, draining = false, readable = true;
    int holder = -1, prefill = -1, decode = -1;
    NodeId name;
    std::string model;
    TimePoint since{}, busy_until = kIdle;
    BlockSeconds block_s;
    double read_bytes_per_s = 0;  // learnt rate of reads from other nodes that the node has not read from; 0 = none
    double queued_s = 0;          // seconds of prefill of the queued requests
    uint32_t unfinished = 0, rows = 0, arrived_rows = 0, transfers = 0;
    uint64_t kv_tokens = 0, arrived_tokens = 0, ended_prefills = 0;
    /// Requests that keep a prefill node busy. A node of both phases also works on the rows that it decodes.
    uint32_t prefill_load() const { return unfinished + (prefill >= 0 && decode >= 0 ? arrived_rows : 0); }
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

  /// A decode node that computes short prompts itself.
  struct InlinePlace {
    uint32_t slot = 0, tokens_max = 0;
  };

  Node& at(int slot);
  const Node& at(int slot) const { return const_cast<Board*>(this)->at(slot); }
  void show(const Node& node);
  void show_costs(int slot);
  void look_at_blocks(const Ask& ask);
  void restrict_nodes(const Ask& ask);
  void set_bars(const Ask& ask, TimePoint now);

  double slow_start_s_;
  Snapshot snapshot_;
  Lengths lengths_;          // lengths of answers
  std::vector<Node> nodes_;  // index: slot
  std::map<NodeId, uint32_t, std::less<>> slots_;
  std::vector<uint32_t> holders_;
  std::vector<PrefillPlace> prefills_;
  std::vector<DecodePlace> decodes_;
  std::vector<InlinePlace> inlines_;
  uint32_t ready_prefills_ = 0, ready_decodes_ = 0;
  NodeCosts costs_;
  TransferCosts transfers_;
  TimePoint transfers_at_{};            // time of the transfer costs that the views contain
  std::vector<kv::NodeMatch> matches_;  // matches that the views contain
  bool decode_restricted_ = false;      // DecodeView::accepting is restricted to one request
};

}  // namespace mc::sched

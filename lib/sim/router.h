// The scheduler of a simulated cluster: the parts of the live conductor that decide, with the conductor's own rules.
//
//   ClusterNodes   the nodes that are up                                           sim/cluster_nodes.h
//   Board          the books: load and cost of each node, as policies see them     sched/board.h
//   Line           requests that wait for their turn, and quotas                   sched/line.h
//   CopyOrders     copies of hot prefixes under way                                sched/copies.h
//   plan_fetch     the nodes that a prefix is fetched from                         sched/fetch_plan.h
//   Waits          requests that wait for their turn or for a node, and how long   sim/waits.h
//
// The router has the information of a conductor: predictions at placing, first tokens, tokens and ends, of which the
// engine (sim/cluster_engine.h) tells it. The progress of prefills and transfers is unknown to it.
//
// A request enters by submit(), and again by retry() after its node failed. It is then placed or rejected, or it waits.
// Waiting requests are placed or rejected by end_due() and serve_waiting(), which are to be called before and after
// each event. A request that was placed ends by leave(), and then by close() or retry().
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/rng.h"
#include "sched/sched.h"
#include "sim/cluster.h"
#include "sim/cluster_nodes.h"
#include "sim/tiers.h"
#include "sim/waits.h"

namespace mc::sim {

/// The nodes of a request, and the blocks that it takes from caches. Nodes have the engine's numbers.
struct Route {
  uint32_t node = 0, decode = 0;
  uint32_t local_blocks = 0, fetch_blocks = 0;
  std::vector<sched::FetchRun> parts;   // runs of the fetched blocks, and the node that sends each
  std::vector<sched::FetchRun> spares;  // runs of nodes that can replace the node of a part, best first
  bool source_computes = false;         // the only one of these nodes still computes some of them
  double prefill_s = 0, ttft_s = 0;
  std::optional<sched::CopyOrders::Order> copy;  // to be made now; nodes are slots
};

/// The answer to a request that needs a place. Predicted times count from its arrival.
struct Answer {
  enum class What : uint8_t { placed, waits, rejected } what = What::waits;
  Fate fate = Fate::unfinished;  // of a rejected one
  double predicted_ttft_s = 0, predicted_tbt_s = 0;
  Route route;
};

class Router {
 public:
  using FillInflight = std::function<void(std::vector<sched::Inflight>&)>;
  using Answered = std::function<void(uint32_t request, const Answer&)>;

  /// All arguments outlive the router. `nodes` compute prompts and hold caches; `inflight` appends all requests that
  /// are placed, with the decode nodes' numbers.
  Router(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks, const ClusterOptions& options,
         TieredCaches& caches, uint32_t nodes, FillInflight inflight);

  // ---- members ----
  /// Begins or ends an outage of a node. Outages of one node may overlap (ClusterNodes::set_up). No placed request may
  /// be on a node that leaves.
  void set_prefill_up(uint32_t node, bool up, double now_s);
  void set_decode_up(uint32_t decode, bool up, double now_s);
  bool is_up(uint32_t node) const { return nodes_.is_up(node); }

  // ---- requests ----
  Answer submit(uint32_t r, double now_s);
  /// `tokens` are its prompt and its answer so far, of which the client has `made`. The request waits when no node of a
  /// role is up.
  Answer retry(uint32_t r, uint64_t tokens, uint64_t made, double now_s);
  /// Rejects waiting requests that can no longer be served in time.
  void end_due(double now_s, const Answered& answered);
  bool wants_round(double now_s) const { return waits_.has_recalled() || line_.wants_round(time_of(now_s)); }
  /// Places parked requests after a change of members, and gives turns to held ones. Requires that grow() was called
  /// for all tokens up to now.
  void serve_waiting(double now_s, const Answered& answered);
  /// The next time at which end_due() or serve_waiting() have work without an event; infinity = never.
  double next_s() const;
  /// Rejects all held requests at the end of a run.
  void end_held(double now_s, const Answered& answered);

  // ---- what happens to placed requests ----
  /// `seconds` of prefill have computed the tokens that were not reused. The board learns from them as a conductor
  /// does: chunks and fixed costs make a prompt dearer than its announced cost. Steps take what is announced. nullopt:
  /// the prefill may have waited for layers of its prefix, so its time says nothing.
  void first_token(uint32_t r, uint64_t reused, std::optional<double> seconds, double now_s);
  /// A node has read a part of a prefix from another node.
  void fetched(uint32_t node, const sched::FetchRun& part, double seconds, double now_s) {
    const uint64_t bytes = (part.end - part.first) * kTraceBlockTokens * options_.profile->kv_bytes_per_token;
    if (is_up(static_cast<uint32_t>(part.holder)))
      board_.read(part.holder, static_cast<int>(node), static_cast<double>(bytes), seconds, time_of(now_s));
  }
  /// The rows of a decode node made so many tokens. leave() gets the part of each row.
  void grow(uint32_t decode, uint64_t tokens) { board_.grow(nodes_.slot_of_decode(decode), tokens); }
  /// The request is on no node any more.
  void leave(uint32_t r, uint64_t grown, double now_s);
  /// The request is over: its tenant may have another one.
  void close(uint32_t r, bool rejected, double now_s);
  /// An answer of this length has ended after so many seconds of decoding.
  void answered(uint32_t tokens, double seconds) { board_.answered(tokens, seconds); }
  /// The copy has arrived. False: it was given up before.
  bool end_copy(const sched::CopyOrders::Order& order, double now_s);

  // ---- tenants ----
  bool has_tenants() const { return line_.tenants().named_count() > 0; }
  /// The client of a request has so many tokens of its answer.
  void charge(uint32_t r, uint64_t made, double now_s);

  double queue_s(uint32_t node, double now_s) const;
  /// Requests that waited for their turn and were placed.
  uint64_t held_count() const { return held_count_; }
  const sched::CopyOrders::Stats& copies() const { return copies_.stats(); }

 private:
  struct Request {
    sched::Booking booking;
    uint32_t tenant = 0;
    bool admitted = false, dispatched = false;
    uint64_t tokens = 0, made = 0;  // prompt and answer so far; answer of earlier attempts
    uint64_t charged = 0;           // tokens of its answer
    double work_s = 0;              // of prefill, predicted when it was held
    TimePoint arrived{}, expires = kNever;
  };

  static TimePoint time_of(double seconds) { return TimePoint{} + from_seconds(seconds); }
  std::span<const uint32_t> blocks_of(uint32_t r) const;
  void show_members(TimePoint now);
  void bound_held(TimePoint now);
  sched::Snapshot& look(uint32_t r, TimePoint now, bool idle_only);
  void add_inflight(sched::Snapshot& snapshot, TimePoint now);
  sched::Options options_for(uint32_t r) const;
  Answer hold(uint32_t r, TimePoint now);
  sched::HeldRequest held_request(uint32_t r) const;
  Answer place(uint32_t r, TimePoint now, bool idle_only);
  bool waits_for_prefix(uint32_t r, const sched::Snapshot& snapshot, const sched::Candidate& chosen, TimePoint now);
  Route dispatch(uint32_t r, const sched::Snapshot& snapshot, TimePoint now);
  Answer reject(uint32_t r, Fate fate, TimePoint now);
  void end_wait(uint32_t r);

  const std::vector<TraceRequest>& trace_;
  const TraceBlocks& blocks_;
  const ClusterOptions& options_;
  TieredCaches& caches_;
  ClusterNodes nodes_;
  FillInflight fill_inflight_;
  sched::Board board_;
  sched::Line line_;
  sched::CopyOrders copies_;
  Rng rng_;
  std::vector<Request> requests_;
  Waits waits_;
  sched::Placement placement_;            // of the last decision: its memory is used again
  CacheMatch found_;                      // scratch: blocks of a prompt on each node
  std::vector<kv::NodeMatch> matches_;    // scratch
  std::vector<kv::NodeRun> runs_;         // scratch: behind the longest match
  std::vector<BlockHash> hashes_;         // scratch
  std::optional<TimePoint> inflight_at_;  // when the snapshot's was made
  uint64_t held_count_ = 0;
};

}  // namespace mc::sim

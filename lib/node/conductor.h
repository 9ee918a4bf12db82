// The conductor places every request on a (prefill, decode) pair, follows the request to its end, and places it again
// when a node fails (Mooncake 5). The conductor consists of parts that own their state:
//
//   Members      the registered nodes and the blocks that each holds               node/members.h
//   Board        the load and cost of each node, as policies see them              sched/board.h
//   Line         requests in the waiting queue, and quotas                         sched/line.h
//   CopyOrders   copies of hot prefixes that are under way                         sched/copies.h
//   Flights      requests, their attempts and tokens                               node/flights.h
//
// The Conductor class decides: where a request goes, and what a change of members means for requests under way.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "node/evicted_blocks.h"
#include "node/flights.h"
#include "node/members.h"
#include "node/node.h"
#include "node/tenants.h"
#include "sched/sched.h"

namespace mc::node {

struct ConductorOptions {
  InstanceId instance;
  std::string model;          // name of the served model, for messages
  std::string config_digest;  // kv::Namespace::config that a worker must have; "" = that of the first worker
  const sched::Policy* policy = nullptr;
  sched::Options sched;  // fetch rule and the SLO of every request
  Duration heartbeat = 200ms;
  Duration dead_after = 3s;
  Duration deadline_max = std::chrono::hours(1);
  Duration park_max = 10s;  // longest wait of a request for a node to come back
  uint32_t attempts_max = 4;
  uint32_t request_max = 8192;  // limit of unfinished requests; more are rejected as queue_full
  uint64_t seed = 0;
  /// A held request stays at the conductor until a prefill node is about to be free (its queue is at most `hold_lead`).
  /// A request may also be held while a node computes its prefix, if that ends sooner than a second computation of the
  /// prefix (sched/line.h).
  using Hold = sched::LineOptions::Hold;
  Hold hold = Hold::off;
  Duration hold_lead = 300ms;
  sched::FairOptions fair;
  std::vector<sched::Tenant> tenants;
  sched::ReplicateOptions replicate;  // copies of hot prefixes, made before the next request needs one
  sched::PrefixFrom prefix_from = sched::PrefixFrom::prefill;  // where decode nodes read reused blocks
  sched::BreakerOptions breaker;  // when a failing pair of nodes is set aside, and for how long
  KeysFor keys;                   // nodes with other keys are refused; null: keys are not compared
};

class Conductor final : public Machine {
 public:
  explicit Conductor(ConductorOptions options);
  Conductor(const Conductor&) = delete;
  Conductor& operator=(const Conductor&) = delete;
  void handle(const Event& event, TimePoint now, Actions& out) override;
  TimePoint next_wakeup() const override;
  void check() const override;
  bool idle() const override { return flights_.size() == 0; }

  // ---- looking (ps, explain, /cluster) ----
  struct IndexedBlocks {
    uint64_t count = 0;
    bool is_full = false;  // the index takes no more blocks of the node
    uint64_t all = 0;      // blocks of all nodes
  };
  struct NodeStatus {
    std::string name;
    InstanceId instance;
    wire::Role role = wire::Role::prefill;
    NodeState state = NodeState::ready;
    std::string lacks;  // name of the stage that a partial pipeline waits for
    std::string model, device, http, control_uri;
    std::vector<wire::NameValue> labels;
    wire::Load load;
    uint64_t page_bytes = 0, page_count = 0;
    uint32_t requests = 0;
    double queue_s = 0;
    Duration up{};
    IndexedBlocks indexed;
    uint64_t heartbeats = 0;
    double prefill_error = 0, step_error = 0;  // relative prediction errors
  };
  std::vector<NodeStatus> nodes(TimePoint now) const;
  const Members& members() const { return members_; }
  const sched::Line& line() const { return line_; }
  const sched::CopyOrders& copies() const { return copies_; }
  const Flights& flights() const { return flights_; }
  /// Pairs and nodes that have failed requests and have served none since.
  const sched::Breakers& breakers() const { return breakers_; }
  const Tenants& tenants() const { return tenants_; }
  Tenants& tenants() { return tenants_; }

  struct Explanation {
    sched::Snapshot snapshot;
    sched::Placement placement;
    std::vector<std::vector<FetchSource>> sources;  // of each candidate
    std::vector<FetchSource> decode_sources;        // of the decode node, if the chosen candidate computes
    std::vector<BlockHash> hashes;
    uint32_t reusable_blocks = 0;
    Reason unready = Reason::none;   // set when no node of a role is registered
    std::optional<Refusal> refusal;  // why the request would be rejected before placement (pin, quota)
    bool holds = false;              // the request would be held, and have its turn in `before_s`
    double before_s = 0;
    size_t held = 0;  // requests that are held now
    // Load on the prefix of the request, and the number of copies which that load needs.
    sched::Popularity::Demand demand;
    std::string copy_from, copy_to;  // the copy that would be ordered; "" = none
  };
  /// The decision that `submit` would get now. No request is placed.
  Explanation explain(const Submit& submit, TimePoint now);
  /// Code::not_found when no node has the name. Code::invalid for a stage, because a pipeline drains as a whole, and
  /// for the end of a drain that the node's own operator began.
  Result<void> drain(const std::string& name, bool on, Actions& out);

 private:
  // ---- members ----
  void on_received(const Received& event, TimePoint now, Actions& out);
  void on_hello(const Received& event, const wire::Hello& hello, TimePoint now, Actions& out);
  /// Takes the name by value: the caller's reference may point into the node that is erased.
  void lose(std::string name, std::string why, TimePoint now, Actions& out);
  void members_changed();
  void bound_held(TimePoint now);

  // ---- placing ----
  void on_submit(const Submit& submit, TimePoint now, Actions& out);
  std::optional<Refusal> refusal_of(const Request& r, TimePoint now) const;
  bool name_blocks(Request& r) const;
  sched::Options options_for(const Request& r) const;
  /// A snapshot of the cluster for one request, valid until the next look().
  sched::Snapshot& look(const Request& r, TimePoint now, bool idle_only = false);
  void add_inflight(sched::Snapshot& snapshot, TimePoint now) const;
  void hold(Request& r, TimePoint now, Actions& out);
  sched::HeldRequest held_request(const Request& r) const;
  void serve_held(TimePoint now, Actions& out);
  /// False: the request stays held. Only with `idle_only`, which leaves prefill nodes with a queue alone.
  bool place(Request& r, TimePoint now, Actions& out, bool idle_only = false);
  bool waits_for_prefix(Request& r, const sched::Snapshot& snapshot, const sched::Candidate& chosen, TimePoint now);
  void dispatch(Request& r, const sched::Snapshot& snapshot, const sched::Placement& placement, TimePoint now,
                Actions& out);
  void order_copy(const Request& r, const sched::Snapshot& snapshot, const sched::Candidate& chosen, TimePoint now,
                  Actions& out);

  // ---- failures ----
  void on_failed(const Received& event, const wire::Failed& message, TimePoint now, Actions& out);
  void on_preempted(const Received& event, const wire::Preempted& preempted, TimePoint now, Actions& out);
  void on_copy_done(const Received& event, const wire::CopyDone& done, TimePoint now);
  void retry(Request& r, RequestStage stage, Refusal why, const NodeId& avoid, TimePoint now, Actions& out);
  void park(Request& r, TimePoint now);
  void place_parked(TimePoint now, Actions& out);
  void end_due(TimePoint now, Actions& out);
  void tell_breakers(Actions& out);

  ConductorOptions options_;
  Members members_;
  sched::Board board_;
  sched::Line line_;
  sched::CopyOrders copies_;
  sched::Breakers breakers_;
  Tenants tenants_;
  EvictedBlocks evicted_;
  Flights flights_;
  Rng rng_;
  sched::Placement placement_;          // result of the last decision; its memory is reused
  std::vector<uint32_t> best_;          // scratch
  std::vector<kv::NodeMatch> matches_;  // scratch
  std::vector<kv::NodeRun> runs_;       // scratch
  bool members_changed_ = false;        // some held requests may have lost or regained their nodes
};

}  // namespace mc::node

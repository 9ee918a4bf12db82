// The conductor: places every request on a (prefill, decode) pair, follows it to its end, and places it again when a
// node fails under it (Mooncake 5). It is made of parts that own their state:
//
//   Members      who is in the cluster and which blocks each node holds            node/members.h
//   Board        the books: load and cost of each node, as policies see them       sched/board.h
//   Line         requests that wait for their turn, and quotas                     sched/line.h
//   CopyOrders   copies of hot prefixes under way                                  sched/copies.h
//   Flights      requests, their attempts and tokens                               node/flights.h
//
// The class here decides between them: where a request goes, and how a change of members affects those under way.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "node/flights.h"
#include "node/members.h"
#include "node/node.h"
#include "node/tenants.h"
#include "sched/sched.h"

namespace mc::node {

struct ConductorOptions {
  InstanceId instance;
  std::string model;          // what is served, for messages
  std::string config_digest;  // kv::Namespace::config a worker must have; "" = whatever the first one has
  const sched::Policy* policy = nullptr;
  sched::Options sched;  // fetch rule and the promises (SLO) that apply to every request
  Duration heartbeat = 200ms;
  Duration dead_after = 1s;
  Duration deadline_max = std::chrono::hours(1);
  Duration park_max = 10s;  // how long a request may wait for a node to come back
  uint32_t attempts_max = 4;
  uint32_t request_max = 8192;  // unfinished ones; more are rejected as queue_full
  uint64_t seed = 0;
  /// Hold: a request waits here until a prefill node is about to be free (its queue is at most `hold_lead`), or while
  /// a node computes its prefix, if that ends sooner than computing the prefix again would (sched/line.h).
  using Hold = sched::LineOptions::Hold;
  Hold hold = Hold::off;
  Duration hold_lead = 300ms;
  sched::FairOptions fair;
  std::vector<sched::Tenant> tenants;
  sched::ReplicateOptions replicate;  // copies of hot prefixes ahead of demand
  sched::BreakerOptions breaker;      // when a pair of nodes that fails requests is set aside, and for how long
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
  struct NodeStatus {
    std::string name;
    InstanceId instance;
    wire::Role role = wire::Role::prefill;
    NodeState state = NodeState::ready;
    std::string lacks;  // what a partial one waits for
    std::string model, http, control_uri;
    std::vector<wire::NameValue> labels;
    wire::Load load;
    uint64_t page_bytes = 0, page_count = 0;
    uint32_t requests = 0;
    double queue_s = 0;
    Duration up{};
    uint64_t blocks = 0;
    uint64_t heartbeats = 0;
    double prefill_error = 0, step_error = 0;  // relative prediction errors
  };
  std::vector<NodeStatus> nodes(TimePoint now) const;
  const Members& members() const { return members_; }
  const sched::Line& line() const { return line_; }
  const sched::CopyOrders& copies() const { return copies_; }
  const Flights& flights() const { return flights_; }
  /// Pairs and nodes that have failed requests and not served one since.
  const sched::Breakers& breakers() const { return breakers_; }
  const Tenants& tenants() const { return tenants_; }
  Tenants& tenants() { return tenants_; }

  struct Explanation {
    sched::Snapshot snapshot;
    sched::Placement placement;
    std::vector<BlockHash> hashes;
    uint32_t reusable_blocks = 0;
    Reason unready = Reason::none;   // no node of a role is here
    std::optional<Refusal> refusal;  // it could not be submitted at all (pin, quota)
    bool holds = false;              // it would wait for its turn here, behind so much work
    double before_s = 0;
    size_t held = 0;                   // requests that wait here now
    sched::Popularity::Demand demand;  // how often its prefix is asked for, and the copies that asks for
    std::string copy_from, copy_to;    // that would be made; "" = none
  };
  /// The decision `submit` would get now, without taking it.
  Explanation explain(const Submit& submit, TimePoint now);
  /// Code::not_found when no node bears the name; invalid for a stage, whose pipeline drains as a whole, and when the
  /// drain of a node is to be taken back that was told to stop.
  Result<void> drain(const std::string& name, bool on, Actions& out);

 private:
  // ---- members ----
  void on_received(const Received& event, TimePoint now, Actions& out);
  void on_hello(const Received& event, const wire::Hello& hello, TimePoint now, Actions& out);
  /// By value: the caller's reference may point into the node that is erased.
  void lose(std::string name, std::string why, TimePoint now, Actions& out);
  void members_changed();
  void bound_held(TimePoint now);

  // ---- placing ----
  void on_submit(const Submit& submit, TimePoint now, Actions& out);
  std::optional<Refusal> refusal_of(const Request& r, TimePoint now) const;
  bool name_blocks(Request& r) const;
  sched::Options options_for(const Request& r) const;
  /// The cluster for one request; valid until the next look.
  sched::Snapshot& look(const Request& r, TimePoint now, bool idle_only = false);
  void add_inflight(sched::Snapshot& snapshot, TimePoint now) const;
  void hold(Request& r, TimePoint now, Actions& out);
  sched::HeldRequest held_request(const Request& r) const;
  void serve_held(TimePoint now, Actions& out);
  /// False: it stays held (only with `idle_only`: prefill nodes with a queue are left alone).
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
  Flights flights_;
  Rng rng_;
  sched::Placement placement_;          // of the last decision: its memory is used again
  std::vector<uint32_t> best_;          // scratch
  std::vector<kv::NodeMatch> matches_;  // scratch
  bool members_changed_ = false;        // some held requests may have no node left, or one again
};

}  // namespace mc::node

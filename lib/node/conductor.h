// The conductor: knows the nodes and which blocks each holds, places every request on a (prefill,
// decode) pair, follows it to its end, and places it again when a node fails under it (Mooncake 5).
//
//   node     Hello -> ready <-> draining -> lost (silent for dead_after, goodbye, or a new instance of the name)
//   request  Submit -> placed(p, d) -> first token -> decoding -> finished
//              |  '-> held (its turn has not come, conductor_hold.cc) -> placed | rejected in park_max or as late
//              |         |  failed, retryable: attempt + 1, prompt + tokens so far
//              |         '-> parked (no node of a role is left) -> placed | failed at the deadline
//              '-> rejected (no node, or a promise would be broken)
//
// The block index is soft state: the nodes are the truth. Their events are numbered; a gap, or a
// restart of the conductor, costs a snapshot and nothing else.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kv/index.h"
#include "kv/kv.h"
#include "node/failure.h"
#include "node/node.h"
#include "node/worker.h"
#include "sched/sched.h"

namespace mc::node {

/// Time for the bookkeeping of sched, which counts in seconds from the clock's origin.
inline double seconds_of(TimePoint at) {
  return to_seconds(at - TimePoint{});
}

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
  /// a node computes its prefix, if that ends sooner than computing the prefix again would. Who waits goes in the
  /// order of sched/fair.h. automatic: as long as there are tenants, or requests with a priority.
  enum class Hold : uint8_t { off, automatic, on };
  Hold hold = Hold::off;
  Duration hold_lead = 300ms;
  sched::FairOptions fair;
  std::vector<sched::Tenant> tenants;
  sched::ReplicateOptions replicate;  // copies of hot prefixes ahead of demand
  sched::BreakerOptions breaker;      // when a pair of nodes that fails requests is set aside, and for how long
};

/// A bound that is predicted to be broken.
struct Miss {
  sched::Bound bound = sched::Bound::none;
  double predicted_s = 0, allowed_s = 0;
  double kv_tokens = 0, capacity_tokens = 0;
  std::string text() const;
};

/// Why a request is rejected or failed, for its client.
struct Refusal {
  Reason reason = Reason::internal;
  std::string message;
  Miss miss = {};
  double retry_s = 0;  // when to come back; 0 = by the miss
};

class Conductor final : public Machine {
 public:
  explicit Conductor(ConductorOptions options);
  void handle(const Event& event, TimePoint now, Actions& out) override;
  TimePoint next_wakeup() const override;
  void check() const override;
  bool idle() const override { return requests_.empty(); }

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
  size_t request_count() const { return requests_.size(); }
  /// Why a request could not be served now: no_prefill, no_decode or none.
  Reason unready(const std::string& model) const;
  std::vector<std::string> models() const;
  /// Longest prompt + answer every node of the model holds; 0 = no such model.
  uint32_t context_tokens(const std::string& model) const;
  /// Changes whenever a node came or went.
  uint64_t memberships() const { return memberships_; }

  struct Explanation {
    sched::Snapshot snapshot;
    sched::Placement placement;
    std::vector<BlockHash> hashes;
    uint32_t reusable_blocks = 0;
    Reason unready = Reason::none;   // no node of a role is there
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

  /// Each request submitted is unfinished, or ended as one of finished, failed, rejected and cancelled.
  struct Stats {
    uint64_t submitted = 0, finished = 0, failed = 0, rejected = 0, cancelled = 0, retried = 0;
    uint64_t prompt_tokens = 0, cached_local = 0, cached_remote = 0, answer_tokens = 0;
    /// Rejected because a bound was predicted to be broken, by bound (Miss).
    std::map<sched::Bound, uint64_t> missed = {{sched::Bound::ttft, 0}, {sched::Bound::tbt, 0}, {sched::Bound::kv, 0}};
    uint64_t set_aside = 0;                                     // times that a pair of nodes, or a node, was set aside
    uint64_t held_turn = 0, held_prefix = 0;                    // requests that waited here, and what for
    uint64_t copies = 0, copied_blocks = 0, copies_failed = 0;  // of hot prefixes
  };
  const Stats& stats() const { return stats_; }
  size_t held_count() const { return fair_.size(); }
  /// Times that a held request was asked whether it can run now. For tests.
  uint64_t held_asked() const { return fair_.pops(); }
  size_t copying_count() const { return copying_.size(); }
  /// Bytes that copies may read now. For tests.
  double copy_budget_bytes(TimePoint now) const { return popularity_.budget_bytes(to_seconds(now - TimePoint{})); }

  /// Pairs and nodes that have failed requests and not served one since.
  const sched::Breakers& breakers() const { return breakers_; }

  /// Tenants by number; the first is whoever has no other.
  struct TenantStatus {
    std::string name;
    size_t waiting = 0;
    uint32_t unfinished = 0;
    double level = 0;                                  // of its bucket now
    uint64_t tokens = 0, submitted = 0, rejected = 0;  // tokens: of prompts that were placed and of answers
  };
  std::vector<TenantStatus> tenants(TimePoint now) const;
  /// Work at the door that is no request, paid in tokens of the tenant's quota; why it may not be done, and for how
  /// long.
  struct Unpaid {
    std::string why;
    double retry_s = 0;
  };
  std::optional<Unpaid> pay(const std::string& tenant, double tokens, TimePoint now);
  void set_tenants(std::span<const sched::Tenant> tenants);

  /// How far predictions were off, over recent requests that ran at their first attempt.
  struct PredictionErrors {
    sched::RelativeError ttft, tbt;            // of what admission decided by
    sched::RelativeError prefill, step, read;  // of all nodes' parts
  };
  const PredictionErrors& prediction_errors() const { return errors_; }

 private:
  struct Node {
    std::string name;
    InstanceId instance;
    kv::NodeOrdinal ordinal = 0;  // in the index
    wire::Hello hello;
    wire::Load load;
    TimePoint since{}, heard{};
    uint64_t heartbeats = 0;
    bool draining = false;     // wanted; the node confirms with its heartbeat
    bool drain_known = false;  // whether it drained when it came is known, or somebody has said what is wanted since
    sched::Cost announced;     // cost model it brought
    sched::Predictor predictor;
    std::map<RequestId, double> queued;  // prefill seconds of requests placed here, not yet at first token
    TimePoint busy_until{};
    uint32_t rows = 0, arrived_rows = 0;         // requests placed here; those past their first token
    uint64_t kv_tokens = 0, arrived_tokens = 0;  // their context
    uint32_t egress = 0;                         // fetches from here under way
    uint64_t left = 0;                           // requests that ended their prefill here
    uint32_t snapshot_parts = 0;                 // received of the snapshot being assembled
    uint64_t snapshot_seq = 0;
    std::vector<wire::BlockRef> snapshot;
    TimePoint sync_asked{};  // an unanswered IndexSync is repeated after a while
    bool sync_open = false;
  };

  /// Where a node stands in the board; -1 = it is no such node.
  struct Place {
    int holder = -1, prefill = -1, decode = -1;
    bool readable = true;  // others may fetch its blocks
  };
  /// The cluster as policies see it (conductor_board.cc). By node of its kind, unless it says otherwise.
  struct Board {
    sched::Snapshot snapshot;
    std::vector<Place> places;  // by ordinal of the index
    std::vector<TimePoint> busy_until, since;
    std::vector<char> ready_prefill, ready_decode;  // not draining
    uint32_t ready_prefills = 0, ready_decodes = 0;
    bool decode_restricted = false;              // DecodeView::accepting is that of one request
    std::vector<kv::NodeMatch> matches, before;  // of the last request and of the one before: what the views show
  };

  struct Usual {  // observed / announced, the mean of those nodes that have served
    double prefill_factor = 1, step_factor = 1;
  };

  /// What must change before a held request can run.
  struct Obstacle {
    enum class Kind : uint8_t { none, members, pin, prefix, room } kind = Kind::none;
    NodeId node;  // pin: the one it insists on; prefix: the one that computes it
    auto operator<=>(const Obstacle&) const = default;
  };
  /// Held requests with one obstacle, by tenant in its order.
  struct Aside {
    std::map<uint32_t, std::map<sched::FairQueue::Key, RequestId>> members;
    uint64_t seen = 0;                                // what change() was when all had been asked
    uint64_t asking = 0;                              // what it was when they were last asked from the front
    std::map<uint32_t, sched::FairQueue::Key> asked;  // up to whom, since then
  };

  struct Request {
    Submit submit;
    uint32_t attempt = 0;
    TimePoint arrived{}, deadline{};
    NamespaceId ns;
    std::string prefill_attention, decode_attention;
    std::vector<BlockHash> hashes;
    std::vector<uint32_t> answer;                                        // tokens given to the client
    std::map<uint32_t, std::pair<uint32_t, wire::TokenLogprobs>> early;  // out of order, by index
    std::vector<wire::PromptLogprob> prompt_logprobs;                    // of tokens 1, 2, ...; of this attempt
    uint32_t failures = 0;
    Finish finish = Finish::none;  // set when known; sent after the last token
    uint32_t finish_index = 0;
    NodeId prefill, decode;
    InstanceId prefill_instance, decode_instance;
    NodeId fetch_from;
    bool placed = false, first_token = false;
    TimePoint parked_until = kNever;
    NodeId avoid;                        // the node that failed last
    std::vector<sched::Part> failed_on;  // pairs that failed this request
    TimePoint placed_at{};               // this attempt
    bool handed_over = false;            // the decode node has given a token of this attempt
    double predicted_prefill_s = 0;
    TimePoint first_token_at{}, expected_at{};  // when prefill ended, and when it was expected to
    bool fetch_waited = false;                  // its source had to compute the blocks first: no measure of the network
    RequestSummary summary;
    // ---- waiting for its turn (conductor_hold.cc) ----
    uint32_t tenant = 0;
    bool admitted = false;            // counted at its tenant
    bool held = false;                // in fair_
    double work_s = 0;                // predicted when it came
    TimePoint expires = kNever;       // from then on it could not keep its TTFT promise
    TimePoint prefix_until = kNever;  // it waits for its prefix until then
    uint64_t prefix_left = 0;         // Node::left of who computes that, when it was looked at
    Obstacle aside;                   // what keeps it out of line
    sched::FairQueue::Key aside_key;
    TimePoint timer = kNever;   // in timers_; not later than due()
    uint64_t prepared_at = 0;   // memberships_ when its blocks were named
    bool prefix_tried = false;  // and did so once
  };

  // conductor_nodes.cc
  void on_received(const Received& event, TimePoint now, Actions& out);
  void on_hello(const Received& event, const wire::Hello& hello, TimePoint now, Actions& out);
  std::optional<wire::Refused> objection(const wire::Hello& hello) const;
  std::string free_name(wire::Role role) const;
  void on_snapshot(Node& node, const wire::BlockSnapshot& snapshot);
  void on_events(Node& node, const wire::BlockEvents& events, TimePoint now, Actions& out);
  void on_heartbeat(Node& node, const wire::Heartbeat& beat, TimePoint now, Actions& out);
  void ask_sync(Node& node, TimePoint now, Actions& out);
  wire::Peers peers() const;
  /// By value: who calls may hold the name in the node that goes.
  void lose(std::string name, std::string why, TimePoint now, Actions& out);
  void broadcast_peers(Actions& out);
  Node* find_node(const std::string& name);
  const Node* find_node(const std::string& name) const;
  Node* node_of(const Received& event);
  /// What a pipeline's leader waits for before it serves; empty: nothing.
  std::string lacking(const Node& node) const;
  bool serves(const Node& node, wire::Role role, const std::string& model) const;
  /// Namespace of the first node that serves the model; lives until the membership changes. null: no node does.
  const kv::Namespace* namespace_of(const std::string& model) const;
  void membership_changed();

  // conductor_place.cc
  void on_submit(const Submit& submit, TimePoint now, Actions& out);
  bool prepare(Request& r) const;
  sched::Options options_for(const Request& r) const;
  /// False: it stays held (only with `idle_only`: prefill nodes with a queue are left alone).
  bool place(Request& r, TimePoint now, Actions& out, bool idle_only = false);
  void dispatch(Request& r, const sched::Snapshot& snapshot, const sched::Placement& placement, TimePoint now,
                Actions& out);
  void unplace(Request& r, TimePoint now);
  void leave_prefill(Request& r, TimePoint now);
  void retry(Request& r, RequestStage stage, Refusal why, const NodeId& avoid, TimePoint now, Actions& out);
  void park(Request& r, TimePoint now);
  void place_parked(TimePoint now, Actions& out);

  // conductor_board.cc
  Usual usual() const;
  static sched::Cost cost_of(const Node& node, const Usual& usual);
  static bool has_served(const Node& node);
  Board make_board(const Usual& usual) const;
  static void put(Board& board, const Node& node, const Usual& usual);
  void changed(const Node& node);
  void refresh_board();
  /// The cluster for one request; valid until the next look.
  sched::Snapshot& look(const Request& r, TimePoint now, bool idle_only = false);
  void look_at_blocks(const Request& r);
  void restrict_nodes(const Request& r);
  void set_bars(const Request& r, TimePoint now);
  void add_inflight(TimePoint now);
  void count_row(const Request& r, int sign);
  void check_board() const;

  // conductor_hold.cc
  std::optional<Refusal> refusal_of(const Request& r, TimePoint now) const;
  std::string wrong_pin(const Submit& submit) const;
  std::optional<Refusal> drained_pin(const Submit& submit) const;
  std::string too_long(const Submit& submit) const;
  bool holding() const;
  std::string quota_text(uint32_t tenant, const sched::FairQueue::Refusal& refusal) const;
  void hold(Request& r, TimePoint now, Actions& out);
  sched::FairQueue::Entry entry_of(const Request& r) const;
  double ahead_s(const Request& r, TimePoint now) const;
  void serve_held(TimePoint now, Actions& out);
  bool has_nodes(const Request& r) const;
  void bound_held(TimePoint now);
  void room_changed();
  bool any_idle(TimePoint now);
  double queue_of(const Node& node, TimePoint now) const;
  bool wait_for_prefix(Request& r, const sched::Snapshot& snapshot, const sched::Candidate& chosen, TimePoint now);
  void refuse_late(Request& r, TimePoint now, Actions& out);
  void plan_next_turn(TimePoint now);
  void remember_session(const Request& r);

  // conductor_aside.cc
  Obstacle obstacle_of(const Request& r, TimePoint now) const;
  void set_aside(Request& r, sched::FairQueue::Entry entry, Obstacle obstacle);
  void leave_aside(Request& r);
  void recall(const RequestId& id);
  bool is_open(const Obstacle& obstacle, const Aside& aside, TimePoint now) const;
  uint64_t change_of(const Obstacle& obstacle) const;
  bool recall_some(const Obstacle& obstacle, Aside& aside);
  void recall_open(TimePoint now);
  void check_aside() const;
  TimePoint due(const Request& r) const;
  void watch(Request& r);
  void end_due(TimePoint now, Actions& out);

  // conductor_breakers.cc
  static sched::Part pair_of(const Request& r) { return {r.prefill, r.decode}; }
  static std::array<sched::Part, 3> parts_of(const Request& r) {
    return {sched::Part{r.prefill, r.decode}, sched::Part{r.prefill, ""}, sched::Part{"", r.decode}};
  }
  void probe_parts(const Request& r);
  void blame(Request& r, const Failure& failure, TimePoint now);
  void handed_over(Request& r);
  void leave_parts(const Request& r);
  void tell_breakers(Actions& out);
  void check_breakers() const;

  // conductor_copies.cc
  void consider_copy(const Request& r, const sched::Snapshot& snapshot, const sched::Candidate& chosen, TimePoint now,
                     Actions& out);
  /// Prefill nodes, by number in the board, to which a copy of at least the first `blocks` is on its way.
  std::vector<uint32_t> copies_coming(std::span<const BlockHash> hashes, uint32_t blocks) const;
  void on_copy_done(const Received& event, const wire::CopyDone& done, TimePoint now);
  void end_copy(uint64_t copy, bool ok, uint32_t blocks, TimePoint now);
  void end_late_copies(TimePoint now);
  void end_copies_of(const NodeId& node, TimePoint now);

  // conductor_requests.cc
  void on_prompt_logprobs(const Received& event, const wire::PromptLogprobs& told);
  void on_first_token(const Received& event, const wire::FirstToken& first, TimePoint now, Actions& out);
  void on_tokens(const Received& event, const wire::Tokens& tokens, TimePoint now, Actions& out);
  void on_failed(const Received& event, const wire::Failed& message, TimePoint now, Actions& out);
  void refuse_at_decode(Request& r, const wire::Failed& failed, TimePoint now, Actions& out);
  void on_preempted(const Received& event, const wire::Preempted& preempted, TimePoint now, Actions& out);
  void give_token(Request& r, uint32_t index, uint32_t token, const wire::TokenLogprobs& logprobs, Finish end,
                  TimePoint now, Actions& out);
  void cancel_workers(const Request& r, CancelReason reason, Actions& out) const;
  void finish(Request& r, Reply reply, TimePoint now, Actions& out);
  static Miss miss_of(const sched::Placement& placement);
  void fail(Request& r, Reply::Kind kind, RequestStage stage, Refusal why, TimePoint now, Actions& out);
  static RequestStage stage_of(const Request& r);
  Request* find(const RequestId& req, uint32_t attempt);

  ConductorOptions options_;
  std::map<std::string, Node> nodes_;
  std::map<InstanceId, Node*> by_instance_;  // into nodes_, whose elements stay where they are
  mutable std::map<std::string, std::optional<kv::Namespace>> namespaces_;  // by model, as far as asked for
  mutable std::map<std::string, uint32_t> contexts_;                        // likewise: context_tokens()
  std::map<RequestId, Request> requests_;
  kv::PrefixIndex index_;
  Board board_;
  bool board_stale_ = true, usual_stale_ = false;
  Usual usual_;                   // that the board's costs were made with
  std::vector<NodeId> unserved_;  // nodes whose costs follow it
  sched::Placement placement_;    // of the last decision: its memory is used again
  std::vector<uint32_t> best_;
  uint64_t peers_version_ = 0;
  Rng rng_;
  Stats stats_;
  PredictionErrors errors_;
  sched::Lengths lengths_;  // of answers, for admission that looks ahead
  sched::FairQueue fair_;   // the held requests, and every tenant's quota
  struct TenantCount {
    uint64_t tokens = 0, submitted = 0, rejected = 0;
  };
  std::vector<TenantCount> tenant_counts_;  // by number
  size_t prioritised_ = 0;                  // unfinished requests with a priority
  bool look_at_held_ = false;               // something changed that may give one its turn
  TimePoint next_room_ = kNever;            // and when time alone may
  TimePoint next_turn_ = kNever;            // when they are asked again
  uint64_t rooms_ = 1;                      // times that a node got room, or came or went
  uint64_t memberships_ = 1;                // times that somebody came or went
  bool held_rest_ = false;                  // more of them wait to be asked than one event may
  std::map<Obstacle, Aside> asides_;
  std::set<std::pair<TimePoint, RequestId>> prefix_ends_;  // Request::prefix_until of those that wait for a prefix
  std::set<std::pair<TimePoint, RequestId>> timers_;       // when each request must be looked at, or earlier
  TimePoint silence_at_ = kNever;                          // before that no node has been silent for too long
  bool nodes_changed_ = false;                             // some held requests may have no node left, or one again
  // Where the last request of a session went; the oldest are forgotten.
  using SessionKey = std::pair<uint32_t, std::string>;
  std::map<SessionKey, std::pair<NodeId, uint64_t>> sessions_;
  std::map<uint64_t, SessionKey> session_order_;
  uint64_t session_uses_ = 0;
  sched::Breakers breakers_;
  sched::Popularity popularity_;
  struct Copying {
    NodeId source, target;
    InstanceId target_instance;
    BlockHash last;
    uint64_t bytes = 0;  // paid
    TimePoint until{};
  };
  std::map<uint64_t, Copying> copying_;
  uint64_t copy_number_ = 0;
  TimePoint copy_again_{};  // after a failure none is made for a while
};

}  // namespace mc::node

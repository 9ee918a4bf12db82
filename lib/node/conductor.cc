#include "node/conductor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/assert.h"
#include "node/order_fetch.h"
#include "node/stage.h"

namespace mc::node {
namespace {

constexpr size_t kConsideredMax = 8;  // candidates kept of each decision for `why`
// In a larger cluster, nodes that cannot win keep the values for a placement without a fetch.
constexpr size_t kCompleteMax = 64;

std::vector<Considered> considered(const sched::Snapshot& snapshot, const sched::Placement& placement,
                                   std::span<const uint32_t> best) {
  std::vector<Considered> out;
  for (const uint32_t i : best) {
    const sched::Candidate& c = placement.candidates[i];
    const std::string from = c.holder < 0 ? "" : snapshot.holder_names[static_cast<size_t>(c.holder)];
    const sched::PrefillView& node = snapshot.prefill[c.node];
    out.push_back({node.name, from, c.local_blocks, c.fetch_blocks, c.queue_s, c.fetch_s, c.prefill_s, c.ttft_s,
                   sched::disk_blocks_of(snapshot, node), c.load_s, node.measured, fetch_parts(snapshot, c),
                   sched::is_fetch_measured(snapshot, c), false,
                   sched::device_blocks_of(snapshot, c.node, c.local_blocks), c.to_device_s});
  }
  if (!placement.inlined) return out;
  const sched::InlineCandidate& c = *placement.inlined;
  Considered alone{.node = snapshot.decode[c.decode].name, .local_blocks = c.local_blocks, .inlined = true};
  alone.queue_s = c.queue_s, alone.prefill_s = c.prefill_s, alone.ttft_s = c.ttft_s;
  alone.measured = c.measured;
  out.insert(placement.is_inlined ? out.begin() : out.end(), std::move(alone));
  return out;
}

Miss miss_of(const sched::Placement& placement) {
  const sched::Verdict& v = placement.verdict;
  if (v.bound == sched::Bound::kv)
    return {.bound = v.bound, .kv_tokens = v.kv_tokens, .capacity_tokens = v.capacity_tokens};
  return {.bound = v.bound, .predicted_s = v.predicted_s, .allowed_s = v.allowed_s};
}

/// A number that bounds of TBT within a factor of two share; 0 = no bound. Clients choose any bound, so each of them
/// with a group of its own in the waiting queue would make an event as expensive as the queue is long.
int class_of_bound(double tbt_slo_s) {
  if (!(tbt_slo_s > 0)) return 0;
  return std::ilogb(std::clamp(tbt_slo_s * 1e3, 1.0, 65536.0)) + 1;
}

sched::LineOptions line_options(const ConductorOptions& options) {
  return {options.hold, options.hold_lead, options.fair};
}

}  // namespace

Conductor::Conductor(ConductorOptions options)
    : options_(std::move(options)),
      members_({options_.model, options_.config_digest, options_.heartbeat, options_.dead_after, options_.keys}),
      board_(options_.sched.slow_start_s),
      line_(line_options(options_)),
      copies_(options_.replicate),
      breakers_(options_.breaker, Rng(options_.seed).fork("breakers").next()),
      tenants_(line_),
      flights_({members_, board_, line_, breakers_, tenants_, evicted_}, options_.sched.first_with_second),
      rng_(options_.seed) {
  MC_ASSERT(options_.policy != nullptr);
  tenants_.set(options_.tenants);
}

void Conductor::handle(const Event& event, TimePoint now, Actions& out) {
  if (now >= breakers_.next_wakeup()) {
    breakers_.advance(now);
    line_.room_changed();
  }
  // Deadlines are checked before the event. An event that arrived while the process was stopped must not revive a
  // request whose deadline has passed.
  end_due(now, out);
  if (const auto* received = std::get_if<Received>(&event)) {
    on_received(*received, now, out);
  } else if (const auto* submit = std::get_if<Submit>(&event)) {
    on_submit(*submit, now, out);
  } else if (const auto* cancel = std::get_if<ClientCancel>(&event)) {
    if (Request* r = flights_.find(cancel->req)) {
      Flights::cancel_workers(*r, cancel->reason, out);
      flights_.finish(*r, cancel->reason == CancelReason::stop ? Finish::stop : Finish::abort, now, out);
    }
  } else if (const auto* lost = std::get_if<PeerLost>(&event)) {
    const Members::Node* node = members_.find(lost->node);
    if (node && node->instance == lost->instance) lose(lost->node, lost->why, now, out);
  } else if (const auto* stalled = std::get_if<HostStalled>(&event)) {
    members_.stalled(stalled->time, now);
  } else if (std::holds_alternative<Tick>(event)) {
    const std::string why = "no heartbeat for " + std::to_string(options_.dead_after / 1ms) + " ms";
    for (const auto& name : members_.silent(now)) lose(name, why, now, out);
    copies_.end_late(board_, now);
  }
  if (members_changed_) {
    bound_held(now);
    place_parked(now, out);
  }
  if (line_.wants_round(now)) serve_held(now, out);
  if (breakers_.has_changes()) tell_breakers(out);
}

TimePoint Conductor::next_wakeup() const {
  if (members_changed_) return TimePoint{};
  return std::min({members_.next_wakeup(), line_.next_wakeup(), breakers_.next_wakeup(), copies_.next_wakeup(),
                   flights_.next_wakeup()});
}

void Conductor::check() const {
  members_.check();
  line_.check();
  breakers_.check();
  flights_.check();
  std::vector<const sched::Booking*> bookings;
  for (const auto& [id, r] : flights_.all()) bookings.push_back(&r.attempt.booking);
  board_.check(bookings, copies_.sources());
}

std::vector<Conductor::NodeStatus> Conductor::nodes(TimePoint now) const {
  std::vector<NodeStatus> out;
  for (const auto& [name, node] : members_.all()) {
    NodeStatus s;
    s.name = name;
    s.instance = node.instance;
    s.role = node.hello.role;
    s.lacks = members_.lacking(node);
    s.state = members_.state_of(node);
    s.model = node.hello.model;
    s.device = node.hello.device;
    s.http = node.hello.http;
    s.labels = node.hello.labels;
    s.control_uri = node.hello.control_uri;
    s.load = node.load;
    s.page_bytes = node.hello.page_bytes;
    s.page_count = node.hello.page_count;
    s.requests = board_.requests(node.slot());
    s.queue_s = board_.queue_s(node.slot(), now);
    s.up = now - node.since;
    s.indexed = {members_.index().resident_count(node.ordinal), members_.index().is_full(node.ordinal),
                 members_.index().resident_count()};
    s.heartbeats = node.heartbeats;
    s.prefill_error = board_.predictor(node.slot()).prefill_error().mape();
    s.step_error = board_.predictor(node.slot()).step_error().mape();
    out.push_back(std::move(s));
  }
  return out;
}

// ---- members ---------------------------------------------------------------------------------

void Conductor::on_received(const Received& event, TimePoint now, Actions& out) {
  if (const auto* hello = std::get_if<wire::Hello>(&event.message)) return on_hello(event, *hello, now, out);
  Members::Node* node = members_.of(event.instance);
  if (!node) {
    // The sender outlived an earlier conductor, or this conductor declared it lost too early. It must send Hello again.
    if (std::holds_alternative<wire::Heartbeat>(event.message))
      out.push_back(Send{event.from, event.instance, wire::HeartbeatAck{false}});
    return;
  }
  node->heard = now;
  if (const auto* beat = std::get_if<wire::Heartbeat>(&event.message)) {
    board_.loads(node->slot(), {beat->load.disk_block_s, beat->load.device_block_s});
    if (members_.on_heartbeat(*node, *beat, now, out)) {
      members_.show_on(board_);
      members_changed_ = true;
    }
  } else if (const auto* events = std::get_if<wire::BlockEvents>(&event.message)) {
    members_.on_events(*node, *events, now, out);
    evicted_.note(node->name, events->events, members_.index(), now);
  } else if (const auto* snapshot = std::get_if<wire::BlockSnapshot>(&event.message)) {
    members_.on_snapshot(*node, *snapshot);
  } else if (const auto* told = std::get_if<wire::PromptLogprobs>(&event.message)) {
    flights_.on_prompt_logprobs(event, *told);
  } else if (const auto* first = std::get_if<wire::FirstToken>(&event.message)) {
    flights_.on_first_token(event, *first, now, out);
  } else if (const auto* report = std::get_if<wire::KvReport>(&event.message)) {
    flights_.on_kv_report(event, *report, now);
  } else if (const auto* tokens = std::get_if<wire::Tokens>(&event.message)) {
    flights_.on_tokens(event, *tokens, now, out);
  } else if (const auto* failed = std::get_if<wire::Failed>(&event.message)) {
    on_failed(event, *failed, now, out);
  } else if (const auto* preempted = std::get_if<wire::Preempted>(&event.message)) {
    on_preempted(event, *preempted, now, out);
  } else if (const auto* copied = std::get_if<wire::CopyDone>(&event.message)) {
    on_copy_done(event, *copied, now);
  } else if (const auto* goodbye = std::get_if<wire::Goodbye>(&event.message)) {
    lose(node->name, goodbye->reason, now, out);
  }
}

void Conductor::on_hello(const Received& event, const wire::Hello& hello, TimePoint now, Actions& out) {
  // A registered node that registers again missed the Welcome or lost its connection. Its old registration is removed.
  if (const Members::Node* known = members_.of(event.instance)) lose(known->name, "registered again", now, out);
  auto refused = members_.objection(hello, event.instance);
  const std::string name = hello.name.empty() ? members_.free_name(hello.role) : hello.name;
  if (!refused) refused = members_.name_objection(name, now);
  if (!refused) refused = members_.room_objection(name);
  if (refused) {
    members_.note_refused({event.instance, name, hello.role, hello.control_uri, *refused});
    return out.push_back(Send{event.from, event.instance, std::move(*refused)});
  }
  lose(name, "replaced by a new process of the same name", now, out);
  members_.join(name, event.instance, hello, now);
  members_changed();
  out.push_back(Send{event.from, event.instance,
                     wire::Welcome{name, static_cast<uint32_t>(options_.heartbeat / 1ms),
                                   static_cast<uint32_t>(options_.dead_after / 1ms), !options_.tenants.empty()}});
  members_.broadcast(now, out);
}

void Conductor::lose(std::string name, std::string why, TimePoint now, Actions& out) {
  const Members::Node* node = members_.find(name);
  if (!node) return;
  // The requests leave the books while the node is still a member. They are placed again after the node is gone.
  const auto orphans = flights_.on_node(name);
  for (const auto& [id, stage] : orphans) {
    Request& r = *flights_.find(id);
    r.summary.failed.push_back({r.attempt.prefill, r.attempt.decode, stage, Reason::peer_lost});
    Flights::cancel_workers(r, CancelReason::superseded, out);
    flights_.unplace(r, now);
  }
  flights_.forget_source(node->slot());
  copies_.end_of(node->ordinal, board_, now);
  breakers_.forget(name);
  if (const auto stage = parse_stage_name(name); stage && node->hello.role == wire::Role::stage)
    breakers_.forget(stage->leader);
  members_.remove(name, why);
  members_changed();  // wakes requests that waited for a prefix which the node was computing
  members_.broadcast(now, out);
  for (const auto& [id, stage] : orphans)
    if (Request* r = flights_.find(id))
      retry(*r, stage, {Reason::peer_lost, "node " + name + " was lost: " + why}, name, now, out);
}

void Conductor::members_changed() {
  members_.show_on(board_);
  members_changed_ = true;
  line_.room_changed();
}

// A held request that has no node left waits as long as a failed request may wait for a node (park_max).
void Conductor::bound_held(TimePoint now) {
  members_changed_ = false;
  if (line_.size() == 0) return;
  for (const RequestId& id : flights_.ids([&](const Request& r) { return line_.contains(r.submit.req); })) {
    Request& r = *flights_.find(id);
    const bool has_nodes = members_.has_nodes(r.submit);
    line_.set_has_nodes(id, has_nodes);
    if (has_nodes)
      r.parked_until = kNever;
    else
      park(r, now);
  }
}

Result<void> Conductor::drain(const std::string& name, bool on, Actions& out) {
  MC_CHECK(members_.drain(name, on, out));
  members_.show_on(board_);
  members_changed_ = true;
  line_.room_changed();
  return {};
}

// ---- placing ---------------------------------------------------------------------------------

void Conductor::on_submit(const Submit& submit, TimePoint now, Actions& out) {
  if (flights_.find(submit.req)) return;
  Request& r = flights_.add(submit, after(now, std::min(submit.deadline, options_.deadline_max)), now);
  const auto reject = [&](Refusal why) { flights_.reject(r, RequestStage::route, std::move(why), now, out); };
  if (const Reason reason = members_.unready(submit.model); reason != Reason::none)
    return reject({reason, reason == Reason::no_prefill ? "no prefill node is ready" : "no decode node is ready"});
  if (flights_.size() > options_.request_max)
    return reject({Reason::queue_full, std::to_string(options_.request_max) + " requests are unfinished"});
  if (auto refused = refusal_of(r, now)) return reject(std::move(*refused));
  const bool named = name_blocks(r);
  r.admitted = !line_.admit(r.tenant, submit.priority, static_cast<double>(submit.ids.size()), now);
  MC_ASSERT(named && r.admitted);
  flights_.stats().prompt_tokens += submit.ids.size();
  if (line_.holds()) return hold(r, now, out);
  (void)place(r, now, out);
}

// Whether the request is admitted, before its blocks are looked up and a place is chosen.
std::optional<Refusal> Conductor::refusal_of(const Request& r, TimePoint now) const {
  if (auto refused = members_.refusal_of(r.submit)) return refused;
  return tenants_.refusal(r.tenant, static_cast<double>(r.submit.ids.size()), now);
}

// Names the blocks as the workers do. False: no node has announced a namespace.
bool Conductor::name_blocks(Request& r) const {
  const kv::Namespace* ns = members_.namespace_of(r.submit.model);
  if (!ns) return false;
  const std::string& asked = r.submit.attention;
  const std::string* decode = members_.decode_attention(r.submit.model);
  r.blocks.prefill_attention = asked.empty() ? ns->attention : asked;
  r.blocks.decode_attention = !asked.empty() ? asked : decode ? *decode : ns->attention;
  kv::Namespace own = ns->with_salt(r.submit.salt);
  own.attention = r.blocks.prefill_attention;
  r.blocks.ns = own.id();
  std::vector<uint32_t> ids = r.submit.ids;
  ids.insert(ids.end(), r.answer.given().begin(), r.answer.given().end());
  r.blocks.hashes = kv::chain(r.blocks.ns, ids, own.block_tokens);
  r.blocks.members_version = members_.version();
  return true;
}

sched::Options Conductor::options_for(const Request& r) const {
  sched::Options options = options_.sched;
  if (r.submit.ttft_slo_s > 0) options.ttft_slo_s = r.submit.ttft_slo_s;
  if (r.submit.tbt_slo_s > 0) options.tbt_slo_s = r.submit.tbt_slo_s;
  const bool again = r.attempt.number > 0;
  // A retry was admitted before, and the failure was not its fault.
  if (again) options.ttft_slo_s = 0;
  // For a client in mid-stream, slow tokens are better than none.
  if (again && !r.answer.empty()) options.tbt_slo_s = 0;
  // The client chose a prefill node, or wants what a decode node does not report.
  options.may_inline = r.may_inline && r.submit.pin_prefill.empty() && r.submit.prompt_logprobs < 0;
  options.prefer = tenants_.node_of_session(r.tenant, r.submit.session);
  return options;
}

sched::Snapshot& Conductor::look(const Request& r, TimePoint now, bool idle_only) {
  const kv::Namespace* ns = members_.namespace_of("");
  const auto hashes = r.reusable(ns ? ns->block_tokens : 64);
  members_.index().match(hashes, matches_);
  sched::find_runs(members_.index(), hashes, matches_, runs_);
  sched::Board::Ask ask;
  ask.tokens = r.tokens();
  ask.answer_tokens = r.submit.stopping.max_tokens;
  ask.model = &r.submit.model;
  ask.prefill = &r.submit.pin_prefill, ask.decode = &r.submit.pin_decode;
  ask.avoid = r.avoid.empty() ? -1 : board_.find(r.avoid);
  ask.matches = matches_, ask.runs = runs_;
  ask.breakers = &breakers_;
  ask.failed_on = r.failed_on;
  if (idle_only) ask.queue_max_s = to_seconds(options_.hold_lead);
  sched::Snapshot& snapshot = board_.look(ask, now);
  add_inflight(snapshot, now);
  return snapshot;
}

// Admission also examines every request that is on its way to a decode node or decoding there.
void Conductor::add_inflight(sched::Snapshot& snapshot, TimePoint now) const {
  snapshot.inflight.clear();
  if (!options_.sched.admission || !options_.sched.admission->looks_ahead) return;
  for (const auto& [id, other] : flights_.all()) {
    const int at = other.is_placed() ? board_.decode_at(other.attempt.booking.decode) : -1;
    if (at < 0) continue;
    const Attempt& a = other.attempt;
    const double arrives_s =
        a.first_token ? -to_seconds(now - a.first_token_at) : std::max(0.0, to_seconds(a.expected_at - now));
    snapshot.inflight.push_back({arrives_s, static_cast<uint32_t>(at), other.tokens(),
                                 static_cast<uint32_t>(other.answer.size()), other.submit.stopping.max_tokens});
  }
}

sched::HeldRequest Conductor::held_request(const Request& r) const {
  sched::HeldRequest out;
  out.id = r.submit.req;
  out.tenant = r.tenant, out.priority = r.submit.priority;
  out.tokens = static_cast<double>(r.submit.ids.size());
  out.work_s = r.work_s;
  out.arrived = r.arrived, out.deadline = r.deadline, out.expires = r.expires;
  out.pin = r.submit.pin_prefill;
  // A request may be refused for its own bound of TBT where others are admitted, so requests with other bounds do not
  // wait for it. Bounds within a factor of two share a group nevertheless: the number of groups must stay small.
  const int bound = class_of_bound(r.submit.tbt_slo_s);
  out.destination = r.submit.model + "/" + r.submit.pin_decode + "/" + std::to_string(bound);
  return out;
}

// Rejects the request at once when its turn is predicted to come too late. Otherwise the request waits.
void Conductor::hold(Request& r, TimePoint now, Actions& out) {
  static const sched::Admission* const everybody = sched::find_admission("none");
  sched::Options options = options_for(r);
  options.admission = everybody;
  Rng draw = rng_;
  sched::place(look(r, now), *options_.policy, options, draw, placement_);
  if (placement_.candidate < 0) return void(place(r, now, out));  // place() reports the reason
  r.work_s = placement_.candidates[static_cast<size_t>(placement_.candidate)].prefill_s;
  if (options.ttft_slo_s > 0 && options_.sched.admission != everybody) {
    const auto queues = board_.queues(r.submit.model, now);
    if (const auto late_s = line_.predicted_miss_s(held_request(r), options.ttft_slo_s, queues, now)) {
      const Miss miss{.bound = sched::Bound::ttft, .predicted_s = *late_s, .allowed_s = options.ttft_slo_s};
      const std::string waiting =
          " with " + std::to_string(line_.size()) + (line_.size() == 1 ? " request waiting" : " requests waiting");
      return flights_.reject(r, RequestStage::route, {Reason::predicted_slo_miss, miss.text() + waiting, miss}, now,
                             out);
    }
    r.expires = after(r.arrived, from_seconds(std::max(0.0, options.ttft_slo_s - r.work_s) + 1e-3));
  }
  line_.push(held_request(r));
  flights_.watch(r);
}

void Conductor::serve_held(TimePoint now, Actions& out) {
  line_.begin_round(board_, now);
  while (const auto id = line_.take_turn(board_, now)) {
    Request& r = *flights_.find(*id);
    // The block names may differ under the nodes that are members now.
    if (r.blocks.members_version != members_.version()) (void)name_blocks(r);
    if (!place(r, now, out, true)) line_.put_back(*id, board_, now);
  }
  line_.end_round(board_, now);
}

bool Conductor::place(Request& r, TimePoint now, Actions& out, bool idle_only) {
  const sched::Snapshot& snapshot = look(r, now, idle_only);
  sched::Options options = options_for(r);
  if (options.ttft_slo_s > 0) options.ttft_slo_s = std::max(1e-9, options.ttft_slo_s - to_seconds(now - r.arrived));
  options.complete = snapshot.prefill.size() <= kCompleteMax;
  const sched::Placement& placement = placement_;
  sched::place(snapshot, *options_.policy, options, rng_, placement_);
  using Turn = sched::Line::Turn;
  const Turn turn = idle_only ? line_.turn_of(r.submit.req, placement) : Turn::go;
  if (turn == Turn::wait) return false;
  if (turn == Turn::wait_for_nodes) {  // a request that ran already also waits for a decode node
    park(r, now);
    line_.set_has_nodes(r.submit.req, false);
    return false;
  }
  sched::best_candidates(placement, kConsideredMax, best_);
  r.summary.considered = considered(snapshot, placement, best_);
  r.summary.set_aside = static_cast<uint32_t>(snapshot.bars.size());
  if (placement.candidate >= 0) {
    const auto& chosen = placement.candidates[static_cast<size_t>(placement.candidate)];
    if (idle_only && !placement.is_inlined && waits_for_prefix(r, snapshot, chosen, now)) return false;
    dispatch(r, snapshot, placement, now, out);
    return true;
  }
  const bool missed = placement.reason == sched::NoPlace::predicted_slo_miss;
  if (r.attempt.number > 0 && !missed) {
    // The request ran before: it waits for a node, so that the client keeps the answer so far.
    park(r, now);
    return true;
  }
  Refusal why{reason_of(placement.reason), "no node can take the request: "};
  why.message += to_string(placement.reason);
  if (missed) why.miss = miss_of(placement), why.message = why.miss.text();
  flights_.reject(r, RequestStage::route, std::move(why), now, out);
  return true;
}

bool Conductor::waits_for_prefix(Request& r, const sched::Snapshot& snapshot, const sched::Candidate& chosen,
                                 TimePoint now) {
  if (const NodeId* name = line_.prefix_node(r.submit.req, now)) {
    const Members::Node* node = members_.find(*name);
    bool pending = false;
    if (node)
      for (const auto& match : members_.index().match(r.blocks.hashes))
        pending |= match.node == node->ordinal && match.expected > match.resident;
    if (pending) return line_.keep_waiting(r.submit.req, board_), true;
  }
  if (!r.may_reuse()) return false;
  const auto node = line_.wait_for_prefix(r.submit.req, snapshot, chosen, board_, now);
  if (!node) return false;
  flights_.stats().held_prefix += r.summary.held_for.kind == Held::Kind::none;
  r.summary.held_for = {Held::Kind::prefix, *node};
  return true;
}

void Conductor::dispatch(Request& r, const sched::Snapshot& snapshot, const sched::Placement& placement, TimePoint now,
                         Actions& out) {
  const sched::Candidate& c = placement.candidates[static_cast<size_t>(placement.candidate)];
  const Members::Node& decode = *members_.find(snapshot.decode[static_cast<size_t>(placement.decode)].name);
  const Members::Node& prefill = placement.is_inlined ? decode : *members_.find(snapshot.prefill[c.node].name);
  const uint32_t number = r.attempt.number + 1;
  RequestSummary& summary = r.summary;
  if (number == 1) {
    tenants_.count(r.tenant).tokens += r.submit.ids.size();
    summary.held_s = to_seconds(now - r.arrived);
    if (now > r.arrived && summary.held_for.kind == Held::Kind::none) {
      summary.held_for.kind = Held::Kind::turn;
      ++flights_.stats().held_turn;
    }
    summary.predicted_ttft_s = summary.held_s + placement.ttft_s;
    summary.predicted_tbt_s = placement.tbt_s;
  }
  if (!placement.is_inlined) tenants_.remember_session(r.tenant, r.submit.session, prefill.name);
  summary.prefill = prefill.name, summary.decode = decode.name, summary.attempts = number;

  wire::PrefillStart start;
  const bool checks_again = !options_.sched.admission || options_.sched.admission->checks_again;
  start.spec = r.spec(checks_again ? options_for(r).tbt_slo_s : 0, now);
  start.decode = decode.name;
  start.decode_instance = decode.instance;

  Attempt attempt;
  attempt.prefill = prefill.name, attempt.prefill_instance = prefill.instance;
  attempt.decode = decode.name, attempt.decode_instance = decode.instance;
  attempt.expected_at = after(now, from_seconds(placement.ttft_s));
  attempt.booking.prefill = prefill.slot(), attempt.booking.decode = decode.slot();
  attempt.booking.prefill_s = placement.is_inlined ? placement.inlined->gap_s : c.prefill_s;
  attempt.booking.tokens = r.tokens();
  if (placement.is_inlined) {
    flights_.depart(r, std::move(attempt), now);
    return out.push_back(Send{decode.name, decode.instance, std::move(start)});
  }
  FetchOrder fetch = order_fetch(members_, snapshot, c, sched::first_fetched(matches_, prefill.ordinal, c));
  start.sources = std::move(fetch.sources);
  attempt.fetch_waited = fetch.waits, attempt.booking.sources = std::move(fetch.slots);
  FetchOrder direct =
      order_direct(members_, snapshot, direct_runs(members_, r, snapshot, placement, matches_, options_.prefix_from));
  start.decode_sources = std::move(direct.sources);
  attempt.booking.sources.insert(attempt.booking.sources.end(), direct.slots.begin(), direct.slots.end());
  flights_.depart(r, std::move(attempt), now);
  out.push_back(Send{prefill.name, prefill.instance, std::move(start)});
  order_copy(r, snapshot, c, now, out);
}

void Conductor::order_copy(const Request& r, const sched::Snapshot& snapshot, const sched::Candidate& chosen,
                           TimePoint now, Actions& out) {
  if (!r.may_reuse() || r.attempt.number > 1) return;
  const auto hashes = r.reusable(snapshot.block_tokens);
  const auto order = copies_.consider(hashes, snapshot, chosen, board_, now);
  if (!order) return;
  const Members::Node& source = *members_.find(members_.index().name_of(static_cast<kv::NodeOrdinal>(order->source)));
  const Members::Node& target = *members_.find(members_.index().name_of(static_cast<kv::NodeOrdinal>(order->target)));
  wire::CopyBlocks message;
  message.copy = order->number;
  message.ns = r.blocks.ns;
  message.hashes.assign(hashes.begin(), hashes.begin() + order->end_block);
  message.node = source.name;
  message.instance = source.instance;
  out.push_back(Send{target.name, target.instance, std::move(message)});
}

// ---- failures --------------------------------------------------------------------------------

void Conductor::on_failed(const Received& event, const wire::Failed& message, TimePoint now, Actions& out) {
  Request* r = flights_.find(message.req, message.attempt);
  if (!r) return;
  const Attempt& a = r->attempt;
  if (event.instance != a.prefill_instance && event.instance != a.decode_instance) return;
  const Failure failure = failure_of(message);
  const bool refused = failure.stage == RequestStage::accept;
  const bool was_inlined = a.is_inlined();
  if (was_inlined) r->may_inline = false;  // the next attempt takes a pair of nodes
  const NodeId avoid = was_inlined && refused                           ? ""
                       : refused || event.instance == a.decode_instance ? a.decode
                                                                        : a.prefill;
  flights_.blame(*r, failure, now);
  Flights::cancel_workers(*r, CancelReason::superseded, out);
  const bool breaks_promise =
      refused && !was_inlined && failure.cause == Reason::predicted_slo_miss && r->answer.empty();
  if (breaks_promise && std::exchange(r->was_refused, true)) {
    // A decode node checks TBT alone.
    const Miss miss{
        .bound = sched::Bound::tbt, .predicted_s = message.predicted_ms * 1e-3, .allowed_s = message.allowed_ms * 1e-3};
    return flights_.reject(*r, RequestStage::accept,
                           {Reason::predicted_slo_miss, miss.text() + " on " + a.decode, miss}, now, out);
  }
  if (failure.cause == Reason::corrupt) r->damage = Damage::met;
  Refusal why{reason_of(failure), message.message};
  if (failure.retryable && failure.cause != Reason::too_long)
    return retry(*r, failure.stage, std::move(why), avoid, now, out);
  flights_.fail(*r, failure.stage, std::move(why), now, out);
}

void Conductor::on_preempted(const Received& event, const wire::Preempted& preempted, TimePoint now, Actions& out) {
  Request* r = flights_.find(preempted.req, preempted.attempt);
  if (!r || event.instance != r->attempt.decode_instance) return;
  // Preemption is not the request's fault and does not count as an attempt.
  Flights::cancel_workers(*r, CancelReason::superseded, out);
  flights_.unplace(*r, now);
  r->answer.restart();
  if (!name_blocks(*r)) return park(*r, now);
  const FailedAttempt failed{r->attempt.prefill, r->attempt.decode, RequestStage::decode, Reason::no_space};
  out.push_back(RequestRetried{r->submit.req, failed, "preempted: the decode node had no page left"});
  ++flights_.stats().retried;
  (void)place(*r, now, out);
}

void Conductor::on_copy_done(const Received& event, const wire::CopyDone& done, TimePoint now) {
  const auto* order = copies_.find(done.copy);
  const Members::Node* node = members_.of(event.instance);
  if (order && node && node->ordinal == order->target)
    copies_.end(done.copy, done.reason == wire::CopyEnd::complete, done.blocks, board_, now);
}

// Places the request again. The tokens that the client has received become part of the prompt.
void Conductor::retry(Request& r, RequestStage stage, Refusal why, const NodeId& avoid, TimePoint now, Actions& out) {
  if (r.is_placed()) flights_.unplace(r, now);
  // A pinned node is never avoided, because the request could go nowhere else.
  r.avoid = avoid == r.submit.pin_prefill || avoid == r.submit.pin_decode ? NodeId() : avoid;
  r.answer.restart();
  if (++r.failures >= options_.attempts_max) return flights_.fail(r, stage, std::move(why), now, out);
  // Every node may have a damaged copy of the prefix, of which an attempt finds one. The last attempt computes it all.
  if (r.damage == Damage::met && r.failures + 1 == options_.attempts_max) r.damage = Damage::avoided;
  ++flights_.stats().retried;
  out.push_back(
      RequestRetried{r.submit.req, {r.attempt.prefill, r.attempt.decode, stage, why.reason}, std::move(why.message)});
  if (!name_blocks(r)) return park(r, now);
  (void)place(r, now, out);
}

// The request waits until a node comes back. A search for a place that finds none does not prolong the wait.
void Conductor::park(Request& r, TimePoint now) {
  if (r.parked_until != kNever) return;
  r.parked_until = std::min(r.deadline, after(now, options_.park_max));
  flights_.watch(r);
}

void Conductor::place_parked(TimePoint now, Actions& out) {
  const auto parked = [&](const Request& r) {
    return !r.is_placed() && r.parked_until != kNever && !line_.contains(r.submit.req);
  };
  for (const RequestId& id : flights_.ids(parked)) {
    Request* r = flights_.find(id);
    if (r && members_.unready(r->submit.model) == Reason::none && name_blocks(*r)) (void)place(*r, now, out);
  }
}

// Ends requests whose deadline has passed, whose TTFT bound can no longer be met, or whose wait for a node is over.
void Conductor::end_due(TimePoint now, Actions& out) {
  if (flights_.next_wakeup() > now) return;
  for (const RequestId& id : flights_.due(now)) {
    Request& r = *flights_.find(id);
    const bool held = line_.contains(id);
    const RequestStage stage = r.stage();
    if (now >= r.deadline) {
      Flights::cancel_workers(r, CancelReason::deadline, out);
      Refusal why{Reason::deadline_exceeded, "deadline of " + std::to_string((r.submit.deadline + 999us) / 1ms)};
      why.message += " ms passed in stage " + std::string(to_string(stage));
      flights_.fail(r, stage, std::move(why), now, out);
    } else if (held && now >= r.expires) {
      const Miss miss{.bound = sched::Bound::ttft,
                      .predicted_s = to_seconds(now - r.arrived) + r.work_s,
                      .allowed_s = options_for(r).ttft_slo_s};
      flights_.reject(r, stage, {Reason::predicted_slo_miss, "its turn did not come in time: " + miss.text(), miss},
                      now, out);
    } else {
      MC_ASSERT(!r.is_placed() && now >= r.parked_until);
      Refusal why{members_.unready(r.submit.model), ""};
      if (why.reason == Reason::none) why.reason = Reason::no_decode;
      why.message =
          held ? "the request waited for its turn, and no node that may serve it was ready for " +
                     std::to_string(options_.park_max / 1ms) + " ms"
               : "no node could take the request again" + (r.avoid.empty() ? "" : " after " + r.avoid + " failed");
      held ? flights_.reject(r, stage, std::move(why), now, out) : flights_.fail(r, stage, std::move(why), now, out);
    }
  }
}

void Conductor::tell_breakers(Actions& out) {
  for (sched::Breakers::Change& change : breakers_.take_changes()) {
    flights_.stats().set_aside += change.state == sched::BreakerState::open;
    out.push_back(BreakerChanged{std::move(change.part.prefill), std::move(change.part.decode), change.state,
                                 change.failures, change.backoff});
  }
}

// ---- explain ---------------------------------------------------------------------------------

Conductor::Explanation Conductor::explain(const Submit& submit, TimePoint now) {
  Explanation e;
  Request r;
  r.submit = submit;
  r.arrived = now;
  r.tenant = tenants_.find(submit.tenant);
  e.unready = members_.unready(submit.model);
  e.refusal = refusal_of(r, now);
  // Explain goes on for a request beyond its quota and shows its placement.
  if ((e.refusal && e.refusal->reason != Reason::tenant_quota) || !name_blocks(r)) return e;
  e.hashes = r.blocks.hashes;
  e.snapshot = look(r, now);
  e.reusable_blocks = !submit.may_reuse() ? 0 : kv::reusable_blocks(submit.ids.size(), e.snapshot.block_tokens);
  Rng draw = rng_;  // a dry run must not change the next real decision
  sched::Options options = options_for(r);
  options.complete = true;
  e.placement = sched::place(e.snapshot, *options_.policy, options, draw);
  for (const sched::Candidate& c : e.placement.candidates) e.sources.push_back(fetch_parts(e.snapshot, c));
  e.decode_sources =
      direct_parts(e.snapshot, direct_runs(members_, r, e.snapshot, e.placement, matches_, options_.prefix_from));
  e.held = line_.size();
  e.holds = line_.holds(submit.priority) && (!board_.any_idle(options_.hold_lead, now) || line_.size() > 0);
  if (e.holds) e.before_s = line_.ahead_s(held_request(r), board_.queues(submit.model, now), now);
  if (options_.replicate.replicas_max == 0 || !submit.may_reuse()) return e;
  const auto plan = copies_.plan(r.reusable(e.snapshot.block_tokens), e.snapshot, board_, -1, now);
  e.demand = plan.demand;
  if (plan.copy) {
    e.copy_from = e.snapshot.holder_names[plan.copy->source];
    e.copy_to = e.snapshot.prefill[plan.copy->target].name;
  }
  return e;
}

}  // namespace mc::node

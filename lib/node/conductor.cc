// Event dispatch, time and the read-only views of the conductor. Nodes: conductor_nodes.cc; placing
// requests: conductor_place.cc; following them: conductor_requests.cc.

#include "node/conductor.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

Conductor::Conductor(ConductorOptions options) : options_(std::move(options)), rng_(options_.seed) {
  MC_ASSERT(options_.policy != nullptr);
  fair_ = sched::FairQueue(options_.fair);
  popularity_ = sched::Popularity(options_.replicate);
  breakers_ = sched::Breakers(options_.breaker, Rng(options_.seed).fork("breakers").next());
  set_tenants(options_.tenants);
}

void Conductor::handle(const Event& event, TimePoint now, Actions& out) {
  if (now >= breakers_.next_wakeup()) {
    breakers_.advance(now);
    room_changed();
  }
  // A request that is late has ended, also when what came for it meanwhile (the process was stopped, the host busy) is
  // heard before the clock.
  if (!timers_.empty() && timers_.begin()->first <= now) end_due(now, out);
  if (const auto* received = std::get_if<Received>(&event)) {
    on_received(*received, now, out);
  } else if (const auto* submit = std::get_if<Submit>(&event)) {
    on_submit(*submit, now, out);
  } else if (const auto* cancel = std::get_if<ClientCancel>(&event)) {
    const auto it = requests_.find(cancel->req);
    if (it == requests_.end()) return;
    cancel_workers(it->second, cancel->reason, out);
    Reply reply;
    reply.kind = Reply::Kind::finished;
    reply.finish = cancel->reason == CancelReason::stop ? Finish::stop : Finish::abort;
    finish(it->second, std::move(reply), now, out);
  } else if (const auto* lost = std::get_if<PeerLost>(&event)) {
    const Node* node = find_node(lost->node);
    if (node && node->instance == lost->instance) lose(lost->node, lost->why, now, out);
  } else if (std::holds_alternative<Tick>(event)) {
    std::vector<std::string> silent;
    if (now >= silence_at_) {
      silence_at_ = kNever;
      for (const auto& [name, node] : nodes_) {
        if (now - node.heard > options_.dead_after) silent.push_back(name);
        silence_at_ = std::min(silence_at_, node.heard + options_.dead_after + 1ms);
      }
    }
    for (const auto& name : silent) lose(name, "no heartbeat", now, out);
    end_late_copies(now);
  }
  if (nodes_changed_) bound_held(now);
  if (!fair_.empty() && (look_at_held_ || now >= next_turn_)) serve_held(now, out);
  if (breakers_.has_changes()) tell_breakers(out);
}

TimePoint Conductor::next_wakeup() const {
  TimePoint at = std::min({silence_at_, fair_.empty() ? kNever : next_turn_, breakers_.next_wakeup()});
  for (const auto& [number, copy] : copying_) at = std::min(at, copy.until);
  return timers_.empty() ? at : std::min(at, timers_.begin()->first);
}

// Every unfinished, placed request is counted at its two nodes, and nothing else is; who is neither placed nor parked
// waits for its turn.
void Conductor::check() const {
  size_t held = 0, prioritised = 0;
  std::vector<uint32_t> admitted(fair_.tenant_count());
  for (const auto& [id, r] : requests_) {
    held += r.held;
    MC_ASSERT(!r.held || !r.placed);
    prioritised += r.admitted && r.submit.priority != 0;
    admitted[r.tenant] += r.admitted;
  }
  MC_ASSERT_EQ(stats_.submitted,
               requests_.size() + stats_.finished + stats_.failed + stats_.rejected + stats_.cancelled);
  MC_ASSERT_EQ(held, fair_.size());
  MC_ASSERT_EQ(prioritised, prioritised_);
  for (uint32_t i = 0; i < admitted.size(); ++i) MC_ASSERT_EQ(admitted[i], fair_.unfinished(i));
  struct Count {
    uint32_t rows = 0, arrived_rows = 0, leaving = 0;
    uint64_t tokens = 0, arrived_tokens = 0;
  };
  std::map<NodeId, Count> counts;
  for (const auto& [id, r] : requests_) {
    if (!r.fetch_from.empty()) ++counts[r.fetch_from].leaving;
    if (!r.placed) continue;
    const uint64_t tokens = r.submit.ids.size() + r.answer.size();
    Count& c = counts[r.decode];
    ++c.rows, c.tokens += tokens;
    if (r.first_token) ++c.arrived_rows, c.arrived_tokens += tokens;
  }
  for (const auto& [number, copy] : copying_) ++counts[copy.source].leaving;
  for (const auto& [name, node] : nodes_) {
    for (const auto& [id, seconds] : node.queued) {
      MC_ASSERT(requests_.contains(id));
      MC_ASSERT_EQ(requests_.at(id).prefill, name);
    }
    const Count& c = counts[name];
    MC_ASSERT_EQ(c.leaving, node.egress);
    MC_ASSERT_EQ(c.rows, node.rows);
    MC_ASSERT_EQ(c.tokens, node.kv_tokens);
    MC_ASSERT_EQ(c.arrived_rows, node.arrived_rows);
    MC_ASSERT_EQ(c.arrived_tokens, node.arrived_tokens);
    MC_ASSERT(by_instance_.at(node.instance) == &node);
  }
  MC_ASSERT_EQ(by_instance_.size(), nodes_.size());
  for (const auto& [name, node] : nodes_) MC_ASSERT(silence_at_ <= node.heard + options_.dead_after + 1ms);
  check_aside();
  check_board();
  check_breakers();
}

Reason Conductor::unready(const std::string& model) const {
  bool prefill = false, decode = false;
  for (const auto& [name, node] : nodes_) {
    prefill |= serves(node, wire::Role::prefill, model) && !node.draining;
    decode |= serves(node, wire::Role::decode, model) && !node.draining;
  }
  return !prefill ? Reason::no_prefill : !decode ? Reason::no_decode : Reason::none;
}

std::vector<std::string> Conductor::models() const {
  std::vector<std::string> out;
  for (const auto& [name, node] : nodes_)
    if (!node.hello.model.empty() && std::find(out.begin(), out.end(), node.hello.model) == out.end())
      out.push_back(node.hello.model);
  return out;
}

uint32_t Conductor::context_tokens(const std::string& model) const {
  const auto [known, fresh] = contexts_.try_emplace(model, 0);
  if (!fresh) return known->second;
  uint32_t& least = known->second;
  for (const auto& [name, node] : nodes_) {
    if (node.hello.role == wire::Role::cache || (!model.empty() && node.hello.model != model)) continue;
    least = least == 0 ? node.hello.context_tokens : std::min(least, node.hello.context_tokens);
  }
  return least;
}

std::vector<Conductor::NodeStatus> Conductor::nodes(TimePoint now) const {
  std::vector<NodeStatus> out;
  for (const auto& [name, node] : nodes_) {
    NodeStatus s;
    s.name = name;
    s.instance = node.instance;
    s.role = node.hello.role;
    s.lacks = lacking(node);
    s.state = node.draining ? NodeState::drain : s.lacks.empty() ? NodeState::ready : NodeState::partial;
    s.model = node.hello.model;
    s.http = node.hello.http;
    s.labels = node.hello.labels;
    s.control_uri = node.hello.control_uri;
    s.load = node.load;
    s.page_bytes = node.hello.page_bytes;
    s.page_count = node.hello.page_count;
    s.requests = static_cast<uint32_t>(node.queued.size()) + node.rows;
    s.queue_s = node.queued.empty() ? 0 : to_seconds(std::max(Duration{}, node.busy_until - now));
    s.up = now - node.since;
    s.blocks = index_.resident_count(node.ordinal);
    s.heartbeats = node.heartbeats;
    s.prefill_error = node.predictor.prefill_error().mape();
    s.step_error = node.predictor.step_error().mape();
    out.push_back(std::move(s));
  }
  return out;
}

Result<void> Conductor::drain(const std::string& name, bool on, Actions& out) {
  Node* node = find_node(name);
  if (!node) return Error{Code::not_found, "no node is called " + name + "; mc-conductor ps lists them"};
  if (node->hello.role == wire::Role::stage) {
    const std::string leader = name.substr(0, name.rfind('.'));
    return Error{Code::invalid,
                 name + " is a stage of the pipeline " + leader + ", which drains as a whole: drain " + leader};
  }
  if (!on && node->load.leaving)
    return Error{Code::invalid, name + " was told to stop and drains by itself; start it again instead"};
  node->draining = on;
  node->drain_known = true;
  board_stale_ = nodes_changed_ = true;
  room_changed();
  out.push_back(Send{name, node->instance, wire::Drain{on}});
  return {};
}

}  // namespace mc::node

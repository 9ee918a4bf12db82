// Who may come in and when its turn is: pins, quotas, held requests, sessions. A held request waits here, not in a
// node's queue, so that the order can still change (priorities, tenants) and its place is chosen by the cluster of
// that moment. It leaves by a turn, at its deadline, when its TTFT promise cannot be kept any more, or with its client.

#include <algorithm>

#include "base/assert.h"
#include "node/conductor.h"
#include "wire/codec.h"

namespace mc::node {

namespace {

constexpr uint32_t kTriesMax = 64;      // places that are sought in vain before other events have their turn
constexpr size_t kSessionsMax = 16384;  // remembered
constexpr double kDelayWorth = 0.5;     // a request may be late by this share of the work it saves others
constexpr double kPrefixSlackS = 0.1;   // beyond what the node that computes a prefix was predicted to take

}  // namespace

// ---- may it come in? -------------------------------------------------------------------------

// Whether it may come in, before its blocks are looked up and its place is sought.
std::optional<Refusal> Conductor::refusal_of(const Request& r, TimePoint now) const {
  const Submit& submit = r.submit;
  if (std::string why = wrong_pin(submit); !why.empty()) return Refusal{Reason::invalid, std::move(why)};
  if (!namespace_of(submit.model)) return Refusal{Reason::invalid, "no node announced a KV namespace"};
  if (std::string why = too_long(submit); !why.empty()) return Refusal{Reason::context_length_exceeded, std::move(why)};
  if (auto drained = drained_pin(submit)) return drained;
  if (const auto refused = fair_.refusal(r.tenant, static_cast<double>(submit.ids.size()), seconds_of(now)))
    return Refusal{
        .reason = Reason::tenant_quota, .message = quota_text(r.tenant, *refused), .retry_s = refused->retry_s};
  return std::nullopt;
}

std::string Conductor::wrong_pin(const Submit& submit) const {
  for (const auto& [field, name, role] : {std::tuple{"prefill", &submit.pin_prefill, wire::Role::prefill},
                                          std::tuple{"decode", &submit.pin_decode, wire::Role::decode}}) {
    if (name->empty()) continue;
    const Node* node = find_node(*name);
    if (node && node->hello.role == role) continue;
    std::string known;
    for (const auto& [other, n] : nodes_)
      if (n.hello.role == role && known.size() < 200) known += (known.empty() ? "" : ", ") + other;
    return std::string("mc.pin.") + field + " names " + name->substr(0, 64) + ", which is " +
           (node ? "a " + std::string(wire::to_string(node->hello.role)) + " node" : "not in the cluster") + "; the " +
           field + " nodes are " + known;
  }
  return "";
}

// Nobody knows when a drain is taken back: a request that insists on the node is told so at once.
std::optional<Refusal> Conductor::drained_pin(const Submit& submit) const {
  for (const auto& [reason, field, name] : {std::tuple{Reason::no_prefill, "prefill", &submit.pin_prefill},
                                            std::tuple{Reason::no_decode, "decode", &submit.pin_decode}}) {
    const Node* node = name->empty() ? nullptr : find_node(*name);
    if (node && node->draining)
      return Refusal{
          reason, std::string("mc.pin.") + field + " names " + *name + ", which is draining and takes no new requests"};
  }
  return std::nullopt;
}

std::string Conductor::too_long(const Submit& submit) const {
  const uint32_t most = context_tokens(submit.model);
  if (most == 0 || fits_context(submit.ids.size(), 0, submit.stopping.max_tokens, most)) return "";
  return "prompt of " + std::to_string(submit.ids.size()) + " tokens; with its answer the nodes here hold " +
         std::to_string(most) + ": shorten it, or raise their --kv-mem";
}

std::optional<Conductor::Unpaid> Conductor::pay(const std::string& name, double tokens, TimePoint now) {
  const uint32_t tenant = fair_.find(name);
  if (const auto refused = fair_.refusal(tenant, tokens, seconds_of(now)))
    return Unpaid{quota_text(tenant, *refused), refused->retry_s};
  fair_.charge(tenant, tokens, seconds_of(now));
  return std::nullopt;
}

std::string Conductor::quota_text(uint32_t number, const sched::FairQueue::Refusal& refusal) const {
  const sched::Tenant& tenant = fair_.tenant(number);
  const auto whole = [](double v) { return std::to_string(static_cast<int64_t>(v)); };
  if (refusal.why == sched::FairQueue::Refusal::Why::requests)
    return "tenant " + tenant.name + " has " + whole(refusal.level) +
           " unfinished requests, all that it may have; each of n answers counts";
  return "tenant " + tenant.name + " has used its " + whole(tenant.tokens_per_s) +
         " tokens/s: " + whole(refusal.level) + " tokens are left, the prompt needs " + whole(refusal.needed);
}

void Conductor::set_tenants(std::span<const sched::Tenant> tenants) {
  std::vector<std::string> before;
  for (uint32_t i = 0; i < fair_.tenant_count(); ++i) before.push_back(fair_.tenant(i).name);
  fair_.set_tenants(tenants);
  tenant_counts_.resize(fair_.tenant_count());
  for (uint32_t i = 1; i < before.size(); ++i) {
    if (fair_.tenant(i).name == before[i]) continue;  // else another tenant has its number now
    tenant_counts_[i] = {};
    std::erase_if(session_order_, [&](const auto& at) { return at.second.first == i; });
    std::erase_if(sessions_, [&](const auto& at) { return at.first.first == i; });
  }
}

std::vector<Conductor::TenantStatus> Conductor::tenants(TimePoint now) const {
  std::vector<TenantStatus> out;
  for (uint32_t i = 0; i < fair_.tenant_count(); ++i)
    out.push_back({fair_.tenant(i).name, fair_.waiting(i), fair_.unfinished(i), fair_.level(i, seconds_of(now)),
                   tenant_counts_[i].tokens, tenant_counts_[i].submitted, tenant_counts_[i].rejected});
  return out;
}

// ---- its turn --------------------------------------------------------------------------------

bool Conductor::holding() const {
  using Hold = ConductorOptions::Hold;
  return options_.hold == Hold::on ||
         (options_.hold == Hold::automatic && (fair_.named_count() > 0 || prioritised_ > 0 || !fair_.empty()));
}

double Conductor::queue_of(const Node& node, TimePoint now) const {
  return node.queued.empty() ? 0 : to_seconds(std::max(Duration{}, node.busy_until - now));
}

sched::FairQueue::Entry Conductor::entry_of(const Request& r) const {
  return {r.submit.req,          r.tenant, r.submit.priority, static_cast<double>(r.submit.ids.size()), r.work_s,
          seconds_of(r.arrived), 0};
}

/// Predicted seconds until its turn: the work that goes before it, spread over the nodes, after the shortest queue.
double Conductor::ahead_s(const Request& r, TimePoint now) const {
  uint32_t nodes = 0;
  double least_s = 1e9;
  for (const auto& [name, node] : nodes_) {
    if (!serves(node, wire::Role::prefill, r.submit.model) || node.draining) continue;
    ++nodes;
    least_s = std::min(least_s, queue_of(node, now));
  }
  return least_s + fair_.work_before(entry_of(r), seconds_of(now)) / std::max(1u, nodes);
}

// Rejected at once when its turn would come too late; else it waits.
void Conductor::hold(Request& r, TimePoint now, Actions& out) {
  static const sched::Admission* const everybody = sched::find_admission("none");
  sched::Options options = options_for(r);
  options.admission = everybody;
  Rng draw = rng_;
  sched::Placement& dry = placement_;
  sched::place(look(r, now), *options_.policy, options, draw, dry);
  if (dry.candidate < 0) return void(place(r, now, out));  // it says why
  r.work_s = dry.candidates[static_cast<size_t>(dry.candidate)].prefill_s;
  if (options.ttft_slo_s > 0 && options_.sched.admission != everybody) {
    const double predicted_s = ahead_s(r, now) + r.work_s;
    if (!fair_.empty() && predicted_s > options.ttft_slo_s) {
      const Miss miss{sched::Bound::ttft, predicted_s, options.ttft_slo_s};
      return fail(r, Reply::Kind::rejected, RequestStage::route,
                  {Reason::predicted_slo_miss,
                   miss.text() + " with " + std::to_string(fair_.size()) + " requests waiting", miss},
                  now, out);
    }
    r.expires = after(r.arrived, from_seconds(std::max(0.0, options.ttft_slo_s - r.work_s) + 1e-3));
  }
  r.held = true;
  r.prepared_at = memberships_;
  fair_.push(entry_of(r));
  watch(r);
  look_at_held_ = true;
}

// A node has room that it had not, or is another one: who found no place may find one.
void Conductor::room_changed() {
  ++rooms_;
  look_at_held_ = true;
}

// Whether the nodes are there that it may go to, busy or not.
bool Conductor::has_nodes(const Request& r) const {
  const auto there = [&](const std::string& pin, wire::Role role) {
    const Node* node = pin.empty() ? nullptr : find_node(pin);
    return pin.empty() || (node && serves(*node, role, r.submit.model) && !node->draining);
  };
  return unready(r.submit.model) == Reason::none && there(r.submit.pin_prefill, wire::Role::prefill) &&
         there(r.submit.pin_decode, wire::Role::decode);
}

// After a change of members: who has no node left waits for one as long as a request that ran already would.
void Conductor::bound_held(TimePoint now) {
  nodes_changed_ = false;
  if (fair_.empty()) return;
  for (auto& [id, r] : requests_) {
    if (!r.held) continue;
    if (has_nodes(r)) {
      r.parked_until = kNever;
      if (r.aside.kind == Obstacle::Kind::members) recall(id);
    } else if (r.parked_until == kNever) {
      park(r, now);
    }
  }
}

// Asks those whose turn it is, in order, while a node is about to be free. Who cannot use it (its node is busy, its
// prefix is on its way) is set aside until that changes, so that however many of them there are, they hold up neither
// others nor their own tenant, nor are they looked at again meanwhile.
void Conductor::serve_held(TimePoint now, Actions& out) {
  if (now >= next_room_) ++rooms_;
  look_at_held_ = held_rest_ = false;
  recall_open(now);
  uint32_t tries = 0;
  while (tries < kTriesMax && any_idle(now)) {
    auto next = fair_.pop(seconds_of(now));
    if (!next) break;
    Request& r = requests_.at(next->id);
    if (now >= r.expires) {
      r.held = false;
      refuse_late(r, now, out);
      continue;
    }
    if (Obstacle obstacle = obstacle_of(r, now); obstacle.kind != Obstacle::Kind::none) {
      set_aside(r, std::move(*next), std::move(obstacle));
      continue;
    }
    // Its blocks may be called otherwise by the nodes that are here now.
    if (r.prepared_at != memberships_ && prepare(r)) r.prepared_at = memberships_;
    r.held = false;
    if (place(r, now, out, true)) continue;
    r.held = true;
    ++tries;
    Obstacle obstacle = obstacle_of(r, now);
    if (obstacle.kind == Obstacle::Kind::none) obstacle.kind = Obstacle::Kind::room;
    set_aside(r, std::move(*next), std::move(obstacle));
  }
  held_rest_ |= tries == kTriesMax && fair_.aside() < fair_.size();
  look_at_held_ = false;
  plan_next_turn(now);
}

void Conductor::plan_next_turn(TimePoint now) {
  next_room_ = next_turn_ = kNever;
  if (fair_.empty()) return;
  for (const auto& [name, node] : nodes_) {
    if (node.hello.role != wire::Role::prefill || node.queued.empty()) continue;
    const TimePoint idle_at = node.busy_until - options_.hold_lead;
    if (idle_at > now) next_room_ = std::min(next_room_, idle_at + 1us);
  }
  if (!prefix_ends_.empty()) next_room_ = std::min(next_room_, std::max(prefix_ends_.begin()->first, now + 1us));
  next_turn_ = held_rest_ ? std::min(next_room_, now + 1ms) : next_room_;
}

void Conductor::refuse_late(Request& r, TimePoint now, Actions& out) {
  const Miss miss{sched::Bound::ttft, to_seconds(now - r.arrived) + r.work_s, options_for(r).ttft_slo_s};
  fail(r, Reply::Kind::rejected, RequestStage::route,
       {Reason::predicted_slo_miss, "its turn did not come in time: " + miss.text(), miss}, now, out);
}

// Computing a prefix again while a node is at it takes work from others; waiting for it makes this request late, by
// what the wait is longer than the work it saves. Worth it while that is at most half of the work saved. Once a
// request, and not much longer than was predicted: a producer that dies or dawdles holds nobody up.
bool Conductor::wait_for_prefix(Request& r, const sched::Snapshot& snapshot, const sched::Candidate& chosen,
                                TimePoint now) {
  if (r.prefix_until != kNever && now < r.prefix_until) {
    const Node* producer = find_node(r.summary.held_for.node);
    bool pending = false;
    if (producer)
      for (const auto& match : index_.match(std::span(r.hashes).first(r.hashes.size())))
        pending |= match.node == producer->ordinal && match.expected > match.resident;
    if (pending) return r.prefix_left = producer->left, true;
  }
  r.prefix_until = kNever;
  if (r.prefix_tried || !r.submit.may_reuse()) return false;
  const uint32_t has = chosen.local_blocks + (chosen.holder >= 0 ? chosen.fetch_blocks : 0);
  const sched::PrefillView& here = snapshot.prefill[chosen.node];
  const sched::HolderView* best = nullptr;
  const auto name_of = [&](const sched::HolderView& h) -> const NodeId& {
    return snapshot.holder_names[static_cast<size_t>(&h - snapshot.holders.data())];
  };
  for (const sched::HolderView& h : snapshot.holders) {
    if (h.pending_blocks <= std::max(has, h.readable_blocks) || name_of(h) == here.name) continue;
    const double saved_s =
        chosen.prefill_s - here.cost.prefill(snapshot.tokens, sched::reused_tokens(snapshot, h.pending_blocks));
    const bool in_time = r.expires == kNever || after(now, from_seconds(h.pending_s)) < r.expires;
    if (h.pending_s <= (1 + kDelayWorth) * saved_s && in_time && (!best || h.pending_blocks > best->pending_blocks))
      best = &h;
  }
  if (!best) return false;
  r.prefix_tried = true;
  r.prefix_until = std::min(r.deadline, after(now, from_seconds(2 * best->pending_s + kPrefixSlackS)));
  if (const Node* producer = find_node(name_of(*best))) r.prefix_left = producer->left;
  if (r.summary.held_for.kind == Held::Kind::none) ++stats_.held_prefix;
  r.summary.held_for = {Held::Kind::prefix, name_of(*best)};
  return true;
}

// ---- sessions --------------------------------------------------------------------------------

void Conductor::remember_session(const Request& r) {
  if (r.submit.session.empty()) return;
  auto [at, fresh] = sessions_.try_emplace({r.tenant, r.submit.session});
  if (!fresh) session_order_.erase(at->second.second);
  at->second = {r.prefill, ++session_uses_};
  session_order_.emplace(session_uses_, at->first);
  if (sessions_.size() <= kSessionsMax) return;
  sessions_.erase(session_order_.begin()->second);
  session_order_.erase(session_order_.begin());
}

}  // namespace mc::node

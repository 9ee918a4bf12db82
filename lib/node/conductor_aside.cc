// Held requests that could not run if it were their turn stand aside, grouped by what must change first, and come back
// into line when it does: a few of each tenant at a time, in its order, so that an event costs what it can change, not
// what waits. Beside it: when each request must be looked at again whatever happens (deadline, promise, patience).
//
//   members  no node for it is here                     back when one comes (bound_held)
//   pin      its prefill node is away or busy           back when that has room
//   prefix   a node computes its prefix                 back when that node ends a request, dies or takes too long
//   room     it was asked, and no idle node would do    back when any node gets room

#include <algorithm>

#include "base/assert.h"
#include "node/conductor.h"

namespace mc::node {

namespace {

// Requests of a tenant that are recalled before other events have their turn: few for one node, many for a change.
constexpr uint32_t kPinRecallMax = 4, kRecallMax = 64;

}  // namespace

// What is known without looking for a place.
Conductor::Obstacle Conductor::obstacle_of(const Request& r, TimePoint now) const {
  using Kind = Obstacle::Kind;
  if (r.parked_until != kNever) return {Kind::members, ""};
  if (!r.submit.pin_prefill.empty()) {
    const Node* pinned = find_node(r.submit.pin_prefill);
    if (!pinned || pinned->draining || queue_of(*pinned, now) > to_seconds(options_.hold_lead))
      return {Kind::pin, r.submit.pin_prefill};
  }
  if (r.prefix_until == kNever || now >= r.prefix_until) return {};
  const NodeId& name = r.summary.held_for.node;
  const Node* producer = find_node(name);
  return producer && producer->left == r.prefix_left ? Obstacle{Kind::prefix, name} : Obstacle{};
}

/// Changes when what the obstacle stands for has changed.
uint64_t Conductor::change_of(const Obstacle& obstacle) const {
  if (obstacle.kind == Obstacle::Kind::room) return rooms_;
  const Node* producer = find_node(obstacle.node);
  return producer ? producer->left + 1 : 0;
}

bool Conductor::is_open(const Obstacle& obstacle, const Aside& aside, TimePoint now) const {
  using Kind = Obstacle::Kind;
  if (obstacle.kind == Kind::members) return false;
  if (obstacle.kind != Kind::pin) return aside.seen != change_of(obstacle);
  const Node* node = find_node(obstacle.node);
  return node && !node->draining && queue_of(*node, now) <= to_seconds(options_.hold_lead);
}

void Conductor::set_aside(Request& r, sched::FairQueue::Entry entry, Obstacle obstacle) {
  MC_ASSERT(r.aside.kind == Obstacle::Kind::none);
  auto [at, fresh] = asides_.try_emplace(obstacle);
  if (fresh) at->second.seen = at->second.asking = change_of(obstacle);
  if (obstacle.kind == Obstacle::Kind::prefix) prefix_ends_.emplace(r.prefix_until, r.submit.req);
  r.aside = std::move(obstacle);
  r.aside_key = fair_.set_aside(std::move(entry));
  at->second.members[r.tenant].emplace(r.aside_key, r.submit.req);
}

/// Out of its group; the fair queue is not told.
void Conductor::leave_aside(Request& r) {
  if (r.aside.kind == Obstacle::Kind::none) return;
  const auto group = asides_.find(r.aside);
  auto& of_tenant = group->second.members.at(r.tenant);
  of_tenant.erase(r.aside_key);
  if (of_tenant.empty()) group->second.members.erase(r.tenant);
  if (group->second.members.empty()) asides_.erase(group);
  if (r.aside.kind == Obstacle::Kind::prefix) prefix_ends_.erase({r.prefix_until, r.submit.req});
  r.aside = {};
}

void Conductor::recall(const RequestId& id) {
  leave_aside(requests_.at(id));
  fair_.recall(id);
  look_at_held_ = true;
}

/// The first few of each tenant, or the next ones since the last change; true: there are more.
bool Conductor::recall_some(const Obstacle& obstacle, Aside& aside) {
  const bool by_change = obstacle.kind != Obstacle::Kind::pin;
  const uint64_t change = by_change ? change_of(obstacle) : 0;
  if (!by_change || aside.asking != change) aside.asked.clear();
  aside.asking = change;
  std::vector<RequestId> back;
  bool more = false;
  for (const auto& [tenant, members] : aside.members) {
    const auto asked = aside.asked.find(tenant);
    auto at = asked == aside.asked.end() ? members.begin() : members.upper_bound(asked->second);
    for (uint32_t n = 0; n < (by_change ? kRecallMax : kPinRecallMax) && at != members.end(); ++n, ++at) {
      back.push_back(at->second);
      aside.asked[tenant] = at->first;
    }
    more |= at != members.end();
  }
  if (by_change && !more) aside.seen = change;
  for (const RequestId& id : back) recall(id);  // the group may be gone with the last of them
  return more;
}

void Conductor::recall_open(TimePoint now) {
  while (!prefix_ends_.empty() && prefix_ends_.begin()->first <= now) recall(RequestId(prefix_ends_.begin()->second));
  if (!any_idle(now)) return;
  std::vector<Obstacle> open;
  for (const auto& [obstacle, aside] : asides_)
    if (is_open(obstacle, aside, now)) open.push_back(obstacle);
  for (const Obstacle& obstacle : open)
    if (const auto at = asides_.find(obstacle); at != asides_.end()) held_rest_ |= recall_some(obstacle, at->second);
}

void Conductor::check_aside() const {
  size_t count = 0;
  for (const auto& [obstacle, aside] : asides_) {
    MC_ASSERT(!aside.members.empty());
    for (const auto& [tenant, members] : aside.members) {
      MC_ASSERT(!members.empty());
      count += members.size();
      for (const auto& [key, id] : members) {
        const Request& r = requests_.at(id);
        MC_ASSERT(r.held && r.tenant == tenant && r.aside == obstacle && r.aside_key == key);
      }
    }
  }
  MC_ASSERT_EQ(count, fair_.aside());
  MC_ASSERT_EQ(timers_.size(), requests_.size());
  for (const auto& [id, r] : requests_) {
    MC_ASSERT(r.timer <= due(r));
    MC_ASSERT(timers_.contains({r.timer, id}));
  }
}

// ---- when to look at a request again ---------------------------------------------------------

TimePoint Conductor::due(const Request& r) const {
  return std::min({r.deadline, r.placed ? kNever : r.parked_until, r.held ? r.expires : kNever});
}

/// To be called when it may be due earlier; later is found out when the timer ends.
void Conductor::watch(Request& r) {
  const TimePoint at = due(r);
  if (at >= r.timer && timers_.contains({r.timer, r.submit.req})) return;
  timers_.erase({r.timer, r.submit.req});
  r.timer = at;
  timers_.emplace(at, r.submit.req);
}

// Deadlines, promises that cannot be kept any more, and waits for a node that have lasted too long.
void Conductor::end_due(TimePoint now, Actions& out) {
  std::vector<RequestId> ended;
  for (auto at = timers_.begin(); at != timers_.end() && at->first <= now; ++at) ended.push_back(at->second);
  std::vector<RequestId> late, unplaceable, expired;
  for (const RequestId& id : ended) {
    Request& r = requests_.at(id);
    timers_.erase({r.timer, id});
    r.timer = due(r);
    timers_.emplace(r.timer, id);
    if (now >= r.deadline)
      late.push_back(id);
    else if (r.held && now >= r.expires)
      expired.push_back(id);
    else if (!r.placed && now >= r.parked_until)  // held ones too
      unplaceable.push_back(id);
  }
  for (const auto& id : late) {
    Request& r = requests_.at(id);
    cancel_workers(r, CancelReason::deadline, out);
    fail(r, Reply::Kind::failed, stage_of(r),
         {Reason::deadline_exceeded, "deadline of " + std::to_string((r.submit.deadline + 999us) / 1ms) +
                                         " ms passed in stage " + std::string(to_string(stage_of(r)))},
         now, out);
  }
  for (const auto& id : expired) refuse_late(requests_.at(id), now, out);
  for (const auto& id : unplaceable) {
    Request& r = requests_.at(id);
    Reason reason = unready(r.submit.model);
    if (reason == Reason::none) reason = Reason::no_decode;
    if (r.held) {
      fail(r, Reply::Kind::rejected, RequestStage::route,
           {reason, "it waited for its turn, and no node that may take it was there for " +
                        std::to_string(options_.park_max / 1ms) + " ms"},
           now, out);
      continue;
    }
    fail(r, Reply::Kind::failed, stage_of(r),
         {reason, "no node took the request again" + (r.avoid.empty() ? "" : " after " + r.avoid + " failed")}, now,
         out);
  }
}

}  // namespace mc::node

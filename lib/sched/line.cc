#include "sched/line.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::sched {
namespace {

constexpr uint32_t kTriesMax = 64;    // requests that are tried without success before other events are handled
constexpr uint32_t kAsidesMax = 512;  // requests that are set aside untried before other events are handled
// Requests of a tenant that are recalled before other events are handled: few when one node changes, many when the
// members change.
constexpr uint32_t kPinRecallMax = 4, kRecallMax = 64;
// Requests of a tenant that admission may refuse for the decode load before the other requests of the tenant go on
// waiting: a load that is too high for the first of them is mostly too high for the next.
constexpr uint32_t kRefusedMax = 4;
constexpr Duration kLoadPause = 1s;    // the next few that wait for load are asked after this time
constexpr double kDelayWorth = 0.5;    // a request may be late by this share of the work that its wait saves
constexpr double kPrefixSlackS = 0.1;  // extra wait beyond the predicted time of the node that computes a prefix

}  // namespace

// ---- quotas ----------------------------------------------------------------------------------

std::optional<FairQueue::Refusal> Line::admit(uint32_t tenant, int priority, double tokens, TimePoint now) {
  if (auto refused = fair_.admit(tenant, tokens, seconds_of(now))) return refused;
  prioritised_ += priority != 0;
  return std::nullopt;
}

void Line::leave(uint32_t tenant, int priority, std::optional<double> refund_tokens, TimePoint now) {
  fair_.leave(tenant);
  if (refund_tokens) fair_.refund(tenant, *refund_tokens, seconds_of(now));
  MC_ASSERT(priority == 0 || prioritised_ > 0);
  prioritised_ -= priority != 0;
}

// ---- waiting ---------------------------------------------------------------------------------

bool Line::holds(int priority) const {
  using Hold = LineOptions::Hold;
  return options_.hold == Hold::on ||
         (options_.hold == Hold::automatic &&
          (fair_.named_count() > 0 || prioritised_ > 0 || priority != 0 || !fair_.empty()));
}

FairQueue::Entry Line::entry_of(const HeldRequest& r) const {
  return {r.id, r.tenant, r.priority, r.tokens, r.work_s, seconds_of(r.arrived), 0};
}

double Line::ahead_s(const HeldRequest& request, const Board::Queues& queues, TimePoint now) const {
  return queues.least_s + fair_.work_before(entry_of(request), seconds_of(now)) / std::max(1u, queues.nodes);
}

std::optional<double> Line::predicted_miss_s(const HeldRequest& request, double ttft_slo_s, const Board::Queues& queues,
                                             TimePoint now) const {
  MC_ASSERT(ttft_slo_s > 0 && request.work_s >= 0);
  if (fair_.empty()) return std::nullopt;
  const double ttft_s = ahead_s(request, queues, now) + request.work_s;
  return ttft_s > ttft_slo_s ? std::optional(ttft_s) : std::nullopt;
}

void Line::push(HeldRequest request) {
  fair_.push(entry_of(request));
  const auto [at, fresh] = held_.try_emplace(request.id);
  MC_ASSERT(fresh);
  at->second.request = std::move(request);
  MC_ASSERT_EQ(held_.size(), fair_.size() + (turn_ ? 1 : 0));
  look_again_ = true;
}

void Line::erase(const RequestId& id) {
  const auto at = held_.find(id);
  if (at == held_.end()) return;
  leave_group(at->second);
  if (turn_ && turn_->id == id) {
    turn_.reset();
  } else {
    const bool waited = fair_.erase(id);
    MC_ASSERT(waited);
  }
  held_.erase(at);
  MC_ASSERT_EQ(held_.size(), fair_.size() + (turn_ ? 1 : 0));
}

// ---- groups ----------------------------------------------------------------------------------

// The cause of a wait that is known without a search for a place.
Wait Line::wait_of(const Held& held, const Board& board, TimePoint now) const {
  if (!held.has_nodes) return {Wait::For::members, ""};
  if (const NodeId& pin = held.request.pin; !pin.empty()) {
    const int slot = board.find(pin);
    if (slot < 0 || board.is_draining(slot) || board.queue_s(slot, now) > to_seconds(options_.lead))
      return {Wait::For::pin, pin};
  }
  if (held.prefix_until == kNever || now >= held.prefix_until) return {};
  const int slot = board.find(held.prefix_node);
  if (slot < 0 || board.ended_prefills(slot) != held.prefix_seen) return {};
  return {Wait::For::prefix, held.prefix_node};
}

/// A number that changes when the awaited state of the group has changed.
uint64_t Line::change_of(const Wait& wait, const Board& board) const {
  if (wait.why == Wait::For::room || wait.why == Wait::For::load) return rooms_;
  const int slot = board.find(wait.of);
  return slot < 0 ? 0 : board.ended_prefills(slot) + 1;
}

bool Line::is_open(const Wait& wait, const Group& group, const Board& board, TimePoint now) const {
  if (wait.why == Wait::For::members) return false;
  if (wait.why != Wait::For::pin) return group.sweeping || group.seen != change_of(wait, board);
  const int slot = board.find(wait.of);
  return slot >= 0 && !board.is_draining(slot) && board.queue_s(slot, now) <= to_seconds(options_.lead);
}

void Line::set_aside(Held& held, FairQueue::Entry entry, Wait wait, const Board& board) {
  MC_ASSERT(held.wait.why == Wait::For::nothing && wait.why != Wait::For::nothing);
  auto [at, fresh] = groups_.try_emplace(wait);
  if (fresh) at->second.seen = at->second.asking = change_of(wait, board);
  if (wait.why == Wait::For::prefix) {
    MC_ASSERT(held.prefix_until != kNever);
    prefix_ends_.emplace(held.prefix_until, held.request.id);
  }
  held.wait = std::move(wait);
  held.recalled = Recalled::no;
  held.key = fair_.set_aside(std::move(entry));
  at->second.members[held.request.tenant].emplace(held.key, held.request.id);
}

/// Removes the request from its group. The fair queue is not changed.
void Line::leave_group(Held& held) {
  if (held.wait.why == Wait::For::nothing) return;
  const auto group = groups_.find(held.wait);
  MC_ASSERT(group != groups_.end());
  auto& of_tenant = group->second.members.at(held.request.tenant);
  const size_t left = of_tenant.erase(held.key);
  MC_ASSERT_EQ(left, 1u);
  if (of_tenant.empty()) group->second.members.erase(held.request.tenant);
  if (group->second.members.empty()) groups_.erase(group);
  if (held.wait.why == Wait::For::prefix) prefix_ends_.erase({held.prefix_until, held.request.id});
  held.wait = {};
}

void Line::recall(const RequestId& id, Recalled by) {
  Held& held = held_.at(id);
  MC_ASSERT(held.wait.why != Wait::For::nothing);
  MC_ASSERT(by == Recalled::no || held.wait.why == Wait::For::load);
  leave_group(held);
  held.recalled = by;
  fair_.recall(id);
  look_again_ = true;
}

// Whether requests of its tenant that go before it are waiting for the load that this one would wait for.
bool Line::is_behind(const Held& held) const {
  const auto at = groups_.find({Wait::For::load, held.request.destination});
  if (at == groups_.end()) return false;
  const Group& group = at->second;
  const auto members = group.members.find(held.request.tenant);
  if (members == group.members.end() || fair_.key(*turn_) < members->second.begin()->first) return false;
  if (held.recalled == Recalled::no) return true;
  const bool swept = held.recalled == Recalled::by_sweep;
  const auto& walks = swept ? group.sweep : group.front;
  const auto walk = walks.find(held.request.tenant);
  return walk != walks.end() && walk->second.refused >= kRefusedMax && (swept || group.asking == rooms_);
}

uint32_t Line::recall_max(const Wait& wait, const Walk& walk) const {
  if (wait.why == Wait::For::pin) return kPinRecallMax;
  if (wait.why != Wait::For::load) return kRecallMax;
  return kRefusedMax - std::min(kRefusedMax, walk.refused);
}

/// Adds the next requests of the walk to `back`, at most `most`. True: more are left.
bool Line::walk_on(const Members& members, Walk& walk, uint32_t most, std::vector<RequestId>& back) {
  auto at = walk.last ? members.upper_bound(*walk.last) : members.begin();
  const auto is_over = [&] { return at == members.end() || (walk.end && at->first > *walk.end); };
  for (uint32_t n = 0; n < most && !is_over(); ++n, ++at) {
    back.push_back(at->second);
    walk.last = at->first;
  }
  return most > 0 && !is_over();
}

/// Recalls the first requests of each tenant, or the next ones since the last change, and after a pause the next ones
/// of the sweep. True: more are left.
bool Line::recall_some(const Wait& wait, Group& group, const Board& board) {
  const bool by_change = wait.why != Wait::For::pin;
  const uint64_t change = by_change ? change_of(wait, board) : 0;
  const bool changed = !by_change || group.seen != change;
  if (!by_change || group.asking != change) group.front.clear();
  group.asking = change;
  std::vector<RequestId> back, swept;
  bool more = false, more_of_sweep = false;
  for (const auto& [tenant, members] : group.members) {
    Walk& front = group.front[tenant];
    if (changed) more |= walk_on(members, front, recall_max(wait, front), back);
    if (wait.why != Wait::For::load) continue;
    Walk& sweep = group.sweep[tenant];
    if (changed && front.last && (!sweep.last || *sweep.last < *front.last)) sweep.last = front.last;
    if (group.sweeping) more_of_sweep |= walk_on(members, sweep, recall_max(wait, sweep), swept);
  }
  if (by_change && !more) group.seen = change;
  group.sweeping = more_of_sweep;
  const Recalled by = wait.why == Wait::For::load ? Recalled::by_change : Recalled::no;
  for (const RequestId& id : back) recall(id, by);  // the group may be erased with its last request
  for (const RequestId& id : swept) recall(id, Recalled::by_sweep);
  return more || more_of_sweep;
}

// The few that are too much for the decode nodes must not keep up the others: after each pause the sweep goes on. A
// sweep ends at the request that was the last one when it began, so that later requests do not prolong it.
void Line::end_pause() {
  pause_ends_ = kNever;
  for (auto at = groups_.lower_bound({Wait::For::load, ""}); at != groups_.end(); ++at) {
    Group& group = at->second;
    MC_ASSERT(at->first.why == Wait::For::load);
    group.sweeping = true;
    for (const auto& [tenant, members] : group.members) {
      Walk& sweep = group.sweep[tenant];
      sweep.refused = 0;
      const auto next = sweep.last ? members.upper_bound(*sweep.last) : members.begin();
      if (next == members.end() || (sweep.end && next->first > *sweep.end)) sweep.last.reset(), sweep.end.reset();
      if (!sweep.end) sweep.end = members.rbegin()->first;
    }
  }
}

void Line::recall_open(const Board& board, TimePoint now) {
  while (!prefix_ends_.empty() && prefix_ends_.begin()->first <= now)
    recall(RequestId(prefix_ends_.begin()->second), Recalled::no);
  if (!board.any_idle(options_.lead, now)) return;
  std::vector<Wait> open;
  for (const auto& [wait, group] : groups_)
    if (is_open(wait, group, board, now)) open.push_back(wait);
  for (const Wait& wait : open)
    if (const auto at = groups_.find(wait); at != groups_.end()) more_ |= recall_some(wait, at->second, board);
}

// ---- turns -----------------------------------------------------------------------------------

void Line::room_changed() {
  ++rooms_;
  look_again_ = true;
}

void Line::set_has_nodes(const RequestId& id, bool has_nodes) {
  Held& held = held_.at(id);
  held.has_nodes = has_nodes;
  if (has_nodes && held.wait.why == Wait::For::members) recall(id, Recalled::no);
}

void Line::begin_round(const Board& board, TimePoint now) {
  MC_ASSERT(!turn_);
  if (now >= next_room_) ++rooms_;
  if (now >= pause_ends_) end_pause();
  look_again_ = more_ = false;
  tries_ = asides_ = 0;
  recall_open(board, now);
}

std::optional<RequestId> Line::take_turn(const Board& board, TimePoint now) {
  MC_ASSERT(!turn_);
  while (tries_ < kTriesMax && asides_ < kAsidesMax && board.any_idle(options_.lead, now)) {
    turn_ = fair_.pop(seconds_of(now));
    if (!turn_) return std::nullopt;
    Held& held = held_.at(turn_->id);
    Wait wait = wait_of(held, board, now);
    if (wait.why == Wait::For::nothing && is_behind(held)) wait = {Wait::For::load, held.request.destination};
    if (wait.why == Wait::For::nothing) return turn_->id;
    set_aside(held, std::move(*turn_), std::move(wait), board);
    turn_.reset();
    ++asides_;
  }
  return std::nullopt;
}

void Line::put_back(const RequestId& id, const Board& board, TimePoint now) {
  MC_ASSERT(turn_ && turn_->id == id);
  ++tries_;
  Held& held = held_.at(id);
  Wait wait = wait_of(held, board, now);
  if (wait.why == Wait::For::nothing)
    wait = held.refused ? Wait{Wait::For::load, held.request.destination} : Wait{Wait::For::room, ""};
  const bool swept = held.recalled == Recalled::by_sweep;
  set_aside(held, std::move(*turn_), wait, board);
  turn_.reset();
  if (wait.why != Wait::For::load) return;
  Group& group = groups_.at(wait);
  ++(swept ? group.sweep : group.front)[held.request.tenant].refused;
}

Line::Turn Line::turn_of(const RequestId& id, const Placement& placement) {
  Held& held = held_.at(id);
  held.refused = placement.candidate < 0 && placement.reason == NoPlace::predicted_slo_miss;
  if (placement.candidate >= 0) return Turn::go;
  if (placement.reason == NoPlace::no_prefill || placement.reason == NoPlace::no_pair) return Turn::wait;
  if (placement.reason == NoPlace::no_decode) return Turn::wait_for_nodes;
  MC_ASSERT(placement.reason == NoPlace::predicted_slo_miss);
  // A decode node may get room before the request's bound is missed. The predicted TTFT only grows with time.
  const bool bounded = held.request.expires != kNever;
  const bool ends = placement.verdict.bound == Bound::ttft || placement.verdict.hopeless;
  return bounded && !ends ? Turn::wait : Turn::refuse;
}

void Line::end_round(const Board& board, TimePoint now) {
  MC_ASSERT(!turn_);
  more_ |= (tries_ == kTriesMax || asides_ == kAsidesMax) && fair_.aside() < fair_.size();
  look_again_ = false;
  next_room_ = next_turn_ = kNever;
  if (fair_.empty()) return;
  next_room_ = board.next_idle(options_.lead, now);
  if (!prefix_ends_.empty()) next_room_ = std::min(next_room_, std::max(prefix_ends_.begin()->first, now + 1us));
  next_turn_ = more_ ? std::min(next_room_, now + 1ms) : next_room_;
  const bool waits_for_load = groups_.lower_bound({Wait::For::load, ""}) != groups_.end();
  if (!waits_for_load) {
    pause_ends_ = kNever;
  } else if (pause_ends_ == kNever) {
    pause_ends_ = now + kLoadPause;
  }
  next_turn_ = std::min(next_turn_, pause_ends_);
}

// ---- waiting for a prefix --------------------------------------------------------------------

const NodeId* Line::prefix_node(const RequestId& id, TimePoint now) const {
  const Held& held = held_.at(id);
  return held.prefix_until != kNever && now < held.prefix_until ? &held.prefix_node : nullptr;
}

void Line::keep_waiting(const RequestId& id, const Board& board) {
  Held& held = held_.at(id);
  if (const int slot = board.find(held.prefix_node); slot >= 0) held.prefix_seen = board.ended_prefills(slot);
}

std::optional<NodeId> Line::wait_for_prefix(const RequestId& id, const Snapshot& snapshot, const Candidate& chosen,
                                            const Board& board, TimePoint now) {
  Held& held = held_.at(id);
  held.prefix_until = kNever;
  if (held.prefix_tried) return std::nullopt;
  const uint32_t has = chosen.local_blocks + (chosen.holder >= 0 ? chosen.fetch_blocks : 0);
  const PrefillView& here = snapshot.prefill[chosen.node];
  int best = -1;
  for (size_t i = 0; i < snapshot.holders.size(); ++i) {
    const HolderView& h = snapshot.holders[i];
    if (h.pending_blocks <= std::max(has, h.readable_blocks) || snapshot.holder_names[i] == here.name) continue;
    const double saved_s =
        chosen.prefill_s - here.cost.prefill(snapshot.tokens, reused_tokens(snapshot, h.pending_blocks));
    const TimePoint expires = held.request.expires;
    const bool in_time = expires == kNever || after(now, from_seconds(h.pending_s)) < expires;
    const bool longer = best < 0 || h.pending_blocks > snapshot.holders[static_cast<size_t>(best)].pending_blocks;
    if (h.pending_s <= (1 + kDelayWorth) * saved_s && in_time && longer) best = static_cast<int>(i);
  }
  if (best < 0) return std::nullopt;
  const double pending_s = snapshot.holders[static_cast<size_t>(best)].pending_s;
  held.prefix_tried = true;
  held.prefix_until = std::min(held.request.deadline, after(now, from_seconds(2 * pending_s + kPrefixSlackS)));
  held.prefix_node = snapshot.holder_names[static_cast<size_t>(best)];
  keep_waiting(id, board);
  return held.prefix_node;
}

void Line::check() const {
  size_t count = 0;
  for (const auto& [wait, group] : groups_) {
    MC_ASSERT(!group.members.empty());
    for (const auto& [tenant, members] : group.members) {
      MC_ASSERT(!members.empty());
      count += members.size();
      for (const auto& [key, id] : members) {
        const Held& held = held_.at(id);
        MC_ASSERT(held.request.tenant == tenant && held.wait == wait && held.key == key);
      }
    }
  }
  MC_ASSERT(!turn_);
  MC_ASSERT_EQ(count, fair_.aside());
  MC_ASSERT_EQ(held_.size(), fair_.size());
}

}  // namespace mc::sched

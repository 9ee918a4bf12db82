#include "xfer_rdma/pool.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::xfer {

RdmaPool::Holder* RdmaPool::find(EndpointId endpoint) {
  const auto at =
      std::find_if(holders_.begin(), holders_.end(), [&](const Holder& holder) { return holder.endpoint == endpoint; });
  return at == holders_.end() ? nullptr : &*at;
}

bool RdmaPool::holds(EndpointId endpoint) const {
  return std::any_of(holders_.begin(), holders_.end(),
                     [&](const Holder& holder) { return holder.endpoint == endpoint; });
}

bool RdmaPool::want(EndpointId endpoint, size_t pairs, TimePoint now) {
  const auto waits = [&](const Waiter& waiter) { return waiter.endpoint == endpoint; };
  if (pairs == 0 || holds(endpoint) || std::any_of(line_.begin(), line_.end(), waits)) return false;
  line_.push_back({endpoint, std::min(pairs, max_), now});
  return true;
}

void RdmaPool::released(EndpointId endpoint) {
  line_.remove_if([&](const Waiter& waiter) { return waiter.endpoint == endpoint; });
  for (auto at = holders_.begin(); at != holders_.end(); ++at) {
    if (at->endpoint != endpoint) continue;
    MC_ASSERT_LE(at->pairs, held_);
    held_ -= at->pairs;
    MC_ASSERT(at->state == State::held || at->pairs <= leaving_);
    if (at->state != State::held) leaving_ -= at->pairs;
    MC_ASSERT_LE(leaving_, held_);
    const bool under_hand = hand_ == at;
    const auto next = holders_.erase(at);
    if (under_hand) hand_ = next;
    return;
  }
}

bool RdmaPool::used(EndpointId endpoint, TimePoint now) {
  Holder* holder = find(endpoint);
  if (holder == nullptr) return false;
  holder->used = now;
  holder->visited = true;
  return true;
}

bool RdmaPool::refused(EndpointId endpoint, TimePoint now) {
  Holder* holder = find(endpoint);
  if (holder == nullptr || holder->state != State::asked) return false;
  MC_ASSERT_LE(holder->pairs, leaving_);
  holder->state = State::held;
  holder->answer_by = kNever;
  leaving_ -= holder->pairs;
  used(endpoint, now);
  return true;
}

void RdmaPool::advance() {
  if (hand_ != holders_.end()) ++hand_;
  if (hand_ == holders_.end()) hand_ = holders_.begin();
}

/// The walk of SIEVE: at most two rounds, because the first may spare every holder.
RdmaPool::Holder* RdmaPool::idle_one(TimePoint now) {
  if (hand_ == holders_.end()) hand_ = holders_.begin();
  for (size_t i = 0; i < 2 * holders_.size(); ++i) {
    MC_ASSERT(hand_ != holders_.end());
    Holder& holder = *hand_;
    advance();
    if (holder.state != State::held || now - holder.used < kIdle) continue;
    if (!std::exchange(holder.visited, false)) return &holder;
  }
  return nullptr;
}

RdmaPool::Holder* RdmaPool::oldest(TimePoint now) {
  for (Holder& holder : holders_)
    if (holder.state == State::held && now - holder.granted >= kWaitMax) return &holder;
  return nullptr;
}

std::vector<RdmaPool::Step> RdmaPool::step(TimePoint now) {
  std::vector<Step> steps;
  MC_ASSERT(now_ <= now);
  now_ = now;
  const auto leave = [&](Holder& holder, State state, Step::Kind kind) {
    MC_ASSERT(holder.state < state);
    if (holder.state == State::held) leaving_ += holder.pairs;
    holder.state = state;
    holder.answer_by = state == State::forced ? kNever : now + kAnswer;
    steps.push_back({kind, holder.endpoint});
  };
  for (Holder& holder : holders_) {
    if (holder.answer_by > now) continue;
    if (holder.state == State::asked)
      leave(holder, State::insisted, Step::Kind::insist);
    else
      leave(holder, State::forced, Step::Kind::force);
  }
  while (!line_.empty() && held_ + line_.front().pairs <= max_) {
    const Waiter waiter = line_.front();
    line_.pop_front();
    MC_ASSERT(!holds(waiter.endpoint));
    held_ += waiter.pairs;
    holders_.push_back({.endpoint = waiter.endpoint, .pairs = waiter.pairs, .granted = now, .used = now});
    steps.push_back({Step::Kind::grant, waiter.endpoint});
  }
  if (line_.empty()) return steps;
  const auto enough = [&] { return held_ - leaving_ + line_.front().pairs <= max_; };
  while (!enough()) {
    Holder* holder = idle_one(now);
    if (holder == nullptr) break;
    leave(*holder, State::asked, Step::Kind::ask);
  }
  while (!enough() && line_.front().since + kWaitMax <= now) {
    Holder* holder = oldest(now);
    if (holder == nullptr) break;
    leave(*holder, State::insisted, Step::Kind::insist);
  }
  MC_ASSERT_LE(held_, max_);
  MC_ASSERT_LE(leaving_, held_);
  return steps;
}

TimePoint RdmaPool::due() const {
  TimePoint due = line_.empty() ? kNever : now_ + kIdle;
  for (const Holder& holder : holders_) due = std::min(due, holder.answer_by);
  return due;
}

}  // namespace mc::xfer

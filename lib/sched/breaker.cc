#include "sched/breaker.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::sched {

std::string_view to_string(BreakerState state) {
  switch (state) {
    case BreakerState::closed: return "closed";
    case BreakerState::open: return "open";
    case BreakerState::half_open: return "half_open";
  }
  return "closed";
}

void Breakers::placed(const Part& part, const RequestId& req) {
  const auto it = entries_.find(part);
  if (it != entries_.end() && it->second.state == BreakerState::half_open && it->second.probe.empty())
    it->second.probe = req;
}

bool Breakers::succeeded(const Part& part) {
  const auto it = entries_.find(part);
  if (it == entries_.end()) return false;
  const bool closes = it->second.state != BreakerState::closed;
  if (closes) changes_.push_back({part, BreakerState::closed, 0, {}});
  entries_.erase(it);
  plan();
  return closes;
}

void Breakers::failed(const Part& part, const RequestId& req, TimePoint placed_at, TimePoint now) {
  MC_ASSERT(placed_at <= now);
  Entry& entry = entries_[part];
  if (entry.probe == req) entry.probe.clear();
  if (entry.state == BreakerState::closed) {
    if (++entry.failures >= options_.failures) open(part, entry, now);
    return;
  }
  if (placed_at < entry.since) return;
  ++entry.failures;
  if (entry.state == BreakerState::half_open) open(part, entry, now);
}

void Breakers::left(const Part& part, const RequestId& req) {
  const auto it = entries_.find(part);
  if (it != entries_.end() && it->second.probe == req) it->second.probe.clear();
}

void Breakers::forget(const NodeId& node) {
  std::erase_if(entries_, [&](const auto& entry) { return entry.first.prefill == node || entry.first.decode == node; });
  plan();
}

void Breakers::advance(TimePoint now) {
  if (now < next_) return;
  for (auto& [part, entry] : entries_) {
    if (entry.state != BreakerState::open || now < entry.until) continue;
    entry.state = BreakerState::half_open;
    changes_.push_back({part, BreakerState::half_open, entry.failures, {}});
  }
  plan();
}

void Breakers::open(const Part& part, Entry& entry, TimePoint now) {
  MC_ASSERT(entry.state != BreakerState::open && entry.failures > 0);
  Duration mean = options_.backoff_min;
  for (uint32_t i = 0; i < entry.opened && mean < options_.backoff_max; ++i) mean *= 2;
  mean = std::min(mean, options_.backoff_max);
  ++entry.opened;
  entry.state = BreakerState::open;
  entry.probe.clear();
  const Duration backoff(static_cast<int64_t>(static_cast<double>(mean.count()) * (0.75 + 0.5 * rng_.uniform())));
  entry.since = now;
  entry.until = now + backoff;
  changes_.push_back({part, BreakerState::open, entry.failures, backoff});
  plan();
}

void Breakers::plan() {
  next_ = kNever;
  for (const auto& [part, entry] : entries_)
    if (entry.state == BreakerState::open) next_ = std::min(next_, entry.until);
}

void Breakers::check() const {
  for (const auto& [part, entry] : entries_) {
    MC_ASSERT(!part.prefill.empty() || !part.decode.empty());
    MC_ASSERT_LT(0u, entry.failures);
    MC_ASSERT(entry.state == BreakerState::half_open || entry.probe.empty());
    MC_ASSERT_EQ(entry.state == BreakerState::closed, entry.opened == 0);
    MC_ASSERT(entry.state != BreakerState::open || next_ <= entry.until);
  }
}

}  // namespace mc::sched

#include "sim/waits.h"

#include "base/assert.h"

namespace mc::sim {

void Waits::hold(uint32_t r, TimePoint expires) {
  const auto [at, fresh] = waits_.try_emplace(r, Wait{true, expires, kNever});
  MC_ASSERT(fresh);
  ends_.emplace(at->second.end(), r);
  ++held_;
}

void Waits::set_parked_until(uint32_t r, TimePoint until) {
  Wait& wait = waits_.at(r);
  ends_.erase({wait.end(), r});
  wait.parked_until = until;
  ends_.emplace(wait.end(), r);
}

void Waits::park(uint32_t r, TimePoint now) {
  if (waits_[r].parked_until == kNever) set_parked_until(r, now + kParkMax);
}

void Waits::unpark(uint32_t r) {
  MC_ASSERT(holds(r));
  set_parked_until(r, kNever);
}

void Waits::erase(uint32_t r) {
  const auto at = waits_.find(r);
  if (at == waits_.end()) return;
  ends_.erase({at->second.end(), r});
  held_ -= at->second.held;
  waits_.erase(at);
  MC_ASSERT_EQ(ends_.size(), waits_.size());
}

bool Waits::holds(uint32_t r) const {
  if (held_ == 0) return false;
  const auto at = waits_.find(r);
  return at != waits_.end() && at->second.held;
}

std::vector<uint32_t> Waits::held() const {
  std::vector<uint32_t> out;
  for (const auto& [end, r] : ends_)
    if (waits_.at(r).held) out.push_back(r);
  return out;
}

std::vector<uint32_t> Waits::take_recalled() {
  std::vector<uint32_t> out;
  if (has_recalled())
    for (const auto& [r, wait] : waits_)
      if (!wait.held) out.push_back(r);
  recalled_ = false;
  return out;
}

}  // namespace mc::sim

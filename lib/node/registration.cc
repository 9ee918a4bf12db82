#include "node/registration.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

TimePoint Registration::next_wakeup() const {
  if (is_member()) return std::min(beat_at_, heard_at_ + dead_after_ + 1ms);
  return left_ ? kNever : hello_at_;
}

bool Registration::welcomed(const InstanceId& conductor, const wire::Welcome& welcome, TimePoint now) {
  MC_ASSERT(!is_member_elsewhere(conductor));
  const bool another = conductor_ != conductor;
  conductor_ = conductor;
  state_ = State::member;
  welcomed_at_ = std::min(welcomed_at_, now);
  refused_.reset();
  name_ = welcome.name;
  beat_every_ = std::chrono::milliseconds(std::max<uint32_t>(welcome.heartbeat_ms, 1));
  dead_after_ = std::chrono::milliseconds(std::max<uint32_t>(welcome.dead_after_ms, 1));
  has_tenants_ = welcome.has_tenants;
  beat_at_ = now;
  return another;
}

void Registration::lost(TimePoint now) {
  state_ = State::absent;
  hello_at_ = now + Duration(rng_.between(0, retry_.count() / 2));
  beat_at_ = kNever;
}

void Registration::leave() {
  MC_ASSERT(!left_);
  left_ = true;
  state_ = State::absent;
}

void Registration::asked(TimePoint now) {
  MC_ASSERT(hello_due(now));
  state_ = State::asked;
  // A random delay of up to 50 % keeps nodes from registering in step after their conductor comes back.
  hello_at_ = now + retry_ + Duration(rng_.between(0, retry_.count() / 2));
}

void Registration::beaten(TimePoint now) {
  MC_ASSERT(beat_due(now));
  beat_at_ = now + beat_every_;
}

void Registration::beat_soon(TimePoint now) {
  MC_ASSERT(is_member());
  beat_at_ = now;
}

}  // namespace mc::node

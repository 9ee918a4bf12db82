#include "xfer_rdma/path.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::xfer {

std::string_view to_string(WorkStatus status) {
  switch (status) {
    case WorkStatus::ok: return "ok";
    case WorkStatus::flushed: return "flushed";
    case WorkStatus::retry_exceeded: return "the peer's NIC did not answer";
    case WorkStatus::rnr_retry_exceeded: return "the peer had no receive posted";
    case WorkStatus::remote_access: return "the peer's NIC refused the access";
    case WorkStatus::remote_invalid_request: return "the peer's NIC found the request invalid";
    case WorkStatus::remote_operation: return "the peer's NIC could not finish the request";
    case WorkStatus::local_length: return "local length error";
    case WorkStatus::local_protection: return "local protection error";
    case WorkStatus::local_operation: return "local operation error";
    case WorkStatus::fatal: return "fatal error of the NIC";
    case WorkStatus::other: return "unexpected completion status";
  }
  return "unknown";
}

std::string_view to_string(PathCause cause) {
  switch (cause) {
    case PathCause::none: return "none";
    case PathCause::fault: return "path fault";
    case PathCause::refused: return "access refused";
    case PathCause::bug: return "malformed request";
    case PathCause::nic: return "NIC failed";
    case PathCause::port: return "port down";
    case PathCause::restart: return "restart";
    case PathCause::rest: return "rest";
  }
  return "unknown";
}

PathCause path_cause(uint8_t wire_value) {
  return wire_value > 0 && wire_value <= static_cast<uint8_t>(PathCause::rest) ? static_cast<PathCause>(wire_value)
                                                                               : PathCause::fault;
}

Verdict classify(WorkStatus status) {
  switch (status) {
    case WorkStatus::ok: return {};
    case WorkStatus::flushed:
    case WorkStatus::retry_exceeded:
    case WorkStatus::rnr_retry_exceeded:
    case WorkStatus::local_operation:  // soft-RoCE reports this for a packet it could not send: the interface is down
    case WorkStatus::other: return {PathCause::fault, Code::io};
    case WorkStatus::remote_access:
    case WorkStatus::remote_invalid_request:
    case WorkStatus::remote_operation: return {PathCause::refused, Code::not_found};
    // A retry of an own mistake would only repeat it, as fast as the NIC can.
    case WorkStatus::local_length:
    case WorkStatus::local_protection: return {PathCause::bug, Code::invalid};
    case WorkStatus::fatal: return {PathCause::nic, Code::io};
  }
  return {PathCause::fault, Code::io};
}

uint32_t PathMachine::begin(TimePoint now) {
  MC_ASSERT(may_begin(now));
  state_ = State::connecting;
  deadline_ = now + times_.attempt;
  return ++epoch_;
}

bool PathMachine::accept(uint32_t epoch, TimePoint now) {
  MC_ASSERT(state_ == State::idle || state_ == State::cooldown);
  if (!newer(epoch)) return false;
  epoch_ = epoch;
  state_ = State::connecting;
  deadline_ = now + times_.attempt;
  return true;
}

void PathMachine::connected() {
  MC_ASSERT(state_ == State::connecting && deadline_ != kNever);
  state_ = State::verifying;
}

void PathMachine::verified(TimePoint now) {
  MC_ASSERT(state_ == State::verifying && deadline_ != kNever);
  state_ = State::up;
  deadline_ = kNever;
  up_since_ = now;
}

bool PathMachine::fail(PathCause cause, TimePoint now) {
  MC_ASSERT(cause != PathCause::none);
  if (!live()) return false;
  if (state_ == State::up) {
    MC_ASSERT(up_since_ <= now);
    for (Duration up = now - up_since_; up >= 60s && penalty_ > Duration{}; up -= 60s) penalty_ /= 2;
    if (penalty_ < times_.cooldown_min) penalty_ = {};
  }
  state_ = State::draining;
  deadline_ = kNever;
  cause_ = cause;
  Duration wait = times_.settle;
  if (cause == PathCause::fault || cause == PathCause::nic || cause == PathCause::bug) {
    penalty_ = std::clamp(penalty_ * 2, times_.cooldown_min, times_.cooldown_max);
    wait = penalty_;
  } else if (cause == PathCause::port) {
    wait = times_.cooldown_min;  // the port's own event is the better signal: see wake()
  }
  MC_ASSERT_LE(penalty_, times_.cooldown_max);
  next_try_ = now + wait;
  return true;
}

void PathMachine::drained(TimePoint) {
  MC_ASSERT(state_ == State::draining && deadline_ == kNever);
  state_ = State::cooldown;
}

void PathMachine::wake(TimePoint now) {
  next_try_ = std::min(next_try_, now);
}

TimePoint PathMachine::due() const {
  if (state_ == State::connecting || state_ == State::verifying) return deadline_;
  return state_ == State::cooldown ? next_try_ : kNever;
}

bool PathMachine::late(TimePoint now) const {
  return (state_ == State::connecting || state_ == State::verifying) && deadline_ <= now;
}

}  // namespace mc::xfer

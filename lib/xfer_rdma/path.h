// The life of a path (one local port to one remote port) as pure code: no device, no clock of its own.
//
//   idle -> connecting -> verifying -> up -> draining -> cooldown -> connecting ...
//             (queue pairs  (test pattern           (until every posted
//              exchanged)    both ways)              request has completed)
//
// Every attempt has an epoch that grows; messages of another epoch are stale and change nothing. The
// dialler of the connection begins attempts, the listener answers: there is one initiator, so that the
// two ends never meet half way. Cooldown doubles with every fault of the path and is halved for every
// minute the path stays up, not reset at once: a flapping rail must not look fresh (RDMA notes, A9).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace mc::xfer {

/// How a posted request ended: the completion statuses that differ for us.
enum class WorkStatus : uint8_t {
  ok,
  flushed,  // behind the one that failed: no error of its own
  retry_exceeded,
  rnr_retry_exceeded,
  remote_access,
  remote_invalid_request,
  remote_operation,
  local_length,
  local_protection,
  local_operation,
  fatal,
  other,
};
std::string_view to_string(WorkStatus status);

/// Why an attempt ended. Travels in path_down: values are fixed.
enum class PathCause : uint8_t {
  none = 0,
  fault = 1,    // the path does not carry: retries exhausted, time-out, bad pattern
  refused = 2,  // the peer's NIC refused an access: its memory changed; the path itself is fine
  bug = 3,      // our request was malformed
  nic = 4,      // the device failed
  port = 5,     // the port is down
  restart = 6,  // nothing is wrong with the path: one side starts over
  rest = 7      // nothing is wrong with the path: its queue pairs were given up until they are needed
};
std::string_view to_string(PathCause cause);
PathCause path_cause(uint8_t wire_value);

struct Verdict {
  PathCause cause = PathCause::none;
  Code code = Code::ok;  // of the request that failed; io is worth another attempt
};
Verdict classify(WorkStatus status);

struct PathTimes {
  Duration attempt = 2s;  // to exchange and verify
  Duration cooldown_min = 1s;
  Duration cooldown_max = 60s;
  Duration settle = 50ms;  // before another attempt after something that was not the path's fault
};

class PathMachine {
 public:
  enum class State : uint8_t { idle, connecting, verifying, up, draining, cooldown };

  explicit PathMachine(const PathTimes& times) : times_(times) {}

  State state() const { return state_; }
  uint32_t epoch() const { return epoch_; }
  PathCause cause() const { return cause_; }
  Duration penalty() const { return penalty_; }
  bool live() const { return state_ == State::connecting || state_ == State::verifying || state_ == State::up; }
  /// Is a message of that epoch about the attempt that lives now?
  bool current(uint32_t epoch) const { return live() && epoch == epoch_; }

  /// Dialler: may an attempt begin?
  bool may_begin(TimePoint now) const {
    return state_ == State::idle || (state_ == State::cooldown && next_try_ <= now);
  }
  /// Dialler: a new attempt; its epoch.
  uint32_t begin(TimePoint now);
  /// Listener: an offer came. False: it is stale. The path must be idle or cooling down.
  bool accept(uint32_t epoch, TimePoint now);
  /// Is that offer newer than everything seen?
  bool newer(uint32_t epoch) const { return epoch > epoch_; }
  void connected();
  void verified(TimePoint now);
  /// The attempt is over; what was posted must be drained. False: there is none.
  bool fail(PathCause cause, TimePoint now);
  /// Nothing posted is outstanding any more.
  void drained(TimePoint now);
  /// The cause of the failure may be gone (a port came up): try now.
  void wake(TimePoint now);
  /// When the attempt times out, or the next may begin.
  TimePoint due() const;
  bool late(TimePoint now) const;

 private:
  PathTimes times_;
  State state_ = State::idle;
  uint32_t epoch_ = 0;
  PathCause cause_ = PathCause::none;
  TimePoint deadline_ = kNever;  // of the attempt
  TimePoint next_try_{};
  TimePoint up_since_{};
  Duration penalty_{};
};

}  // namespace mc::xfer

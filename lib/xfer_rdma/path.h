// The life of a path (one local port to one remote port) as pure code: it uses no device and no clock.
//
//   idle -> connecting -> verifying -> up -> draining -> cooldown -> connecting ...
//             (queue pairs  (test pattern           (until every posted
//              exchanged)    both ways)              request has completed)
//
// Every attempt has a growing epoch. Messages of another epoch are stale and change nothing. The dialler of the
// connection begins attempts and the listener answers, so the two ends never begin one each. The cooldown doubles with
// every fault of the path. Each minute in which the path stays up halves it instead of resetting it, so a flapping rail
// does not count as sound.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace mc::xfer {

/// How a posted request ended: the completion statuses that matter here.
enum class WorkStatus : uint8_t {
  ok,
  flushed,  // the request was behind the failed one and has no error of its own
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

/// Why an attempt ended. path_down carries it, so the values are fixed.
enum class PathCause : uint8_t {
  none = 0,
  fault = 1,    // the path does not carry: retries exhausted, time-out, bad pattern
  refused = 2,  // the peer's NIC refused an access because its memory changed; the path is fine
  bug = 3,      // a request of this process was malformed
  nic = 4,      // the device failed
  port = 5,     // the port is down
  restart = 6,  // the path is fine; one side starts over
  rest = 7      // the path is fine; its queue pairs were given up until they are needed
};
std::string_view to_string(PathCause cause);
PathCause path_cause(uint8_t wire_value);

struct Verdict {
  PathCause cause = PathCause::none;
  Code code = Code::ok;  // code of the failed request; io may be retried
};
Verdict classify(WorkStatus status);

struct PathTimes {
  Duration attempt = 2s;  // time to exchange queue pairs and verify
  Duration cooldown_min = 1s;
  Duration cooldown_max = 60s;
  Duration settle = 50ms;  // pause before another attempt when the path was not at fault
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
  /// Whether a message of that epoch belongs to the live attempt.
  bool current(uint32_t epoch) const { return live() && epoch == epoch_; }

  /// Dialler: whether an attempt may begin.
  bool may_begin(TimePoint now) const {
    return state_ == State::idle || (state_ == State::cooldown && next_try_ <= now);
  }
  /// Dialler: begins an attempt and returns its epoch.
  uint32_t begin(TimePoint now);
  /// Listener: an offer has arrived. False: it is stale. The path must be idle or cooling down.
  bool accept(uint32_t epoch, TimePoint now);
  /// Whether that offer is newer than every earlier one.
  bool newer(uint32_t epoch) const { return epoch > epoch_; }
  void connected();
  void verified(TimePoint now);
  /// Ends the attempt. The posted requests must be drained. False: there is no attempt.
  bool fail(PathCause cause, TimePoint now);
  /// No posted request is outstanding any more.
  void drained(TimePoint now);
  /// The cause of the failure may be gone (a port came up), so the next attempt may begin now.
  void wake(TimePoint now);
  /// When the attempt times out, or when the next one may begin.
  TimePoint due() const;
  bool late(TimePoint now) const;

 private:
  PathTimes times_;
  State state_ = State::idle;
  uint32_t epoch_ = 0;
  PathCause cause_ = PathCause::none;
  TimePoint deadline_ = kNever;  // deadline of the attempt
  TimePoint next_try_{};
  TimePoint up_since_{};
  Duration penalty_{};
};

}  // namespace mc::xfer

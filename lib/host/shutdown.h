// How a daemon ends. The first SIGTERM or SIGINT drains it for a bounded time, and the second one stops it at once.
// SIGINT makes the exit status that of an interrupted program. A failure ends the daemon with an error instead.
#pragma once

#include <optional>

#include "base/clock.h"
#include "base/result.h"

namespace mc::host {

class Shutdown {
 public:
  /// A signal asks for the end. False: an earlier one did, so the process stops now. Otherwise it drains for at most
  /// `drain_most`.
  bool ask(int signal, TimePoint now, Duration drain_most);
  bool asked() const { return asked_; }
  /// Whether ask() was called twice.
  bool is_urgent() const { return urgent_; }
  /// Whether a process that was asked to end may do so: it is idle, or its time to drain is over.
  bool is_due(bool idle, TimePoint now) const { return asked_ && (idle || now >= until_); }
  /// The process cannot go on. The first failure counts.
  void fail(Error error);
  /// The failure, or the exit status.
  Result<int> outcome() const;

 private:
  bool asked_ = false, urgent_ = false;
  TimePoint until_ = kNever;  // requests may finish until then
  int exit_code_ = 0;
  std::optional<Error> failure_;
};

}  // namespace mc::host

// Signals as a file descriptor: blocked in every thread, read by the control loop. Open it before any
// other thread starts. SIGPIPE is ignored.
#pragma once

#include <optional>

#include "base/fd.h"

namespace mc::host {

class Signals {
 public:
  /// SIGTERM, SIGINT, SIGUSR1, SIGHUP.
  static Result<Signals> open();
  /// From here on they end the process at once, as they do without a loop that reads them.
  static void let_through();
  int fd() const { return fd_.get(); }
  /// The next pending signal number.
  std::optional<int> next() const;

 private:
  explicit Signals(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

/// READY=1, STOPPING=1 or STATUS=... to systemd's NOTIFY_SOCKET; nothing without one.
void notify_service_manager(std::string_view state);
/// The calling process gets SIGTERM when its parent dies (mc-conductor --local).
void die_with_parent();

}  // namespace mc::host

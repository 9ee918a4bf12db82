// An interrupt ends a measurement at once, inside any library call, and the points measured so far are written.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/cli.h"
#include "base/fd.h"
#include "host/signals.h"

namespace mc::bench {

class Interruption {
 public:
  /// After SIGINT or SIGTERM a thread holds the mutex, calls `write` and ends the program with 130 (MC8003). A second
  /// signal ends it without `write`. Then every Child is killed, and `clean` removes what the measurement left on the
  /// disk. Open it before other threads start: they inherit the signal mask.
  static Result<std::unique_ptr<Interruption>> open(std::function<void()> write, std::function<void()> clean = {});
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// The measuring thread holds it while it changes data that `write` reads.
  [[nodiscard]] std::unique_lock<std::timed_mutex> lock() { return std::unique_lock(mutex_); }

 private:
  Interruption(host::Signals signals, EventFd over, std::function<void()> write, std::function<void()> clean);
  void wait();

  host::Signals signals_;
  EventFd over_;
  std::function<void()> write_, clean_;
  std::timed_mutex mutex_;
  std::thread thread_;
};

}  // namespace mc::bench

// Opens failed devices again (internal), on a thread of its own. Closing the rest of the old device, opening the new
// one and registering all memory may take seconds. Paths on other devices go on meanwhile.
//
//   failed -> (cooldown) -> registrations dropped -> opened by name -> memory registered -> taken back
//                 ^                                     |  not there (yet), no memory
//                 +-------------------------------------+  twice the cooldown
//
// A device that fails again soon after its return waits longer, like a path.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "xfer_rdma/verbs.h"

namespace mc::xfer {

/// The time for which a failed device stays closed, as pure code: it doubles with every failure and is halved for every
/// minute of use.
class RevivalPause {
 public:
  RevivalPause(Duration least, Duration most) : least_(least), most_(most) {}
  /// The device failed, or could not be opened. Returns the pause before the next attempt.
  Duration next(TimePoint now);
  /// The device is in use.
  void opened(TimePoint now) { since_ = now; }

 private:
  Duration least_, most_;
  Duration pause_{};
  TimePoint since_ = kNever;  // start of its use
};

class RdmaRevival {
 public:
  /// Opens the device of that index and name again; may block. Called on the thread of the revival.
  using Attempt = std::function<Result<std::shared_ptr<RdmaDevice>>(size_t index, const std::string& name)>;
  RdmaRevival(Attempt attempt, Duration least, Duration most)
      : attempt_(std::move(attempt)), least_(least), most_(most) {}
  RdmaRevival(const RdmaRevival&) = delete;
  RdmaRevival& operator=(const RdmaRevival&) = delete;
  /// Waits for an attempt that is under way.
  ~RdmaRevival() { stop(); }
  void stop();
  /// Whether stop() was called, even if it still waits. Any thread may call it.
  bool stopping();

  /// A descriptor that is readable when take() has results.
  Result<int> open();
  /// The device of that index has failed, and no path of it is in use.
  void failed(size_t index, const std::string& name);
  struct Back {
    size_t index = 0;
    std::shared_ptr<RdmaDevice> device;  // shared with memory_, and later with ports and paths
  };
  std::vector<Back> take();

 private:
  struct FailedDevice {
    size_t index = 0;
    std::string name;
    RevivalPause pause;
    TimePoint at = kNever;  // time of the next attempt; kNever = in use
  };
  void run();

  Attempt attempt_;
  Duration least_, most_;
  EventFd ready_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<FailedDevice> failed_;  // every device that ever failed
  std::vector<Back> back_;
  bool stop_ = false;
  std::thread thread_;  // runs from the first failure on
};

/// Opens the device by its name and registers all of `memory` on it.
Result<std::shared_ptr<RdmaDevice>> reopen(RdmaMemory& memory, size_t index, const std::string& name);

}  // namespace mc::xfer

// Devices that failed are opened again (internal), on a thread of its own: closing what is left of the old one,
// opening and registering all memory anew may take seconds, and paths on other devices go on meanwhile.
//
//   failed -> (cooldown) -> registrations dropped -> opened by name -> memory registered -> taken back
//                 ^                                     |  not there (yet), no memory
//                 +-------------------------------------+  twice the cooldown
//
// A device that fails again soon after it came back waits longer, as a path does.
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

/// How long a device stays closed, as pure code: doubles with every failure, halved for every minute it was in use.
class RevivalPause {
 public:
  RevivalPause(Duration least, Duration most) : least_(least), most_(most) {}
  /// The device failed, or could not be opened.
  Duration next(TimePoint now);
  /// It is in use.
  void opened(TimePoint now) { since_ = now; }

 private:
  Duration least_, most_;
  Duration pause_{};
  TimePoint since_ = kNever;  // in use since then
};

class RdmaRevival {
 public:
  /// Opens the device of that index and name anew; may block. Called on the thread of the revival.
  using Attempt = std::function<Result<std::shared_ptr<RdmaDevice>>(size_t index, const std::string& name)>;
  RdmaRevival(Attempt attempt, Duration least, Duration most)
      : attempt_(std::move(attempt)), least_(least), most_(most) {}
  RdmaRevival(const RdmaRevival&) = delete;
  RdmaRevival& operator=(const RdmaRevival&) = delete;
  /// Waits for an attempt that is under way.
  ~RdmaRevival() { stop(); }
  void stop();
  /// stop() was called, though it may still wait. Any thread.
  bool stopping();

  /// Readable when take() has something.
  Result<int> open();
  /// The device of that index has failed, and no path of it is used any more.
  void failed(size_t index, const std::string& name);
  struct Back {
    size_t index = 0;
    std::shared_ptr<RdmaDevice> device;  // shared: with memory_, and then with ports and paths
  };
  std::vector<Back> take();

 private:
  struct Patient {
    size_t index = 0;
    std::string name;
    RevivalPause pause;
    TimePoint at = kNever;  // of the next attempt; kNever = in use
  };
  void run();

  Attempt attempt_;
  Duration least_, most_;
  EventFd ready_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Patient> patients_;  // every device that ever failed
  std::vector<Back> back_;
  bool stop_ = false;
  std::thread thread_;  // from the first failure on
};

/// Opens the device by its name and registers all of `memory` on it.
Result<std::shared_ptr<RdmaDevice>> reopen(RdmaMemory& memory, size_t index, const std::string& name);

}  // namespace mc::xfer

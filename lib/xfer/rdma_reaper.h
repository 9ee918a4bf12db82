// A thread that destroys the verbs objects of paths that are over (internal). Destroying a queue pair
// waits in the kernel until nothing refers to it: 3 s measured on soft-RoCE after a link was cut, for
// packets that wait for a neighbour's address. On the engine's thread that would stop every other path.
//
// Only what has completed may be handed over: the memory of its slices is given back at once.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "xfer/rdma_rail.h"

namespace mc::xfer {

class RdmaReaper {
 public:
  /// Beyond this many the caller destroys them itself: a path that flaps pays for it.
  static constexpr size_t kWaitingMax = 64;

  RdmaReaper() = default;
  RdmaReaper(const RdmaReaper&) = delete;
  RdmaReaper& operator=(const RdmaReaper&) = delete;
  /// Waits until all are destroyed. The devices must outlive it.
  ~RdmaReaper();

  void take(RailRemains remains);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<RailRemains> waiting_;
  bool stop_ = false;
  std::thread thread_;  // from the first take() on
};

}  // namespace mc::xfer

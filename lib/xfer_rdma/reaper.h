// Threads that destroy the verbs objects of closed paths (internal). Destroying a queue pair waits in the kernel until
// nothing refers to it: 3 s measured on soft-RoCE after a link was cut, for packets that wait for a neighbour's
// address. On the engine's thread that would stop every other path. One thread for all would take minutes in a process
// that lost many paths. So each queue pair may have a thread, up to kThreadsMax.
//
// Only queue pairs whose requests have completed may be handed over, because the memory of their slices is given back
// at once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace mc::xfer {

class RdmaReaper {
 public:
  static constexpr size_t kThreadsMax = 32;
  /// Beyond this number the caller destroys the objects itself, so a flapping path pays its own cost.
  static constexpr size_t kWaitingMax = 128;

  /// An object whose destructor may block.
  struct Remains {
    Remains() = default;
    Remains(const Remains&) = delete;
    Remains& operator=(const Remains&) = delete;
    virtual ~Remains() = default;
  };

  RdmaReaper() = default;
  RdmaReaper(const RdmaReaper&) = delete;
  RdmaReaper& operator=(const RdmaReaper&) = delete;
  /// Waits until all objects are destroyed: at most kWaitingMax / kThreadsMax times the time of one.
  ~RdmaReaper();

  void take(std::unique_ptr<Remains> remains);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<Remains>> waiting_;
  size_t idle_ = 0;  // threads that wait for work
  bool stop_ = false;
  std::vector<std::thread> threads_;  // a thread is added when all others are busy; threads stay
};

}  // namespace mc::xfer

// Threads that destroy the verbs objects of paths that are over (internal). Destroying a queue pair waits in the
// kernel until nothing refers to it: 3 s measured on soft-RoCE after a link was cut, for packets that wait for a
// neighbour's address. On the engine's thread that would stop every other path; one after the other, a process
// that lost many paths would take minutes to end. So each queue pair may have a thread, up to kThreadsMax.
//
// Only queue pairs whose requests have completed may be handed over: the memory of their slices is given back at once.
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
  /// Beyond this many the caller destroys them itself: a path that flaps pays for it.
  static constexpr size_t kWaitingMax = 128;

  /// Something whose destructor may block.
  struct Remains {
    Remains() = default;
    Remains(const Remains&) = delete;
    Remains& operator=(const Remains&) = delete;
    virtual ~Remains() = default;
  };

  RdmaReaper() = default;
  RdmaReaper(const RdmaReaper&) = delete;
  RdmaReaper& operator=(const RdmaReaper&) = delete;
  /// Waits until all are destroyed: kWaitingMax / kThreadsMax times what one takes, at most.
  ~RdmaReaper();

  void take(std::unique_ptr<Remains> remains);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<Remains>> waiting_;
  size_t idle_ = 0;  // threads that wait for work
  bool stop_ = false;
  std::vector<std::thread> threads_;  // made when all that there are are busy; they stay
};

}  // namespace mc::xfer

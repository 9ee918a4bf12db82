// Events on their way to the caller. The loop pushes them, and one thread at a time takes them; any thread may ask
// for the descriptor.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "xfer/fifo.h"
#include "xfer/xfer.h"

namespace mc::xfer {

class EventQueue {
 public:
  /// `most`: events from which on the queue is full. It takes more, but peers' notifies are no longer read.
  explicit EventQueue(size_t most) : most_(most) {}
  Result<void> open();

  /// Signals the descriptor only while someone watches it, because the system call costs more than all the rest.
  void push(Event&& event);
  /// Appends up to `max` events to `out`; waits for one until the deadline. How many there were. `made_room`: the
  /// queue was full and is no longer.
  size_t poll(std::vector<Event>& out, TimePoint deadline, size_t max, bool& made_room);
  /// Readable while events wait.
  int watch();
  /// How many events wait: a hint, without the mutex.
  size_t size_hint() const { return count_.load(std::memory_order_relaxed); }
  bool full_hint() const { return size_hint() >= most_; }

 private:
  size_t take(std::vector<Event>& out, size_t max, bool drained, bool& made_room);

  const size_t most_;
  EventFd fd_;
  std::mutex mutex_;
  Fifo<Event> events_;
  bool watched_ = false;    // the descriptor was given out
  bool polled_ = false;     // a poll() sleeps on it
  bool signalled_ = false;  // it is readable
  std::atomic<size_t> count_{0};
};

}  // namespace mc::xfer

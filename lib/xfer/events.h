// Events on their way to the caller. The loop pushes events. One thread at a time takes them. Any thread may call
// watch().
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "xfer/fifo.h"
#include "xfer/word_mutex.h"
#include "xfer/xfer.h"

namespace mc::xfer {

class EventQueue {
 public:
  /// `most`: number of events at which the queue counts as full. A full queue still accepts events, but notifies of
  /// peers are no longer read.
  explicit EventQueue(size_t most) : most_(most) {}
  Result<void> open();

  /// Adds an event. Signals the descriptor only while a thread watches it, because the system call is the largest cost.
  void push(Event&& event);
  /// Adds the batch_done of a small batch that went well, and nothing but its id and cookie.
  void push_done(BatchId batch, uint64_t cookie);
  /// Appends up to `max` events to `out` and returns their number. Waits for one until the deadline. `made_room`: the
  /// queue was full and no longer is.
  size_t poll(std::vector<Event>& out, TimePoint deadline, size_t max, bool& made_room);
  /// A descriptor that is readable while events wait.
  int watch();
  /// Number of waiting events: a hint, read without the mutex.
  size_t size_hint() const { return count_.load(std::memory_order_relaxed); }
  bool full_hint() const { return size_hint() >= most_; }

 private:
  struct Done {
    BatchId batch = BatchId::none;
    uint64_t cookie = 0;
    uint64_t after = 0;  // number of events that were pushed before it
  };
  size_t take(std::vector<Event>& out, size_t max, bool drained, bool& made_room);
  bool pushed();
  size_t size() const { return events_.size() + done_.size(); }

  const size_t most_;
  EventFd fd_;
  WordMutex mutex_;
  Fifo<Event> events_;
  Fifo<Done> done_;         // small batches; an Event is ten times as large
  uint64_t taken_ = 0;      // number of `events_` that were taken
  bool watched_ = false;    // the descriptor was given out
  bool polled_ = false;     // a poll() sleeps on the descriptor
  bool signalled_ = false;  // the descriptor is readable
  std::atomic<size_t> count_{0};
};

}  // namespace mc::xfer

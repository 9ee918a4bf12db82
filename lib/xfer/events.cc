#include "xfer/events.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace mc::xfer {

Result<void> EventQueue::open() {
  MC_TRY(fd, EventFd::open());
  fd_ = std::move(fd);
  return {};
}

void EventQueue::push(Event&& event) {
  bool signal;
  {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    signal = pushed();
  }
  // The signal follows the unlock, because it wakes a thread that needs the lock. A signal that comes after its event
  // was taken is cleared by the next poll() that finds nothing.
  if (signal) fd_.signal();
}

void EventQueue::push_done(BatchId batch, uint64_t cookie) {
  bool signal;
  {
    std::lock_guard lock(mutex_);
    done_.push_back({batch, cookie, taken_ + events_.size()});
    signal = pushed();
  }
  if (signal) fd_.signal();
}

/// Counts the event that was just added. True: the descriptor must be signalled.
bool EventQueue::pushed() {
  count_.store(size(), std::memory_order_relaxed);  // a hint
  return (watched_ || polled_) && !std::exchange(signalled_, true);
}

/// `drained`: the caller has just cleared the descriptor.
size_t EventQueue::take(std::vector<Event>& out, size_t max, bool drained, bool& made_room) {
  std::lock_guard lock(mutex_);
  const size_t before = size();
  const size_t count = std::min(max, before);
  for (size_t i = 0; i < count; ++i) {
    if (!done_.empty() && done_.front().after == taken_) {
      Event& event = out.emplace_back();
      event.kind = Event::Kind::batch_done;
      event.batch = done_.front().batch;
      event.cookie = done_.front().cookie;
      done_.drop_front();
    } else {
      out.push_back(std::move(events_.front()));
      events_.drop_front();
      ++taken_;
    }
  }
  const size_t left = size();
  MC_ASSERT_EQ(left + count, before);
  if (left == 0) {
    if (std::exchange(signalled_, false)) fd_.drain();
  } else if (drained) {
    fd_.signal();  // it stays readable while events wait
  }
  polled_ = count == 0;                           // the caller is about to sleep and needs a signal
  count_.store(left, std::memory_order_relaxed);  // a hint
  made_room |= before >= most_ && left < most_;
  return count;
}

size_t EventQueue::poll(std::vector<Event>& out, TimePoint deadline, size_t max, bool& made_room) {
  for (;;) {
    size_t count = take(out, max, false, made_room);
    if (count > 0 || max == 0) return count;
    fd_.drain();  // a signal may have come after its event was taken
    count = take(out, max, true, made_room);
    if (count > 0) return count;
    if (!fd_.wait(deadline)) return 0;
  }
}

int EventQueue::watch() {
  std::lock_guard lock(mutex_);
  watched_ = true;  // every event signals from now on
  if (size() > 0 && !std::exchange(signalled_, true)) fd_.signal();
  return fd_.fd();
}

}  // namespace mc::xfer

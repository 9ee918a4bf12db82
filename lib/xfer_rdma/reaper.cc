#include "xfer_rdma/reaper.h"

#include <system_error>
#include <utility>

#include "base/assert.h"

namespace mc::xfer {

RdmaReaper::~RdmaReaper() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void RdmaReaper::take(std::unique_ptr<Remains> remains) {
  MC_ASSERT(remains != nullptr);
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kWaitingMax) return;  // the destructor of `remains` runs here, after the lock
    if (waiting_.size() >= idle_ && threads_.size() < kThreadsMax) {
      try {
        threads_.emplace_back([this] { run(); });
      } catch (const std::system_error&) {
        if (threads_.empty()) return;  // the destructor runs here as well
      }
    }
    MC_ASSERT(!stop_ && threads_.size() <= kThreadsMax);
    waiting_.push_back(std::move(remains));
  }
  wake_.notify_one();
}

void RdmaReaper::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
    --idle_;
    if (waiting_.empty()) return;
    {
      const std::unique_ptr<Remains> remains = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
    }
    lock.lock();
  }
}

}  // namespace mc::xfer

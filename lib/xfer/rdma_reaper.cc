#include "xfer/rdma_reaper.h"

#include <utility>

namespace mc::xfer {

RdmaReaper::~RdmaReaper() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void RdmaReaper::take(RailRemains remains) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kWaitingMax) return;  // `remains` ends here
    waiting_.push_back(std::move(remains));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  wake_.notify_one();
}

void RdmaReaper::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    {
      const RailRemains remains = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
    }
    lock.lock();
  }
}

}  // namespace mc::xfer

#include "xfer_rdma/revival.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "base/thread_limit.h"
#include "xfer/poller.h"

namespace mc::xfer {
Duration RevivalPause::next(TimePoint now) {
  MC_ASSERT(since_ == kNever || since_ <= now);
  if (since_ != kNever)
    for (Duration used = now - since_; used >= 60s && pause_ > Duration{}; used -= 60s) pause_ /= 2;
  since_ = kNever;
  pause_ = pause_ < least_ ? least_ : std::min(pause_ * 2, most_);
  return pause_;
}

Result<int> RdmaRevival::open() {
  MC_TRY(ready, EventFd::open());
  ready_ = std::move(ready);
  return ready_.fd();
}

void RdmaRevival::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool RdmaRevival::stopping() {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void RdmaRevival::failed(size_t index, const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    auto at =
        std::find_if(failed_.begin(), failed_.end(), [&](const FailedDevice& known) { return known.index == index; });
    if (at == failed_.end()) at = failed_.insert(at, {index, name, RevivalPause(least_, most_)});
    at->at = now() + at->pause.next(now());
    if (!thread_.joinable() && !stop_) {
      try {
        thread_ = std::thread([this] { run(); });
      } catch (const std::system_error& error) {  // the next failure tries again
        log_warn("rdma device not opened again",
                 {{"device", name}, {"why", thread_limit_error(error.code().value()).what}});
      }
    }
  }
  wake_.notify_one();
}

std::vector<RdmaRevival::Back> RdmaRevival::take() {
  const std::lock_guard lock(mutex_);
  ready_.drain();
  return std::exchange(back_, {});
}

void RdmaRevival::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    MC_ASSERT(!failed_.empty());
    const auto next = std::min_element(failed_.begin(), failed_.end(),
                                       [](const FailedDevice& a, const FailedDevice& b) { return a.at < b.at; });
    if (next->at > now()) {
      if (next->at == kNever)
        wake_.wait(lock);
      else
        wake_.wait_until(lock, next->at);
      continue;
    }
    const size_t index = next->index;
    const std::string name = next->name;
    lock.unlock();
    auto device = attempt_(index, name);
    lock.lock();
    FailedDevice& entry =
        *std::find_if(failed_.begin(), failed_.end(), [&](const FailedDevice& known) { return known.index == index; });
    if (device) {
      entry.at = kNever;
      entry.pause.opened(now());
      back_.push_back({index, std::move(*device)});
      ready_.signal();
    } else {
      const Duration pause = entry.pause.next(now());
      entry.at = now() + pause;
      log_warn("rdma device not opened again",
               {{"device", name}, {"why", device.error().what}, {"next_try_s", to_seconds(pause)}});
    }
  }
}

Result<std::shared_ptr<RdmaDevice>> reopen(RdmaMemory& memory, size_t index, const std::string& name) {
  memory.lose(index);
  MC_TRY(opened, RdmaDevice::open(name));
  std::shared_ptr<RdmaDevice> device = std::move(opened);  // shared as Back::device
  MC_CHECK(memory.restore(index, device));
  return device;
}

}  // namespace mc::xfer

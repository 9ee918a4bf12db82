#include "xfer_rdma/connector.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/thread_limit.h"

namespace mc::xfer {

Result<int> RdmaConnector::open() {
  MC_TRY(ready, EventFd::open());
  ready_ = std::move(ready);
  return ready_.fd();
}

void RdmaConnector::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (Job& job : waiting_) done_.push_back({job.attempt, Error{Code::cancelled, "rdma: shutting down"}});
    waiting_.clear();
  }
  wake_.notify_all();
  for (auto& thread : threads_)
    if (thread.joinable()) thread.join();
}

void RdmaConnector::start(const Attempt& attempt, std::function<Result<void>()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= idle_ && threads_.size() < kThreadsMax) {
      try {
        threads_.emplace_back([this] { run(); });
      } catch (const std::system_error& error) {
        if (threads_.empty()) {
          done_.push_back({attempt, thread_limit_error(error.code().value())});
          return ready_.signal();
        }
      }
    }
    MC_ASSERT(!threads_.empty() && threads_.size() <= kThreadsMax);
    waiting_.push_back({attempt, std::move(work)});
  }
  wake_.notify_one();
}

std::vector<RdmaConnector::Done> RdmaConnector::take() {
  const std::lock_guard lock(mutex_);
  ready_.drain();
  return std::exchange(done_, {});
}

std::deque<RdmaConnector::Job>::iterator RdmaConnector::next() {
  return std::find_if(waiting_.begin(), waiting_.end(), [&](const Job& job) {
    const auto at = running_.find(job.attempt.endpoint);
    return at == running_.end() || at->second < kPerEndpointMax;
  });
}

void RdmaConnector::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [&] { return stop_ || next() != waiting_.end(); });
    --idle_;
    const auto chosen = next();
    if (chosen == waiting_.end()) return;
    const Job job = std::move(*chosen);
    waiting_.erase(chosen);
    MC_ASSERT_LT(running_[job.attempt.endpoint], kPerEndpointMax);
    ++running_[job.attempt.endpoint];
    lock.unlock();
    auto result = job.work();
    lock.lock();
    // This thread looks for work again.
    MC_ASSERT_LT(size_t{0}, running_[job.attempt.endpoint]);
    if (--running_[job.attempt.endpoint] == 0) running_.erase(job.attempt.endpoint);
    done_.push_back({job.attempt, result ? std::nullopt : std::optional(std::move(result).error())});
    ready_.signal();
  }
}

}  // namespace mc::xfer

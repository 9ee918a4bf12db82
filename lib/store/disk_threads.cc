// A disk by system calls: what every machine has. One operation runs in the caller's thread; several are spread over a
// few threads of this disk, as many as a device usefully has in flight.
#include <condition_variable>
#include <system_error>
#include <thread>

#include "base/assert.h"
#include "base/thread_limit.h"
#include "store/posix_files.h"

namespace mc::store {
namespace {

class ThreadsDisk final : public PosixFiles {
 public:
  static Result<std::unique_ptr<Disk>> make(const std::string& directory, Access access) {
    auto disk = std::make_unique<ThreadsDisk>();
    MC_CHECK(disk->enter(directory, access));
    MC_CHECK(disk->start());
    return std::unique_ptr<Disk>(std::move(disk));
  }
  ~ThreadsDisk() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
  }

  void run(std::span<Io> ios, const std::function<void(Io&)>& ended) override {
    if (ios.empty()) return;
    if (ios.size() == 1) {
      transfer(ios.front());
      return ended(ios.front());
    }
    Run run{.waiting = ios};
    // No allocation fails once an operation is under way.
    std::vector<Io*> now;
    now.reserve(ios.size());
    run.ended.reserve(ios.size());
    {
      const std::lock_guard lock(mutex_);
      runs_.push_back(&run);
    }
    wake_.notify_all();
    for (size_t left = ios.size(); left > 0; now.clear()) {
      {
        std::unique_lock lock(mutex_);
        run.wake.wait(lock, [&] { return !run.ended.empty(); });
        now.swap(run.ended);
      }
      left -= now.size();
      for (Io* io : now) ended(*io);
    }
  }

 private:
  static constexpr size_t kThreads = 16;
  struct Run {
    std::span<Io> waiting;  // operations that no thread has begun
    std::vector<Io*> ended = {};
    std::condition_variable wake = {};
  };

  /// All threads at once: a batch that could not start one would have no way to fail.
  Result<void> start() {
    try {
      for (size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      return thread_limit_error(error.code().value());
    }
    return {};
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stopping_ || !runs_.empty(); });
      if (runs_.empty()) return;
      Run& run = *runs_.front();
      MC_ASSERT(!run.waiting.empty());
      Io& io = run.waiting.front();
      run.waiting = run.waiting.subspan(1);
      if (run.waiting.empty()) runs_.pop_front();
      lock.unlock();
      transfer(io);
      lock.lock();
      run.ended.push_back(&io);
      run.wake.notify_one();  // under the lock: the run ends as soon as it has seen the last operation
    }
  }

  std::mutex mutex_;  // of everything below, and of every Run
  std::condition_variable wake_;
  std::deque<Run*> runs_;  // with operations that no thread has begun, oldest first
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace

const DiskEntry kDiskThreads = {
    .name = "threads",
    .summary = "system calls, spread over threads",
    .open = ThreadsDisk::make,
};

}  // namespace mc::store

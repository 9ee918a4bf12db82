// A disk by system calls: what every machine has. One operation runs in the caller's thread; several are spread over a
// few threads of this disk, as many as a device usefully has in flight.
#include <condition_variable>
#include <thread>

#include "store/posix_files.h"

namespace mc::store {
namespace {

class ThreadsDisk final : public PosixFiles {
 public:
  static Result<std::unique_ptr<Disk>> make(const std::string& directory) {
    auto disk = std::make_unique<ThreadsDisk>();
    MC_CHECK(disk->enter(directory));
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
    if (ios.size() == 1) {
      transfer(ios.front());
      return ended(ios.front());
    }
    Run run;
    {
      const std::lock_guard lock(mutex_);
      for (Io& io : ios) jobs_.push_back({&io, &run});
      while (threads_.size() < std::min(kThreads, ios.size())) threads_.emplace_back([this] { work(); });
    }
    wake_.notify_all();
    for (size_t left = ios.size(); left > 0;) {
      std::vector<Io*> now;
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
    std::vector<Io*> ended;
    std::condition_variable wake;
  };
  struct Job {
    Io* io;
    Run* run;
  };

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const Job job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      transfer(*job.io);
      lock.lock();
      job.run->ended.push_back(job.io);
      job.run->wake.notify_one();  // under the lock: the run ends as soon as it has seen the last operation
    }
  }

  std::mutex mutex_;  // of everything below, and of every Run
  std::condition_variable wake_;
  std::deque<Job> jobs_;
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

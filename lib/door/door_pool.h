// Threads of the front door for requests that cost before they are placed: parsing, templates, tokenising. The HTTP
// thread only reads and writes, so that probes, streams and small requests stay quick beside large ones.
//
//   submit -> waiting -> running -> settled by the job
//                |          '-----> settled at its deadline: the job's own answer comes too late for anybody
//                '----------------> settled at its deadline, never run
//
// The order of jobs: each owner (tenant, or client address) has a clock that its jobs' bytes advance, and the job that
// would end first by those clocks goes first (weighted fair queueing with equal weights; Demers, Keshav, Shenker,
// SIGCOMM 1989). So small jobs pass large ones, and an owner of many jobs does not pass an owner of one. Large jobs
// never take the last thread. A thread of its own watches the deadlines, so that no job is waited for, whatever it is
// at.
//
// The pool has a second duty: it gives the memory that costly jobs have freed back to the system. Every thread has an
// arena of the allocator, and an arena keeps what is freed in it. A job is costly when it is large or runs for kCostly.
// After kTrimDelay a thread that has no job to run calls malloc_trim(). Without this, the process would keep the memory
// of the largest job once for each thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace mc::door {

/// The client behind a connection, as an owner of jobs: its peer ("192.0.2.1:5123", "[::1]:5123", "user 1000") without
/// the port, which differs between connections of one client.
std::string client_of(std::string_view peer);

class DoorPool {
 public:
  static constexpr Duration kCostly = 20ms;
  static constexpr Duration kTrimDelay = 1s;

  struct Options {
    int threads = 2;  // at least 2
    size_t jobs_max = 1024;
    size_t bytes_max = size_t{256} << 20;  // of all that wait
    size_t large_bytes = size_t{1} << 20;  // jobs of more leave a thread to the others
    size_t running_bytes_max = SIZE_MAX;   // of all that run; a job of more runs when no other has bytes
    double owner_share = 0.5;              // of jobs_max and bytes_max
  };
  /// Why a job is settled without its own answer.
  enum class End : uint8_t { late, stopped };

  /// The fate of a submitted job; `full`: the queue has no room, or the owner's share of it has none.
  enum class Admission : uint8_t { taken, full, stopping };

  /// State that a job and its watcher share; the one that settles it answers.
  class Ticket {
   public:
    /// True for the first caller only.
    bool settle() { return !settled_.exchange(true, std::memory_order_acq_rel); }
    /// Nobody waits for the job's result.
    bool is_settled() const { return settled_.load(std::memory_order_acquire); }

   private:
    friend class DoorPool;
    std::atomic<bool> settled_{false};
    // Guarded by the pool's mutex:
    uint64_t number_ = 0;
    TimePoint deadline_ = kNever;
    std::function<void(End)> end_;
    std::pair<double, uint64_t> place_{};  // in waiting_, while the job waits
  };
  using TicketPtr = std::shared_ptr<Ticket>;

  struct Job {
    std::string owner;
    size_t bytes = 0;
    TimePoint deadline = kNever;
    std::function<void(const TicketPtr&)> run;  // on a thread of the pool
    std::function<void(End)> end;               // called once, on any thread, if `run` did not settle it in time
  };

  /// std::system_error when the system gives fewer threads.
  explicit DoorPool(const Options& options);
  /// stop()s.
  ~DoorPool();
  DoorPool(const DoorPool&) = delete;
  DoorPool& operator=(const DoorPool&) = delete;

  /// Any thread. When an allocation throws, nothing has changed.
  Admission submit(Job job);
  /// The deadline became known while the job runs.
  void set_deadline(const TicketPtr& ticket, TimePoint deadline);
  /// Ends what waits and what runs with End::stopped, and joins the threads: jobs must look at their tickets.
  void stop();
  size_t waiting() const;

 private:
  struct Waiting {
    Job job;
    TicketPtr ticket;
    double start = 0;
  };
  struct Owner {
    double clock = 0;            // when its last job would end
    size_t jobs = 0, bytes = 0;  // that wait
  };
  using Queue = std::map<std::pair<double, uint64_t>, Waiting>;
  using Deadlines = std::map<std::pair<TimePoint, uint64_t>, TicketPtr>;

  void work();
  bool wait_for_work(std::unique_lock<std::mutex>& lock, Queue::iterator& at);
  void watch();
  Queue::iterator next_job();
  Waiting take(Queue::iterator at);

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable has_work_, has_deadline_;
  Queue waiting_;  // by when the job would end
  std::map<std::string, Owner> owners_;
  Deadlines deadlines_;  // of jobs that wait or run
  size_t bytes_ = 0, running_bytes_ = 0;
  double clock_ = 0;  // start of the last job that was taken
  uint64_t submitted_ = 0;
  int large_running_ = 0;
  bool stopping_ = false;
  TimePoint trim_at_ = kNever;  // from then on an idle thread trims the arenas
  std::vector<TicketPtr> running_;
  std::vector<std::thread> threads_;
};

}  // namespace mc::door

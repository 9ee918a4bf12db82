#include "base/parallel.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <limits>
#include <semaphore>
#include <vector>

#include "base/clock.h"
#include "test.h"

using namespace mc;

namespace {

/// Nothing is required here: bodies of loops call it, and a throw out of one ends the process. A clock that cannot be
/// read says NaN, which no bound holds for.
double seconds_of(clockid_t clock) {
  timespec at{};
  if (clock_gettime(clock, &at) != 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(at.tv_sec) + 1e-9 * static_cast<double>(at.tv_nsec);
}
/// Processor time of the calling thread, and of all others of the process.
double own_seconds() {
  return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}
double others_seconds() {
  return seconds_of(CLOCK_PROCESS_CPUTIME_ID) - own_seconds();
}

constexpr auto kWhile = 24ms;  // that passes while a waiting thread's processor time is watched
void pass_time() {
  std::binary_semaphore never(0);
  CHECK_FALSE(never.try_acquire_for(kWhile));
}
constexpr double kSpinMost = 0.012;  // seconds: half of that; a wait spins for some tens of microseconds

/// The whole process on one processor, until the end of this.
class OneProcessor {
 public:
  OneProcessor() {
    REQUIRE(sched_getaffinity(0, sizeof before_, &before_) == 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  }
  ~OneProcessor() { sched_setaffinity(0, sizeof before_, &before_); }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  cpu_set_t before_{};
};

/// A child that is always busy, until the end of this.
class BusyChild {
 public:
  BusyChild() : child_(::fork()) {
    if (child_ == 0) {
      ::alarm(60);
      for (std::atomic<unsigned> turns{0};;) turns.fetch_add(1, std::memory_order_relaxed);
    }
    REQUIRE(child_ > 0);
  }
  ~BusyChild() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  BusyChild(const BusyChild&) = delete;
  BusyChild& operator=(const BusyChild&) = delete;

 private:
  pid_t child_;
};

/// The processor first: the child inherits it. Each undoes what it did though the next one fails.
struct CrowdedProcessor {
  OneProcessor processor;
  BusyChild child;
};

}  // namespace

TEST_CASE("base/parallel: every index runs once, whatever the count and the threads") {
  for (int threads : {1, 2, 3, 5}) {
    Parallel pool(threads);
    CHECK(pool.threads() == threads);
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      pool.for_each(count, [&](int64_t index, int worker) {
        REQUIRE(worker < threads);
        runs[static_cast<size_t>(index)].fetch_add(1);
      });
      for (const auto& run : runs) CHECK(run.load() == 1);
    }
  }
}

TEST_CASE("base/parallel: for_ranges cuts at multiples of the grain, for any number of threads") {
  for (int threads : {1, 4}) {
    Parallel pool(threads);
    std::vector<int64_t> end_of(100, -1);
    pool.for_ranges(97, 10, [&](int64_t begin, int64_t end, int) { end_of[static_cast<size_t>(begin)] = end; });
    for (int64_t begin = 0; begin < 100; ++begin)
      CHECK(end_of[static_cast<size_t>(begin)] == (begin % 10 == 0 ? std::min<int64_t>(begin + 10, 97) : -1));
  }
}

TEST_CASE("base/parallel: two bodies never hold one worker number at the same time") {
  Parallel pool(3);
  std::atomic<int> busy[3] = {};
  std::atomic<int> clashes{0};
  pool.for_each(2000, [&](int64_t, int worker) {
    if (busy[worker].fetch_add(1) != 0) clashes.fetch_add(1);
    busy[worker].fetch_sub(1);
  });
  CHECK(clashes.load() == 0);
}

TEST_CASE("base/parallel: what the bodies of one loop wrote is seen by the next loop") {
  Parallel pool(2);
  std::vector<int64_t> values(64, 0);
  for (int round = 0; round < 2000; ++round)
    pool.for_each(64, [&](int64_t index, int) {
      values[static_cast<size_t>(index)] += values[static_cast<size_t>(index)] == round;
    });
  for (int64_t value : values) CHECK(value == 2000);
}

TEST_CASE("base/parallel: bodies flush denormals on every thread, and the caller gets its own mode back") {
  volatile float tiny = 1e-38f;
  volatile float fraction = 0.1f;
  Parallel pool(3);
  std::vector<float> product(200, 1.0f);
  pool.for_each(200, [&](int64_t index, int) { product[static_cast<size_t>(index)] = tiny * fraction; });
  for (float value : product) CHECK(value == 0.0f);
  CHECK(tiny * fraction > 0.0f);
}

TEST_CASE("base/parallel: workers without a loop use no processor time") {
  Parallel pool(4);
  pool.for_each(100, [](int64_t, int) {});
  const double before = others_seconds();
  pass_time();
  CHECK(others_seconds() - before < kSpinMost);
}

TEST_CASE("base/parallel: a caller whose workers are late uses no processor time, nor do idle workers meanwhile") {
  Parallel pool(3);
  std::latch both(2);
  const double own = own_seconds(), others = others_seconds();
  // Two threads hold an index each: the worker's goes on, the caller waits for it, and the third has nothing to do.
  pool.for_each(2, [&](int64_t, int worker) {
    both.arrive_and_wait();
    if (worker != 0) pass_time();
  });
  CHECK(own_seconds() - own < kSpinMost);
  CHECK(others_seconds() - others < kSpinMost);
}

TEST_CASE("base/parallel: on a processor shared with a busy process loops go on, and waiting costs next to nothing") {
  const CrowdedProcessor crowded;
  Parallel pool(3);
  constexpr int kLoops = 20;
  constexpr double kWork = 200e-6;  // seconds of a worker's half of each loop, for which the caller waits
  std::atomic<int> done{0};
  const double own = own_seconds(), others = others_seconds();
  for (int loop = 0; loop < kLoops; ++loop) {
    std::latch both(2);
    pool.for_each(2, [&](int64_t, int worker) {
      both.arrive_and_wait();
      const double until = own_seconds() + kWork;
      while (worker != 0 && own_seconds() < until) {
      }
      done.fetch_add(1);
    });
  }
  CHECK(done.load() == 2 * kLoops);
  CHECK(own_seconds() - own < kSpinMost);
  CHECK(others_seconds() - others < kLoops * kWork + kSpinMost);
}

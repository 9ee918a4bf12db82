#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"
#include "test.h"
#include "xfer_rdma/reaper.h"

using namespace mc;
using namespace mc::xfer;

namespace {

/// Where destructors meet: each waits until `expected` are there. A ceiling: only a failing test reaches it.
struct Meeting {
  std::mutex mutex;
  std::condition_variable all;
  size_t expected = 0;
  size_t there = 0;
  size_t alone = 0;
};

struct Meets final : RdmaReaper::Remains {
  explicit Meets(Meeting& m) : meeting(m) {}
  ~Meets() override {
    std::unique_lock lock(meeting.mutex);
    ++meeting.there;
    meeting.all.notify_all();
    const bool met = meeting.all.wait_for(lock, 20s, [&] { return meeting.there >= meeting.expected; });
    if (!met) ++meeting.alone;
  }
  Meeting& meeting;
};

struct Counts final : RdmaReaper::Remains {
  explicit Counts(std::atomic<size_t>& c) : count(c) {}
  ~Counts() override { ++count; }
  std::atomic<size_t>& count;
};

}  // namespace

TEST_CASE("xfer/rdma_reaper: as many as there may be threads are destroyed side by side, none waits for another") {
  Meeting meeting{.expected = RdmaReaper::kThreadsMax};
  {
    RdmaReaper reaper;
    for (size_t i = 0; i < meeting.expected; ++i) reaper.take(std::make_unique<Meets>(meeting));
  }
  CHECK(meeting.there == meeting.expected);
  CHECK(meeting.alone == 0);
}

TEST_CASE("xfer/rdma_reaper: nothing is left when it ends, and what is too much is destroyed by its caller") {
  std::atomic<size_t> count{0};
  Meeting meeting{.expected = RdmaReaper::kThreadsMax + 1};
  {
    RdmaReaper reaper;
    for (size_t i = 0; i < RdmaReaper::kThreadsMax; ++i) reaper.take(std::make_unique<Meets>(meeting));
    const auto all_busy = [&] {
      std::unique_lock lock(meeting.mutex);
      return meeting.all.wait_for(lock, 20s, [&] { return meeting.there == RdmaReaper::kThreadsMax; });
    };
    REQUIRE(all_busy());
    for (size_t i = 0; i < RdmaReaper::kWaitingMax; ++i) reaper.take(std::make_unique<Counts>(count));
    CHECK(count == 0);  // every thread is busy
    reaper.take(std::make_unique<Counts>(count));
    CHECK(count == 1);
    const Meets last(meeting);  // lets the others go, when it ends
  }
  CHECK(count == RdmaReaper::kWaitingMax + 1);
  CHECK(meeting.alone == 0);
}

// Memory runs out at every allocation in turn while the door takes a job: that job is refused, and nothing else.
#include <condition_variable>
#include <future>
#include <mutex>

#include "failing_memory.h"
#include "door/door_pool.h"
#include "test.h"

using namespace mc;
using namespace mc::door;
using Admission = DoorPool::Admission;

TEST_CASE("attack/door: a job for which there is no memory leaves nothing in the door's pool") {
  constexpr size_t kShare = 3;  // jobs of an owner
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0, late = 0;
  const auto count = [&](int& counter) {
    const std::lock_guard lock(mutex);
    ++counter;
    changed.notify_all();
  };
  const auto wait_for = [&](const int& counter, int value) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, 30s, [&] { return counter >= value; });
  };
  DoorPool pool({.jobs_max = 2 * kShare});
  for (const char* owner : {"x", "y"}) {  // both threads are busy
    const auto block = [&](const DoorPool::TicketPtr& ticket) {
      count(running);
      released.wait();
      ticket->settle();
    };
    REQUIRE(pool.submit({.owner = owner, .bytes = 1, .run = block}) == Admission::taken);
  }
  REQUIRE(wait_for(running, 2));
  const std::string owner = "an owner whose name needs the heap";
  const TimePoint now = SystemClock::instance().now();
  int taken = 0;
  Admission last = Admission::taken;
  const auto submit = [&](TimePoint deadline) {
    last = pool.submit({.owner = owner,
                        .bytes = 100,
                        .deadline = deadline,
                        .run = [](const DoorPool::TicketPtr&) {},
                        .end = [&](DoorPool::End end) {
                          if (end == DoorPool::End::late) count(late);
                        }});
    taken += last == Admission::taken;
  };
  CHECK(test::with_each_allocation_failing([&] { submit(now); }) > 3);
  CHECK(last == Admission::taken);
  REQUIRE(wait_for(late, taken));
  submit(kNever);  // now the owner is there already, and the other allocations come earlier
  CHECK(test::with_each_allocation_failing([&] { submit(now); }) > 3);
  CHECK(last == Admission::taken);  // what failed has no part of the owner's share
  CHECK(wait_for(late, taken - 1));
  CHECK(pool.waiting() == 1);
  for (size_t i = 1; i < kShare; ++i) {
    submit(kNever);
    CHECK(last == Admission::taken);
  }
  CHECK(pool.waiting() == kShare);
  release.set_value();
  pool.stop();
  CHECK(late + static_cast<int>(kShare) == taken);  // what failed has no deadline
}

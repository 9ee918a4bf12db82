#include "door/door_pool.h"

#include <algorithm>
#include <cstdio>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "test.h"

using namespace mc;
using namespace mc::door;

namespace {

constexpr Duration kPatience = std::chrono::seconds(30);
constexpr size_t kLarge = size_t{2} << 20;

/// Jobs that end when they are told to, and note the order in which they began.
struct Bench {
  explicit Bench(DoorPool::Options options = {}) : pool(std::make_unique<DoorPool>(options)) {}
  ~Bench() {
    release.set_value();
    pool.reset();
  }

  bool submit(const std::string& name, const std::string& owner, size_t bytes, bool blocks = false,
              TimePoint deadline = kNever) {
    DoorPool::Job job;
    job.owner = owner;
    job.bytes = bytes;
    job.deadline = deadline;
    job.run = [this, name, blocks](const DoorPool::TicketPtr& ticket) {
      note(name);
      if (blocks) released.wait();
      note(ticket->settle() ? name + " answered" : name + " too late");
    };
    job.end = [this, name](DoorPool::End end) { note(name + (end == DoorPool::End::late ? " late" : " stopped")); };
    return pool->submit(std::move(job)) == DoorPool::Admission::taken;
  }
  void note(const std::string& what) {
    const std::lock_guard lock(mutex);
    events.push_back(what);
    changed.notify_all();
  }
  bool wait_for(const std::string& what) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, [&] { return index_of(what) >= 0; });
  }
  int index_of(const std::string& what) const {
    const auto at = std::find(events.begin(), events.end(), what);
    return at == events.end() ? -1 : static_cast<int>(at - events.begin());
  }
  int place_of(const std::string& what) {
    const std::lock_guard lock(mutex);
    return index_of(what);
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> events;
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::unique_ptr<DoorPool> pool;
};

}  // namespace

TEST_CASE("door/door_pool: bytes of jobs that run have a bound, and small jobs go past one that waits for room") {
  Bench bench({.threads = 4, .running_bytes_max = 3 * kLarge});
  CHECK(bench.submit("a", "one", 2 * kLarge, true));
  CHECK(bench.wait_for("a"));
  CHECK(bench.submit("b", "two", 2 * kLarge));
  CHECK(bench.submit("small", "three", 10));
  CHECK(bench.wait_for("small answered"));
  CHECK(bench.place_of("b") == -1);
  bench.release.set_value();
  CHECK(bench.wait_for("b answered"));
  bench.release = {};
}

TEST_CASE("door/door_pool: large jobs leave a thread to small ones") {
  Bench bench;
  REQUIRE(bench.submit("first", "a", kLarge, true));
  REQUIRE(bench.submit("second", "b", kLarge, true));
  REQUIRE(bench.wait_for("first"));
  for (int i = 0; i < 20; ++i) {
    REQUIRE(bench.submit("small" + std::to_string(i), "c", 100));
    REQUIRE(bench.wait_for("small" + std::to_string(i) + " answered"));
  }
  CHECK(bench.place_of("second") == -1);
}

TEST_CASE("door/door_pool: small jobs pass large ones, and many of one owner do not pass another's") {
  std::promise<void> over;
  Bench bench({.large_bytes = SIZE_MAX});
  DoorPool::Job job;  // holds one of the two threads, so that the other's order is the queue's
  job.run = [&](const DoorPool::TicketPtr&) {
    bench.note("holds");
    (void)over.get_future().wait_for(kPatience);
  };
  job.end = [](DoorPool::End) {};
  REQUIRE(bench.pool->submit(std::move(job)) == DoorPool::Admission::taken);
  REQUIRE(bench.wait_for("holds"));
  REQUIRE(bench.submit("blocks", "x", 1, true));
  REQUIRE(bench.wait_for("blocks"));
  for (int i = 0; i < 50; ++i) REQUIRE(bench.submit("many" + std::to_string(i), "a", 100'000));
  REQUIRE(bench.submit("one", "b", 150'000));
  REQUIRE(bench.submit("small", "c", 100));
  CHECK(bench.pool->waiting() == 52);
  bench.release.set_value();
  bench.release = std::promise<void>();
  REQUIRE(bench.wait_for("many49 answered"));
  over.set_value();
  CHECK(bench.place_of("small") < bench.place_of("many0"));
  CHECK(bench.place_of("one") < bench.place_of("many4"));
}

TEST_CASE("door/door_pool: the queue is bounded, in jobs and bytes, and each owner has a share of it") {
  Bench bench({.jobs_max = 8, .bytes_max = 8000});
  REQUIRE(bench.submit("blocks 1", "x", 1, true));
  REQUIRE(bench.submit("blocks 2", "y", 1, true));
  REQUIRE(bench.wait_for("blocks 1"));
  REQUIRE(bench.wait_for("blocks 2"));
  for (int i = 0; i < 4; ++i) CHECK(bench.submit("a" + std::to_string(i), "a", 100));
  CHECK_FALSE(bench.submit("a4", "a", 100));   // half of the jobs
  CHECK_FALSE(bench.submit("b0", "b", 4001));  // half of the bytes
  for (int i = 0; i < 4; ++i) CHECK(bench.submit("b" + std::to_string(i), "b", 100));
  CHECK_FALSE(bench.submit("c0", "c", 100));
}

TEST_CASE("door/door_pool: many connections of one address have one client's share") {
  Bench bench({.jobs_max = 32});  // 16 of one owner
  REQUIRE(bench.submit("blocks 1", "x", 1, true));
  REQUIRE(bench.submit("blocks 2", "y", 1, true));
  REQUIRE(bench.wait_for("blocks 1"));
  REQUIRE(bench.wait_for("blocks 2"));
  const auto connect = [&](const std::string& host, int port) {
    return bench.submit("job", client_of(host + ":" + std::to_string(port)), 100);
  };
  for (int port = 50'001; port <= 50'016; ++port) CHECK(connect("192.0.2.1", port));
  CHECK_FALSE(connect("192.0.2.1", 50'017));
  CHECK(connect("[2001:db8::1]", 50'017));
  CHECK(client_of("[2001:db8::1]:7") != client_of("[2001:db8::2]:7"));
  CHECK(client_of("user 1000") != client_of("user 0"));
}

TEST_CASE("door/door_pool: a job is settled at its deadline, whether it waits or runs, and once") {
  Bench bench;
  const TimePoint now = SystemClock::instance().now();
  REQUIRE(bench.submit("runs", "a", 100, true, now + 2s));
  REQUIRE(bench.wait_for("runs"));
  REQUIRE(bench.submit("blocks", "b", 100, true));
  REQUIRE(bench.wait_for("blocks"));
  REQUIRE(bench.submit("waits", "c", 100, false, now + 100ms));
  CHECK(bench.wait_for("waits late"));
  CHECK(bench.wait_for("runs late"));
  CHECK(bench.pool->waiting() == 0);
  CHECK(bench.place_of("waits") == -1);
  bench.release.set_value();
  bench.release = std::promise<void>();
  CHECK(bench.wait_for("runs too late"));
  CHECK(bench.wait_for("blocks answered"));
}

TEST_CASE("door/door_pool: a deadline that is known later counts from then on") {
  Bench bench;
  DoorPool::Job job;
  job.deadline = SystemClock::instance().now() + std::chrono::hours(1);
  job.run = [&](const DoorPool::TicketPtr& ticket) {
    bench.pool->set_deadline(ticket, SystemClock::instance().now() + 10ms);
    bench.note("set");
    bench.released.wait();
    CHECK(ticket->is_settled());
  };
  job.end = [&](DoorPool::End) { bench.note("late"); };
  REQUIRE(bench.pool->submit(std::move(job)) == DoorPool::Admission::taken);
  CHECK(bench.wait_for("late"));
}

TEST_CASE("door/door_pool: stopping ends what waits and what runs") {
  Bench bench;
  REQUIRE(bench.submit("runs", "a", 100, true));
  REQUIRE(bench.submit("runs too", "b", 100, true));
  REQUIRE(bench.wait_for("runs"));
  REQUIRE(bench.wait_for("runs too"));
  REQUIRE(bench.submit("waits", "c", 100));
  std::thread stopper([&] { bench.pool->stop(); });
  CHECK(bench.wait_for("runs stopped"));
  CHECK(bench.wait_for("waits stopped"));
  bench.release.set_value();
  bench.release = std::promise<void>();
  stopper.join();
  CHECK(bench.place_of("waits") == -1);
  CHECK(bench.place_of("runs answered") == -1);
  CHECK(bench.pool->submit({.owner = "a", .bytes = 1}) == DoorPool::Admission::stopping);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose allocators keep what is freed
TEST_CASE("door/door_pool: memory that a costly job has freed goes back to the system") {
  constexpr size_t kBlocks = 64 << 10, kBlockBytes = 1024;
  const auto resident_bytes = [] {
    unsigned long all = 0, pages = 0;
    FILE* file = std::fopen("/proc/self/statm", "r");
    REQUIRE(file != nullptr);
    if (std::fscanf(file, "%lu %lu", &all, &pages) != 2) pages = 0;
    std::fclose(file);
    return pages * 4096;
  };
  std::unique_ptr<char[]> last;  // lies above the others, so that free() alone keeps their pages
  size_t held = 0;
  std::promise<void> ran;
  DoorPool pool({});
  DoorPool::Job job;
  job.bytes = kLarge;
  job.run = [&](const DoorPool::TicketPtr& ticket) {
    std::vector<std::unique_ptr<char[]>> blocks;
    for (size_t i = 0; i < kBlocks; ++i) blocks.push_back(std::make_unique<char[]>(kBlockBytes));
    held = resident_bytes();
    last = std::move(blocks.back());
    ticket->settle();
    ran.set_value();
  };
  REQUIRE(pool.submit(std::move(job)) == DoorPool::Admission::taken);
  ran.get_future().wait();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const auto is_back = [&] { return resident_bytes() + kBlocks * kBlockBytes / 2 < held; };
  while (!is_back() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  CHECK(is_back());
}
#endif

#include <poll.h>

#include "test.h"
#include "xfer/poller.h"
#include "xfer_rdma/revival.h"

namespace rdma_revival_test {

using namespace mc;
using namespace mc::xfer;

namespace {

constexpr Duration kRevivalMost = 20s;

/// A world in which devices open, or do not, as a test says. No device is needed: nobody looks into what comes back.
struct Ward {
  struct Try {
    size_t index;
    std::string name;
    TimePoint at;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Try> tries;
  size_t failures = 0;     // so many attempts fail first
  size_t held = SIZE_MAX;  // attempts on that index do not end
  RdmaRevival revival;
  int fd = -1;

  Ward(Duration least, Duration most)
      : revival([this](size_t index, const std::string& name) { return attempt(index, name); }, least, most) {
    auto opened = revival.open();
    REQUIRE_OK(opened);
    fd = *opened;
  }
  Result<std::shared_ptr<RdmaDevice>> attempt(size_t index, const std::string& name) {
    std::unique_lock lock(mutex);
    tries.push_back({index, name, now()});
    changed.notify_all();
    changed.wait_for(lock, kRevivalMost, [&] { return held != index; });
    if (failures == 0) return std::shared_ptr<RdmaDevice>();
    --failures;
    return Error{Code::not_found, "not there yet"};
  }
  bool tried(size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kRevivalMost, [&] { return tries.size() >= count; });
  }
  void let_go() {
    const std::lock_guard lock(mutex);
    held = SIZE_MAX;
    changed.notify_all();
  }
  std::vector<RdmaRevival::Back> wait() {
    pollfd wanted{fd, POLLIN, 0};
    REQUIRE(::poll(&wanted, 1, 20000) == 1);
    return revival.take();
  }
};

}  // namespace

TEST_CASE("xfer/rdma_revival: a device that fails again and again stays closed longer, until it has lasted") {
  RevivalPause pause(1s, 8s);
  TimePoint now = TimePoint{} + 1000s;
  CHECK(pause.next(now) == 1s);
  CHECK(pause.next(now + 1s) == 2s);  // it could not be opened
  pause.opened(now + 3s);
  CHECK(pause.next(now + 4s) == 4s);  // it lived a second: flapping does not look fresh
  pause.opened(now + 8s);
  CHECK(pause.next(now + 9s) == 8s);
  CHECK(pause.next(now + 18s) == 8s);  // the most
  pause.opened(now + 26s);
  CHECK(pause.next(now + 26s + 125s) == 4s);  // two minutes in use: halved twice, then doubled
  pause.opened(now + 200s);
  CHECK(pause.next(now + 200s + 3600s) == 1s);
}

TEST_CASE("xfer/rdma_revival: a device that failed is opened again by its name after its pause, and given back once") {
  Ward ward(3ms, 20ms);
  const TimePoint failed = now();
  ward.revival.failed(2, "mlx5_2");
  const auto back = ward.wait();
  REQUIRE(back.size() == 1);
  CHECK(back[0].index == 2);
  REQUIRE(ward.tries.size() == 1);
  CHECK(ward.tries[0].name == "mlx5_2");
  CHECK(ward.tries[0].at - failed >= 3ms);
  CHECK(ward.revival.take().empty());
  pollfd wanted{ward.fd, POLLIN, 0};
  CHECK(::poll(&wanted, 1, 0) == 0);  // nothing is announced any more
}

TEST_CASE("xfer/rdma_revival: what cannot be opened is tried again, each time twice as late up to the most") {
  Ward ward(2ms, 8ms);
  ward.failures = 4;
  ward.revival.failed(0, "mlx5_0");
  REQUIRE(ward.wait().size() == 1);
  REQUIRE(ward.tries.size() == 5);
  const Duration least[] = {4ms, 8ms, 8ms, 8ms};
  for (size_t i = 0; i < 4; ++i) CHECK(ward.tries[i + 1].at - ward.tries[i].at >= least[i]);
}

TEST_CASE("xfer/rdma_revival: a device that fails again after it came back is opened again, and waits longer") {
  Ward ward(2ms, 50ms);
  Duration pause = 2ms;
  for (size_t round = 0; round < 3; ++round, pause *= 2) {
    const TimePoint failed = now();
    ward.revival.failed(0, "mlx5_0");
    REQUIRE(ward.wait().size() == 1);
    REQUIRE(ward.tries.size() == round + 1);
    CHECK(ward.tries[round].at - failed >= pause);
  }
}

TEST_CASE("xfer/rdma_revival: a device that takes long to open does not lose the failure of another") {
  Ward ward(1ms, 8ms);
  ward.held = 0;
  ward.revival.failed(0, "mlx5_0");
  REQUIRE(ward.tried(1));
  ward.revival.failed(1, "mlx5_1");
  ward.let_go();
  std::vector<size_t> back;
  while (back.size() < 2)
    for (const auto& each : ward.wait()) back.push_back(each.index);
  CHECK(back == std::vector<size_t>{0, 1});
}

TEST_CASE("xfer/rdma_revival: to stop waits for the attempt under way, and none is made after it") {
  Ward ward(1ms, 8ms);
  ward.held = 0;
  ward.revival.failed(0, "mlx5_0");
  ward.revival.failed(1, "mlx5_1");
  REQUIRE(ward.tried(1));
  std::atomic<bool> stopped{false};
  std::thread stopping([&] {
    ward.revival.stop();
    stopped = true;
  });
  for (const TimePoint limit = now() + kRevivalMost; !ward.revival.stopping() && now() < limit;)
    std::this_thread::yield();
  CHECK(ward.revival.stopping());
  CHECK_FALSE(stopped);  // it cannot have: the attempt is held
  ward.let_go();
  stopping.join();
  const size_t tries = ward.tries.size();
  ward.revival.failed(0, "mlx5_0");
  CHECK(ward.tries.size() == tries);
  CHECK(tries <= 2);
}

}  // namespace rdma_revival_test

#include <poll.h>

#include <algorithm>

#include "test.h"
#include "xfer_rdma/connector.h"

using namespace mc;
using namespace mc::xfer;

TEST_CASE("xfer/rdma_connector: an attempt that waits holds up no other, and each is answered once") {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  RdmaConnector connector;
  auto fd = connector.open();
  REQUIRE_OK(fd);
  connector.start({.path = 1, .epoch = 7}, [&]() -> Result<void> {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, 20s, [&] { return open; });
    return {};
  });
  std::vector<RdmaConnector::Done> done;
  const auto wait_for = [&](size_t count) {
    while (done.size() < count && wait_fd(*fd, POLLIN, SystemClock::instance().now() + 20s))
      for (auto& each : connector.take()) done.push_back(std::move(each));
    return done.size() == count;
  };
  for (uint32_t i = 2; i < 10; ++i)
    connector.start({.path = i}, [i]() -> Result<void> {
      if (i % 2 == 0) return {};
      return Error{Code::io, "no answer"};
    });
  REQUIRE(wait_for(8));  // while the first is still at it
  for (const auto& each : done) {
    CHECK(each.attempt.path != 1);
    CHECK(each.error.has_value() == (each.attempt.path % 2 == 1));
  }
  {
    const std::lock_guard lock(mutex);
    open = true;
  }
  changed.notify_all();
  REQUIRE(wait_for(9));
  CHECK(done.back().attempt.epoch == 7);
}

TEST_CASE("xfer/rdma_connector: what it has not begun when it stops is answered as cancelled") {
  std::mutex mutex;
  std::condition_variable changed;
  size_t begun = 0;
  RdmaConnector connector;
  REQUIRE_OK(connector.open());
  std::thread stopping;
  {
    std::unique_lock lock(mutex);
    for (uint32_t i = 0; i < RdmaConnector::kThreadsMax + 5; ++i)
      connector.start({.endpoint = EndpointId{i}, .path = i}, [&]() -> Result<void> {
        std::unique_lock own(mutex);
        ++begun;
        changed.notify_all();
        changed.wait_for(own, 20s, [&] { return begun > RdmaConnector::kThreadsMax; });
        return {};
      });
    CHECK(changed.wait_for(lock, 20s, [&] { return begun == RdmaConnector::kThreadsMax; }));
    stopping = std::thread([&] { connector.stop(); });
  }
  std::vector<RdmaConnector::Done> done;
  while (done.size() < 5)
    for (auto& each : connector.take()) done.push_back(std::move(each));
  {
    const std::lock_guard lock(mutex);
    begun = RdmaConnector::kThreadsMax + 1;  // lets them go
  }
  changed.notify_all();
  stopping.join();
  for (const auto& each : done) CHECK(each.error->code == Code::cancelled);
  CHECK(connector.take().size() == RdmaConnector::kThreadsMax);
}

TEST_CASE("xfer/rdma_connector: an endpoint whose addresses nobody answers for leaves the others their threads") {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  size_t at_once = 0;
  size_t most = 0;
  RdmaConnector connector;
  auto fd = connector.open();
  REQUIRE_OK(fd);
  constexpr uint32_t kSilent = 2 * RdmaConnector::kThreadsMax;
  for (uint32_t i = 0; i < kSilent; ++i)
    connector.start({.endpoint = EndpointId{1}, .path = i}, [&]() -> Result<void> {
      std::unique_lock lock(mutex);
      most = std::max(most, ++at_once);
      changed.wait_for(lock, 20s, [&] { return open; });
      --at_once;
      return {};
    });
  std::vector<RdmaConnector::Done> done;
  const auto wait_for = [&](size_t count) {
    while (done.size() < count && wait_fd(*fd, POLLIN, SystemClock::instance().now() + 20s))
      for (auto& each : connector.take()) done.push_back(std::move(each));
    return done.size() == count;
  };
  connector.start({.endpoint = EndpointId{2}, .path = 99}, []() -> Result<void> { return {}; });
  REQUIRE(wait_for(1));
  CHECK(done[0].attempt.path == 99);
  {
    const std::lock_guard lock(mutex);
    open = true;
  }
  changed.notify_all();
  REQUIRE(wait_for(kSilent + 1));  // in their order, no more than a few at once
  CHECK(most <= RdmaConnector::kPerEndpointMax);
}

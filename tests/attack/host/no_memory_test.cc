// Each allocation in turn fails while the control loop makes a list of blocks: that list is answered 503, and the next
// one is whole.
#include <thread>

#include "replaced_memory.h"
#include "test.h"

namespace mc::test {

/// The allocation of this thread that fails, counted from 1; 0 = none. Later ones succeed, as the reserve of a process
/// lets them.
inline thread_local long t_fails_at = 0;

inline bool may_allocate() {
  return t_fails_at == 0 || --t_fails_at != 0;
}

}  // namespace mc::test

#include "unit/host/list_server.h"
#include "unit/http/raw_client.h"

using namespace mc;
using namespace mc::host;

namespace {

/// Runs tasks one by one; only what a task does before it posts the next one may fail.
struct OneTaskLoop final : node::MachineLoop {
  void post(Task given) override {
    test::t_fails_at = 0;
    const std::lock_guard lock(mutex);
    task = std::move(given);
  }
  void deliver(const node::Event&) override {}
  bool run(long fails_at) {
    Task next;
    {
      const std::lock_guard lock(mutex);
      next = std::exchange(task, nullptr);
    }
    if (!next) return false;
    node::Actions actions;
    test::t_fails_at = fails_at;
    next(TimePoint{}, actions);
    test::t_fails_at = 0;
    return true;
  }
  std::mutex mutex;
  Task task;
};

}  // namespace

TEST_CASE("attack/host: a list of blocks for which there is no memory is answered 503, and the next one is whole") {
  ListServer<OneTaskLoop> b;
  test::RawClient client(b.port());
  const auto list = [&](long fails_at) {
    client.send(b.get);
    const TimePoint deadline = test::patience();
    while (!b.loop.run(fails_at) && SystemClock::instance().now() < deadline) std::this_thread::yield();
    while (b.loop.run(fails_at)) {
    }
    return client.read_response();
  };
  for (long n = 1; n <= 5; ++n) {  // the first allocations are those of the totals
    CAPTURE(n);
    const std::string refused = list(n);
    CHECK(refused.starts_with("HTTP/1.1 503 "));
    CHECK(refused.find("not enough memory for the list") != std::string::npos);
    CHECK(list(0).find("\"memory_blocks\":") != std::string::npos);
  }
}

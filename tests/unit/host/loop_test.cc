// The control loop with a real hub and a machine that notes its events.

#include "host/loop.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "test.h"

namespace loop_test {

using namespace mc;
using namespace mc::host;

namespace {

/// Notes stalls and ticks in their order. A Tick is due every 20 ms.
struct NotingMachine final : node::Machine {
  void handle(const node::Event& event, TimePoint now, node::Actions&) override {
    if (const auto* stalled = std::get_if<node::HostStalled>(&event)) stalls.push_back({stalled->time, ticks});
    if (!std::holds_alternative<node::Tick>(event)) return;
    ++ticks;
    due = now + 20ms;
  }
  TimePoint next_wakeup() const override { return due; }
  void check() const override {}
  bool idle() const override { return true; }

  struct Stall {
    Duration time{};
    int ticks = 0;  // before it
  };
  std::vector<Stall> stalls;
  int ticks = 0;
  TimePoint due{};
};

struct Bench {
  Bench() {
    ctl::HubOptions hub;
    hub.name = "n";
    hub.instance.bytes.fill(1);
    auto opened = Links::open(hub, std::nullopt);
    REQUIRE_OK(opened);
    links = std::move(*opened);
  }
  /// Runs the loop until `after_round` says true; fails the test after a minute.
  void run(const std::function<bool()>& after_round) {
    const TimePoint end = SystemClock::instance().now() + 60s;
    Loop* running = nullptr;
    auto loop = Loop::open({.machine = &machine, .links = links.get(), .after_events = [&] {
                              if (after_round() || SystemClock::instance().now() > end) running->stop();
                            }});
    REQUIRE_OK(loop);
    running = loop->get();
    running->run();
    REQUIRE(SystemClock::instance().now() <= end);
  }
  /// A stall of at least `time`, which was told to the machine before its tick number `ticks`.
  bool was_told(Duration time, int ticks) const {
    return std::ranges::any_of(machine.stalls,
                               [&](const auto& stall) { return stall.time >= time && stall.ticks <= ticks; });
  }

  NotingMachine machine;
  std::unique_ptr<Links> links;
};

void stand_still(Duration time) {
  (void)EventFd::open()->wait(after(SystemClock::instance().now(), time));
}

}  // namespace

TEST_CASE("host/loop: the machine is told of a long round before the next tick") {
  Bench b;
  int ticks = 0;
  b.run([&] {
    if (ticks == 0 && b.machine.ticks == 3) {
      ticks = b.machine.ticks;
      stand_still(400ms);
    }
    return ticks > 0 && b.machine.ticks > ticks;
  });
  CHECK(b.was_told(400ms, ticks));
}

TEST_CASE("host/loop: a process that was stopped tells the machine so before the next tick") {
  Bench b;
  int ticks = 0;  // before the stop
  pid_t stopper = -1;
  TimePoint ended{};  // the round before
  bool was_stopped = false;
  b.run([&] {
    const TimePoint now = SystemClock::instance().now();
    was_stopped = stopper >= 0 && now - ended >= 500ms;
    if (!was_stopped) ended = now, ticks = b.machine.ticks;
    if (stopper < 0 && b.machine.ticks == 3) {
      stopper = ::fork();
      if (stopper == 0) {
        (void)::kill(::getppid(), SIGSTOP);
        (void)::poll(nullptr, 0, 600);
        (void)::kill(::getppid(), SIGCONT);
        ::_exit(0);
      }
    }
    return was_stopped;
  });
  REQUIRE(stopper > 0);
  CHECK(::waitpid(stopper, nullptr, 0) == stopper);
  CHECK(b.was_told(400ms, ticks));
}

TEST_CASE("host/loop: a sleep that was planned is no stall") {
  Bench b;
  b.machine.due = kNever;
  int rounds = 0;
  b.run([&] { return ++rounds == 6; });   // each of the sleeps between them is 200 ms long
  CHECK_LT(b.machine.stalls.size(), 5u);  // a loaded machine may end some of them late
}

}  // namespace loop_test

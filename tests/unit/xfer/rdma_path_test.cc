#include "test.h"
#include "xfer_rdma/path.h"

namespace rdma_path_test {

using namespace mc;
using namespace mc::xfer;
using State = PathMachine::State;

namespace {

const TimePoint kStart = TimePoint{} + 1000s;

/// Through one attempt to `up`.
void bring_up(PathMachine& path, TimePoint now) {
  path.begin(now);
  path.connected();
  path.verified(now);
}

/// Fails an attempt or a path that is up and drains; how long the path then waits.
Duration fail(PathMachine& path, PathCause cause, TimePoint now) {
  REQUIRE(path.fail(cause, now));
  CHECK(path.state() == State::draining);
  CHECK(path.due() == kNever);  // no attempt while anything is posted
  path.drained(now);
  CHECK(path.state() == State::cooldown);
  return path.due() - now;
}

}  // namespace

TEST_CASE("xfer/rdma_path: each completion status has the cause and the code of its class") {
  for (const auto status :
       {WorkStatus::retry_exceeded, WorkStatus::rnr_retry_exceeded, WorkStatus::local_operation, WorkStatus::other}) {
    CHECK(classify(status).cause == PathCause::fault);
    CHECK(classify(status).code == Code::io);  // worth another attempt elsewhere
  }
  for (const auto status :
       {WorkStatus::remote_access, WorkStatus::remote_invalid_request, WorkStatus::remote_operation}) {
    CHECK(classify(status).cause == PathCause::refused);
    CHECK(classify(status).code == Code::not_found);
  }
  for (const auto status : {WorkStatus::local_length, WorkStatus::local_protection}) {
    CHECK(classify(status).cause == PathCause::bug);
    CHECK(classify(status).code == Code::invalid);  // never retried
  }
  CHECK(classify(WorkStatus::fatal).cause == PathCause::nic);
  CHECK(classify(WorkStatus::flushed).code == Code::io);
  CHECK(classify(WorkStatus::ok).code == Code::ok);
}

TEST_CASE("xfer/rdma_path: a path goes up, drains, cools down and comes back with a new epoch") {
  PathMachine path({});
  CHECK(path.may_begin(kStart));
  CHECK(path.begin(kStart) == 1);
  CHECK(!path.may_begin(kStart));
  CHECK(path.state() == State::connecting);
  path.connected();
  CHECK(path.state() == State::verifying);
  path.verified(kStart);
  CHECK(path.state() == State::up);
  CHECK(path.due() == kNever);
  CHECK(path.current(1));
  CHECK(fail(path, PathCause::fault, kStart) == 1s);
  CHECK(!path.current(1));
  CHECK(!path.may_begin(kStart + 999ms));
  CHECK(path.may_begin(kStart + 1s));
  CHECK(path.begin(kStart + 1s) == 2);
}

TEST_CASE("xfer/rdma_path: an attempt that is not verified in time is late") {
  PathMachine path({.attempt = 2s});
  path.begin(kStart);
  CHECK(path.due() == kStart + 2s);
  CHECK(!path.late(kStart + 1999ms));
  path.connected();
  CHECK(path.late(kStart + 2s));
  path.verified(kStart + 2s);
  CHECK(!path.late(kStart + 100s));
}

TEST_CASE("xfer/rdma_path: messages of an older attempt change nothing") {
  PathMachine path({});
  path.begin(kStart);
  fail(path, PathCause::fault, kStart);
  path.begin(kStart + 5s);
  CHECK(!path.current(1));
  CHECK(path.current(2));
  CHECK(!path.current(3));
}

TEST_CASE("xfer/rdma_path: a listener refuses an offer that is not newer than the last") {
  PathMachine path({});
  CHECK(path.accept(5, kStart));
  fail(path, PathCause::fault, kStart);
  CHECK(!path.accept(5, kStart));
  CHECK(!path.accept(4, kStart));
  CHECK(path.accept(6, kStart));  // the dialler decides when: cooling down does not hold its offers up
  CHECK(path.epoch() == 6);
}

TEST_CASE("xfer/rdma_path: failing twice is failing once") {
  PathMachine path({});
  CHECK(!path.fail(PathCause::fault, kStart));
  bring_up(path, kStart);
  CHECK(path.fail(PathCause::port, kStart));
  CHECK(!path.fail(PathCause::fault, kStart));
  CHECK(path.cause() == PathCause::port);  // the first cause is the cause
}

TEST_CASE("xfer/rdma_path: cooldown doubles up to its bound") {
  PathMachine path({.cooldown_min = 1s, .cooldown_max = 60s});
  TimePoint now = kStart;
  for (const Duration expected : {Duration(1s), Duration(2s), Duration(4s), Duration(8s), Duration(16s), Duration(32s),
                                  Duration(60s), Duration(60s)}) {
    path.begin(now);
    const Duration wait = fail(path, PathCause::fault, now);
    CHECK(wait == expected);
    now += wait;
  }
}

TEST_CASE("xfer/rdma_path: cooldown is halved for every minute up, not forgotten at the first success") {
  const auto after = [](Duration up) {
    PathMachine path({.cooldown_min = 1s, .cooldown_max = 60s});
    TimePoint now = kStart;
    for (int i = 0; i < 5; ++i) {  // 1, 2, 4, 8, 16
      path.begin(now);
      now += fail(path, PathCause::fault, now);
    }
    bring_up(path, now);
    return fail(path, PathCause::fault, now + up);
  };
  CHECK(after(59s) == 32s);
  CHECK(after(60s) == 16s);
  CHECK(after(121s) == 8s);
  CHECK(after(600s) == 1s);
  CHECK(after(86400s) == 1s);
}

TEST_CASE("xfer/rdma_path: what is not the path's fault costs it no cooldown") {
  PathMachine path({.cooldown_min = 1s, .settle = 50ms});
  bring_up(path, kStart);
  CHECK(fail(path, PathCause::refused, kStart) == 50ms);
  CHECK(path.penalty() == Duration{});
  bring_up(path, kStart + 1s);
  CHECK(fail(path, PathCause::restart, kStart + 1s) == 50ms);
  bring_up(path, kStart + 2s);
  CHECK(fail(path, PathCause::port, kStart + 2s) == 1s);
  CHECK(path.penalty() == Duration{});
}

TEST_CASE("xfer/rdma_path: a port that comes back ends the wait") {
  PathMachine path({.cooldown_min = 10s});
  bring_up(path, kStart);
  fail(path, PathCause::port, kStart);
  CHECK(!path.may_begin(kStart + 1s));
  path.wake(kStart + 1s);
  CHECK(path.may_begin(kStart + 1s));
}

TEST_CASE("xfer/rdma_path: a cause this version does not know is a fault of the path") {
  CHECK(path_cause(2) == PathCause::refused);
  CHECK(path_cause(0) == PathCause::fault);
  CHECK(path_cause(200) == PathCause::fault);
}

}  // namespace rdma_path_test

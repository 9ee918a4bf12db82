#include "host/worker_watch.h"

#include "base/errors.h"
#include "test.h"

namespace worker_watch_test {

using namespace mc;
using namespace mc::host;

namespace {

using Disk = node::DiskTier::State;

const TimePoint kStart = TimePoint{} + 10s;

struct Bench {
  node::Registration registration{"", 500ms, 1};
  WorkerWatch watch;

  InstanceId conductor() const {
    InstanceId id;
    id.bytes[0] = 9;
    return id;
  }
  void welcome(const std::string& name, bool has_tenants = false) {
    registration.welcomed(conductor(), {name, 200, 1000, has_tenants}, kStart);
  }
  void refuse_name(TimePoint now) { registration.refused_with({err::kNameTaken, "the name p0 is taken"}, now); }
  /// Whether the node gives up while refusals of its name come twice a second until `from` + `time`.
  bool is_refused_again_and_again(TimePoint from, Duration time) {
    bool gives_up = false;
    for (TimePoint at = from; at <= from + time; at += 500ms) {
      refuse_name(at);
      gives_up = gives_up || look(at).refused != nullptr;
    }
    return gives_up;
  }
  WorkerWatch::Changes look(TimePoint now = kStart, Disk disk = Disk::none) {
    return watch.look(registration, disk, now);
  }
};

}  // namespace

TEST_CASE("host/worker_watch: each name that the conductor gives is reported once") {
  Bench b;
  CHECK_FALSE(b.look().named);
  b.welcome("p0");
  CHECK(b.look().named);
  CHECK(b.watch.name() == "p0");
  CHECK_FALSE(b.look().named);
  b.registration.lost(kStart);
  CHECK_FALSE(b.look().named);
  CHECK(b.watch.name() == "p0");
  b.welcome("p7");
  CHECK(b.look().named);
  CHECK(b.watch.name() == "p7");
}

TEST_CASE("host/worker_watch: each return to a conductor is reported once, and the first registration is none") {
  Bench b;
  b.welcome("p0");
  CHECK_FALSE(b.look().rejoined);
  for (int turn = 0; turn < 2; ++turn) {
    b.registration.lost(kStart);
    CHECK_FALSE(b.look().rejoined);
    b.welcome("p0");
    CHECK(b.look().rejoined);
    CHECK_FALSE(b.look().rejoined);
  }
  b.registration.lost(kStart);
  (void)b.look();
  b.welcome("p7");
  const auto changes = b.look();
  CHECK(changes.named);
  CHECK_FALSE(changes.rejoined);
}

TEST_CASE("host/worker_watch: a wait for the conductor is reported once, unless the node was registered in time") {
  Bench b;
  CHECK_FALSE(b.look(kStart + 60s).waits);  // the loop has not started
  b.watch.start(kStart);
  CHECK_FALSE(b.look(kStart + WorkerWatch::kSilence - 1ns).waits);
  CHECK(b.look(kStart + WorkerWatch::kSilence).waits);
  CHECK_FALSE(b.look(kStart + 60s).waits);

  Bench named;
  named.watch.start(kStart);
  named.welcome("p0");
  CHECK_FALSE(named.look(kStart + 60s).waits);
}

TEST_CASE("host/worker_watch: a taken name is a reason to give up only when it stays taken, other refusals at once") {
  Bench b;
  CHECK_FALSE(b.is_refused_again_and_again(kStart, WorkerWatch::kNameWait));
  b.refuse_name(kStart + WorkerWatch::kNameWait + 1ns);
  CHECK(b.look(kStart + WorkerWatch::kNameWait + 1ns).refused != nullptr);
  b.welcome("p0");  // the name came free
  CHECK(b.look(kStart + 60s).refused == nullptr);
  b.registration.lost(kStart + 60s);
  CHECK_FALSE(b.is_refused_again_and_again(kStart + 61s, WorkerWatch::kNameWait));  // the wait begins anew

  Bench other;
  other.registration.refused_with({err::kKvLayoutMismatch, "another KV layout"}, kStart);
  REQUIRE(other.look(kStart).refused != nullptr);
  CHECK(other.look(kStart).refused->mc == err::kKvLayoutMismatch);
}

TEST_CASE("host/worker_watch: time in which no refusal comes is no reason to give up") {
  Bench b;
  b.refuse_name(kStart);
  CHECK(b.look(kStart).refused == nullptr);
  CHECK(b.look(kStart + 60s).refused == nullptr);  // the conductor does not answer
  b.refuse_name(kStart + 61s);
  CHECK(b.look(kStart + 61s).refused == nullptr);
  CHECK_FALSE(b.is_refused_again_and_again(kStart + 61s, WorkerWatch::kNameWait - WorkerWatch::kRefusalGap));
  CHECK(b.is_refused_again_and_again(kStart + 70s, WorkerWatch::kNameWait));
}

TEST_CASE("host/worker_watch: a refusal that may pass is reported at once, and once") {
  Bench b;
  b.refuse_name(kStart);
  REQUIRE(b.look(kStart).waits_for != nullptr);
  CHECK(b.look(kStart + 1s).waits_for == nullptr);
  b.welcome("p0");
  CHECK(b.look(kStart + 2s).waits_for == nullptr);
  b.registration.lost(kStart + 3s);
  b.refuse_name(kStart + 4s);
  CHECK(b.look(kStart + 4s).waits_for != nullptr);

  Bench other;
  other.registration.refused_with({err::kKvLayoutMismatch, "another KV layout"}, kStart);
  CHECK(other.look(kStart).waits_for == nullptr);
}

TEST_CASE("host/worker_watch: other keys are a reason to give up only for a node that was never registered") {
  Bench b;
  b.registration.refused_with({err::kWrongKey, "other keys"}, kStart);
  REQUIRE(b.look(kStart).refused != nullptr);

  Bench known;
  known.welcome("p0");
  known.look();
  known.registration.lost(kStart);
  known.registration.refused_with({err::kWrongKey, "other keys"}, kStart);
  CHECK(known.look(kStart + 1s).waits_for != nullptr);
  CHECK(known.look(kStart + 60s).refused == nullptr);
}

TEST_CASE("host/worker_watch: a lost disk and a change of tenants are reported once") {
  Bench b;
  CHECK_FALSE(b.look(kStart, Disk::on).disk_lost);
  CHECK(b.look(kStart, Disk::lost).disk_lost);
  CHECK_FALSE(b.look(kStart, Disk::lost).disk_lost);
  b.welcome("p0", true);
  CHECK(b.look().tenants_changed);
  CHECK_FALSE(b.look().tenants_changed);
  b.welcome("p0", false);
  CHECK(b.look().tenants_changed);
}

}  // namespace worker_watch_test

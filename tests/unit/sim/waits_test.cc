#include "sim/waits.h"

#include "test.h"

namespace waits_test {

using namespace mc;
using namespace mc::sim;

namespace {

constexpr TimePoint at(int seconds) {
  return TimePoint{} + std::chrono::seconds(seconds);
}

}  // namespace

TEST_CASE("sim/waits: a parked request ends ten seconds after it was parked first") {
  Waits waits;
  waits.park(7, at(1));
  waits.park(7, at(5));
  CHECK(waits.next_wakeup() == at(11));
  CHECK_FALSE(waits.due(at(11) - 1ns));
  CHECK(waits.due(at(11)) == 7);
  CHECK_FALSE(waits.holds(7));
  waits.erase(7);
  CHECK(waits.next_wakeup() == kNever);
}

TEST_CASE("sim/waits: a held request ends when it expires, or sooner while no node may serve it") {
  Waits waits;
  waits.hold(1, at(30)), waits.hold(2, at(8)), waits.hold(3, kNever);
  for (const uint32_t r : {1u, 2u, 3u}) waits.park(r, at(0));
  CHECK(waits.held() == std::vector<uint32_t>{2, 1, 3});
  CHECK(waits.next_wakeup() == at(8));
  waits.erase(2);
  CHECK(waits.next_wakeup() == at(10));
  for (const uint32_t r : {1u, 3u}) waits.unpark(r);
  CHECK(waits.next_wakeup() == at(30));
  waits.erase(1);
  CHECK(waits.next_wakeup() == kNever);
  CHECK(waits.held() == std::vector<uint32_t>{3});
}

TEST_CASE("sim/waits: a change of members recalls the parked requests that are not held, once") {
  Waits waits;
  waits.recall();
  CHECK_FALSE(waits.has_recalled());
  waits.hold(1, kNever), waits.park(1, at(0));
  CHECK_FALSE(waits.has_recalled());
  waits.park(2, at(0));
  REQUIRE(waits.has_recalled());
  CHECK(waits.take_recalled() == std::vector<uint32_t>{2});
  CHECK_FALSE(waits.has_recalled());
  waits.recall();
  CHECK(waits.take_recalled() == std::vector<uint32_t>{2});
}

}  // namespace waits_test

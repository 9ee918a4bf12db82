#include "xfer/rdma_revival.h"

#include "test.h"

using namespace mc;
using namespace mc::xfer;

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

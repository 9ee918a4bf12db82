#include "xfer/rdma_hold.h"

#include "test.h"

using namespace mc;
using namespace mc::xfer;

namespace {
const TimePoint kStart = TimePoint{} + 1000s;

std::vector<uint64_t> taken(RdmaHold& hold, TimePoint now) {
  std::vector<SliceDone> done;
  hold.take(now, done);
  std::vector<uint64_t> ids;
  for (const SliceDone& each : done) ids.push_back(each.slice);
  return ids;
}
}  // namespace

TEST_CASE("xfer/rdma_hold: a write that failed waits until the peer's end of that attempt is gone") {
  RdmaHold hold;
  CHECK(hold.must_wait(1));
  hold.keep({.slice = 7}, 1, kStart);
  hold.keep({.slice = 8}, 2, kStart + 1ms);
  CHECK(taken(hold, kStart + 1ms).empty());
  hold.gone(1);
  CHECK(!hold.must_wait(1));
  CHECK(taken(hold, kStart + 1ms) == std::vector<uint64_t>{7});
  hold.gone(3);  // a later attempt tells as well
  CHECK(taken(hold, kStart + 1ms) == std::vector<uint64_t>{8});
  CHECK(hold.empty());
  hold.gone(1);  // late news of an old one take nothing back
  CHECK(!hold.must_wait(3));
}

TEST_CASE("xfer/rdma_hold: a peer that says nothing delays a write for no longer than packets live") {
  RdmaHold hold;
  CHECK(hold.due() == kNever);
  hold.keep({.slice = 7}, 1, kStart);
  hold.keep({.slice = 8}, 1, kStart + 1ms);
  CHECK(hold.due() == kStart + RdmaHold::kMax);
  CHECK(taken(hold, kStart + RdmaHold::kMax) == std::vector<uint64_t>{7});
  CHECK(hold.due() == kStart + 1ms + RdmaHold::kMax);
}

TEST_CASE("xfer/rdma_hold: a write that was cancelled while it waited is not reported") {
  RdmaHold hold;
  hold.keep({.slice = 7}, 1, kStart);
  CHECK(hold.drop(7));
  CHECK(!hold.drop(7));
  hold.gone(1);
  CHECK(taken(hold, kStart).empty());
}

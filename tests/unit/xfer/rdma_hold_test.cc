#include "test.h"
#include "xfer_rdma/hold.h"

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
  hold.gone(1);  // a late report of an old attempt takes nothing back
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

TEST_CASE("xfer/rdma_hold: a write with an immediate is done or untold, as the peer counted; nobody guesses") {
  RdmaHold hold;
  for (const uint64_t ordinal : {3, 4, 5}) hold.keep({.slice = ordinal, .code = Code::io}, 2, kStart, ordinal);
  CHECK(hold.due() == kNever);
  hold.gone(9);  // that the queue pair is gone does not say what it took before
  hold.landed(1, 100, true);
  CHECK(taken(hold, kStart + 60s).empty());
  hold.landed(2, 4, true);
  std::vector<SliceDone> done;
  hold.take(kStart, done);
  REQUIRE(done.size() == 3);
  CHECK(done[0].code == Code::ok);
  CHECK(done[1].code == Code::ok);
  CHECK(done[2].code == Code::io);
  CHECK(done[2].unseen);
  hold.keep({.slice = 6, .code = Code::io}, 3, kStart, 1);
  hold.keep({.slice = 7, .code = Code::io}, 4, kStart, 1);
  hold.landed(3, 0, false);  // not sure
  done.clear();
  hold.take(kStart, done);
  REQUIRE(done.size() == 1);
  CHECK(done[0].code == Code::io);
  CHECK(!done[0].unseen);
  hold.landed(5, 8, true);  // the word about attempt 4 never came
  done.clear();
  hold.take(kStart, done);
  REQUIRE(done.size() == 1);
  CHECK(!done[0].unseen);
  CHECK(hold.empty());
  CHECK(!hold.must_wait(5));
}

#include <map>
#include <set>

#include "base/rng.h"
#include "test.h"
#include "xfer_rdma/pool.h"

namespace rdma_pool_test {

using namespace mc;
using namespace mc::xfer;
using Kind = RdmaPool::Step::Kind;
using Steps = std::vector<RdmaPool::Step>;

namespace {

const TimePoint kStart = TimePoint{} + 1000s;

EndpointId id(uint64_t number) {
  return EndpointId{number};
}

/// A pool for two connections of two pairs each, both granted.
RdmaPool full_pool() {
  RdmaPool pool(4);
  pool.want(id(1), 2, kStart);
  pool.want(id(2), 2, kStart);
  CHECK(pool.step(kStart) == Steps{{Kind::grant, id(1)}, {Kind::grant, id(2)}});
  return pool;
}

}  // namespace

TEST_CASE("xfer/rdma_pool: below the cap everybody is served at once, and nobody is asked") {
  RdmaPool pool = full_pool();
  CHECK(pool.held() == 4);
  CHECK(pool.step(kStart + 3600s).empty());
  CHECK(pool.due() == kNever);
  pool.want(id(1), 2, kStart);  // holds already
  CHECK(pool.waiting() == 0);
}

TEST_CASE("xfer/rdma_pool: the oldest idle connection is asked, and its pairs go to the one that waits") {
  RdmaPool pool = full_pool();
  const TimePoint later = kStart + 1s;
  pool.want(id(3), 2, later);
  CHECK(pool.step(later) == Steps{{Kind::ask, id(1)}});
  CHECK(pool.step(later).empty());  // once
  pool.released(id(1));
  CHECK(pool.step(later) == Steps{{Kind::grant, id(3)}});
  CHECK(pool.held() == 4);
}

TEST_CASE("xfer/rdma_pool: one that was used since the hand passed is spared once") {
  RdmaPool pool = full_pool();
  pool.used(id(1), kStart + 1s);
  const TimePoint later = kStart + 2s;
  pool.want(id(3), 2, later);
  CHECK(pool.step(later) == Steps{{Kind::ask, id(2)}});
  pool.released(id(2));
  CHECK(pool.step(later) == Steps{{Kind::grant, id(3)}});
  pool.want(id(2), 2, later + 1s);
  CHECK(pool.step(later + 1s) == Steps{{Kind::ask, id(1)}});
}

TEST_CASE("xfer/rdma_pool: one whose peer uses it stays, another is asked instead") {
  RdmaPool pool = full_pool();
  const TimePoint later = kStart + 1s;
  pool.want(id(3), 2, later);
  CHECK(pool.step(later) == Steps{{Kind::ask, id(1)}});
  pool.refused(id(1), later);
  CHECK(pool.step(later) == Steps{{Kind::ask, id(2)}});
  pool.refused(id(2), later);
  CHECK(pool.step(later).empty());  // both in use: it waits
  CHECK(pool.due() == later + RdmaPool::kIdle);
}

TEST_CASE("xfer/rdma_pool: when nobody is idle for long the longest granted must rest, and gets back in line") {
  RdmaPool pool = full_pool();
  TimePoint now = kStart;
  const auto busy = [&] {
    pool.used(id(1), now);
    pool.used(id(2), now);
    pool.used(id(3), now);
  };
  now += 50ms;
  busy();
  pool.want(id(3), 2, now);
  CHECK(pool.step(now).empty());
  now += RdmaPool::kWaitMax;
  busy();
  CHECK(pool.step(now) == Steps{{Kind::insist, id(1)}});
  pool.released(id(1));
  pool.want(id(1), 2, now);
  CHECK(pool.step(now) == Steps{{Kind::grant, id(3)}});
  now += RdmaPool::kWaitMax;
  busy();
  CHECK(pool.step(now) == Steps{{Kind::insist, id(2)}});  // not 3, which has just come
}

TEST_CASE("xfer/rdma_pool: a peer that never answers loses its pairs in bounded time") {
  RdmaPool pool = full_pool();
  TimePoint now = kStart + 1s;
  pool.want(id(3), 2, now);
  CHECK(pool.step(now) == Steps{{Kind::ask, id(1)}});
  now += RdmaPool::kAnswer;
  CHECK(pool.due() <= now);
  CHECK(pool.step(now) == Steps{{Kind::insist, id(1)}});
  now += RdmaPool::kAnswer;
  CHECK(pool.step(now) == Steps{{Kind::force, id(1)}});
  now += 3600s;
  CHECK(pool.step(now).empty());
  pool.released(id(1));
  CHECK(pool.step(now) == Steps{{Kind::grant, id(3)}});
}

TEST_CASE("xfer/rdma_pool: who wants more than there is gets all there is, after its turn") {
  RdmaPool pool = full_pool();
  TimePoint now = kStart + 1s;
  pool.want(id(3), 100, now);
  CHECK(pool.step(now) == Steps{{Kind::ask, id(1)}, {Kind::ask, id(2)}});
  pool.released(id(1));
  pool.want(id(4), 2, now);
  CHECK(pool.step(now).empty());  // there would be room for 4, but 3 came first
  pool.released(id(2));
  CHECK(pool.step(now) == Steps{{Kind::grant, id(3)}});
  CHECK(pool.held() == 4);
  pool.released(id(3));
  CHECK(pool.step(now) == Steps{{Kind::grant, id(4)}});
}

TEST_CASE("xfer/rdma_pool: random connections never hold more than the cap, and everybody has turns") {
  Rng rng(::mc::test::seed());
  RdmaPool pool(8);
  constexpr uint64_t kPeers = 20;
  std::map<EndpointId, size_t> granted;
  std::set<EndpointId> holds;
  TimePoint now = kStart;
  for (int round = 0; round < 4000; ++round) {
    now += 1ms * static_cast<int>(rng.below(20));
    const EndpointId any = id(1 + rng.below(kPeers));
    pool.want(any, 1 + rng.below(4), now);
    if (rng.chance(0.5) && !holds.empty()) pool.used(*holds.begin(), now);
    for (const auto& step : pool.step(now)) {
      if (step.kind == Kind::grant) {
        ++granted[step.endpoint];
        CHECK(holds.insert(step.endpoint).second);
      } else if (step.kind == Kind::ask && rng.chance(0.5)) {
        pool.refused(step.endpoint, now);
      } else if (rng.chance(0.9)) {  // else it does not answer
        pool.released(step.endpoint);
        holds.erase(step.endpoint);
      }
      if (step.kind == Kind::force) {
        pool.released(step.endpoint);
        holds.erase(step.endpoint);
      }
    }
    REQUIRE(pool.held() <= 8);
  }
  CHECK(granted.size() == kPeers);
}

}  // namespace rdma_pool_test

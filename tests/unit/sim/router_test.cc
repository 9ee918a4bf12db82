// Where the router of a simulated cluster sends a request, and which nodes it fetches from.
#include "sim/router.h"

#include <memory>

#include "cluster_bench.h"
#include "test.h"

namespace router_test {

using namespace mc;
using namespace mc::sim;

namespace {

/// Three prefill nodes. The first requests keep the first two of them busy, so the next ones fetch.
struct Routes {
  sim_test::Bench b{"3p2d"};
  std::vector<std::vector<uint32_t>> cached = std::vector<std::vector<uint32_t>>(2);  // blocks of the stem, by node
  std::unique_ptr<TraceBlocks> blocks;
  std::unique_ptr<TieredCaches> caches;
  std::unique_ptr<Router> router;

  static constexpr uint64_t kStem = 60;

  Routes() {
    b.add(0, 0, 80), b.add(0, 0, 80);
    b.add(0, kStem, 4), b.add(0, kStem, 4);
  }
  /// Blocks [first, end) of the stem are on the node.
  void hold(uint32_t node, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; ++i) cached[node].push_back(i);
  }
  /// The route of the first request that shares the stem.
  Route route() {
    b.options.profile = &b.profile;
    blocks = std::make_unique<TraceBlocks>(b.trace);
    caches = std::make_unique<TieredCaches>(3, b.options.dram_blocks, 0, blocks->unique());
    router = std::make_unique<Router>(b.trace, *blocks, b.options, *caches, 3, [](auto&) {});
    for (uint32_t node = 0; node < 2; ++node) {
      std::vector<uint32_t> held;
      for (const uint32_t i : cached[node]) held.push_back(blocks->of(2)[i]);
      caches->use(node, held, 0);
      caches->settle(node, held);
    }
    REQUIRE(submit(0).node == 0);
    REQUIRE(submit(1).node == 1);
    return submit(2);
  }
  Route submit(uint32_t r) {
    const Answer answer = router->submit(r, 0);
    REQUIRE(answer.what == Answer::What::placed);
    return answer.route;
  }
};

using Parts = std::vector<sched::FetchRun>;

}  // namespace

TEST_CASE("sim/router: the part of a prefix that two nodes hold is fetched from the one that does not send the rest") {
  Routes s;
  s.hold(0, 0, 20), s.hold(1, 0, 60);
  const Route route = s.route();
  CHECK(route.node == 2);
  CHECK(route.fetch_blocks == 60);
  CHECK(route.parts == Parts{{0, 0, 20}, {1, 20, 60}});
  CHECK_FALSE(route.source_computes);
}

TEST_CASE("sim/router: a prefix of which two nodes hold a half each is fetched from both") {
  Routes s;
  s.hold(0, 0, 30), s.hold(1, 30, 60);
  const Route route = s.route();
  CHECK(route.node == 2);
  CHECK(route.parts == Parts{{0, 0, 30}, {1, 30, 60}});
  CHECK_FALSE(route.source_computes);
}

TEST_CASE("sim/router: every node that sends a part counts as sending until the first token") {
  Routes s;
  s.hold(0, 0, 60), s.hold(1, 0, 60);
  CHECK(s.route().parts == Parts{{0, 0, 60}});
  // The cache of the third node is not told of the fetch, so the next request fetches as well.
  CHECK(s.submit(3).parts == Parts{{1, 0, 60}});
}

}  // namespace router_test

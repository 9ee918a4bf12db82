// A node whose announced cost comes from a calibration on a busy machine, in a cluster of the production machines.
#include "sim/world.h"
#include "test.h"

namespace announced_cost_test {

using namespace mc;
using namespace mc::sim;

namespace {

/// The number of the first request that prefill node p1 served, of `count` that come in pairs; 0 = none.
int first_on_p1(double announces, int count) {
  WorldOptions options;
  options.seed = 11;
  options.prefill = 2, options.decode = 1;
  options.announces = {1, announces};
  World world(options);
  world.run_for(1s);
  std::vector<RequestId> sent;
  while (static_cast<int>(sent.size()) < count) {
    for (int i = 0; i < 2; ++i) {
      std::vector<uint32_t> ids(200);
      for (uint32_t& id : ids) id = static_cast<uint32_t>(world.rng().below(63));
      sent.push_back(world.submit(std::move(ids), 2, 30s));
    }
    REQUIRE(world.run_until_done(60s));
  }
  REQUIRE(world.violation() == "");
  for (size_t i = 0; i < sent.size(); ++i) {
    REQUIRE(world.outcomes().at(sent[i]).served());
    if (world.outcomes().at(sent[i]).summary.prefill == "p1") return static_cast<int>(i) + 1;
  }
  return 0;
}

}  // namespace

TEST_CASE("sim: a node that announces three times its cost serves one of the first four requests") {
  const int first = first_on_p1(3, 40);
  CHECK(first >= 1);
  CHECK(first <= 4);
}

TEST_CASE("sim: a node that announces a hundred times its cost serves one of the first four requests") {
  const int first = first_on_p1(100, 40);
  CHECK(first >= 1);
  CHECK(first <= 4);
}

}  // namespace announced_cost_test

// Failures of simulated nodes: the blocks, the retries and the recovery that follow.
#include "cluster_bench.h"
#include "test.h"

namespace failures_test {

using namespace mc;
using namespace mc::sim;
using sim_test::Bench;

namespace {

void add_failures(Bench& b, std::initializer_list<const char*> texts) {
  for (const char* text : texts) b.options.failures.push_back(*parse_failure(text, b.options.shape));
}

}  // namespace

TEST_CASE("sim/failures: a retry reuses only blocks of the prompt that are full") {
  Bench b("1p2d");
  b.add(0, 2, 0);  // both blocks are full
  TraceRequest& partial = b.add(10, 2, 0, 2000);
  partial.input_tokens = 1000;  // the second block is not
  add_failures(b, {"d0@15s-15.5s", "d1@16s-16.5s"});
  const ClusterRun run = b.run();
  REQUIRE(run.requests[1].fate == Fate::served);
  REQUIRE(run.requests[1].attempts > 1);
  CHECK(run.requests[1].dram_tokens == 512);
}

}  // namespace failures_test

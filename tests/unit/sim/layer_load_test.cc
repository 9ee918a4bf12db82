// Prompts that begin while the last layers of their prefix are on their way, in a simulated cluster and in the daemons'
// machines.
#include "cluster_bench.h"
#include "sim/machines.h"
#include "test.h"

namespace layer_load_test {

using namespace mc;
using namespace mc::sim;

namespace {

constexpr uint32_t kPrefix = 20;  // blocks

/// Request 2 fetches its prefix from node 0, which is busy then, and computes the rest of its prompt on node 1.
sim_test::Bench load_bench(double net_bytes_per_s, uint64_t by_layer_bytes, uint64_t own = 8) {
  sim_test::Bench b("2p1d");
  b.profile.paths.net.bytes_per_s = b.profile.cost.read_bytes_per_s = net_bytes_per_s;
  b.profile.paths.load.bytes_per_s = 1e18;  // the machines do not load a prefix into a device
  b.options.by_layer_bytes = by_layer_bytes;
  b.options.sched.fetch_rule = sched::FetchRule::threshold;
  b.add(1, kPrefix, 0);
  b.add(60, kPrefix, 100, 1);  // hands nothing over
  b.add(60.001, kPrefix, own);
  return b;
}

}  // namespace

TEST_CASE(
    "sim/layer_load: computing begins with the first layer if it hides the rest, and machines agree when it ends") {
  struct Case {
    double net_bytes_per_s;
    bool begins_early;
  };
  for (const Case& c : {Case{3e10, true}, Case{1e10, true}, Case{5e9, true}, Case{1e9, false}}) {
    CAPTURE(c.net_bytes_per_s);
    double whole_s = 0;
    for (const uint64_t bound : {UINT64_MAX, uint64_t{1} << 40, uint64_t{1} << 20}) {
      CAPTURE(bound);
      sim_test::Bench b = load_bench(c.net_bytes_per_s, bound);
      const RequestRecord model = b.run().requests[2];
      const auto machines = run_machines(b.trace, TraceBlocks(b.trace), b.options);
      REQUIRE(machines.has_value());
      REQUIRE(model.remote_tokens == kPrefix * 512);
      CHECK(machines->requests[2].remote_tokens == kPrefix * 512);
      CHECK(machines->requests[2].ttft_s == doctest::Approx(model.ttft_s).epsilon(0.01));
      if (bound == UINT64_MAX) whole_s = model.ttft_s;
      if (bound == uint64_t{1} << 40) CHECK(model.ttft_s == whole_s);
      if (bound == uint64_t{1} << 20) CHECK((model.ttft_s < 0.95 * whole_s) == c.begins_early);
    }
  }
}

TEST_CASE("sim/layer_load: the layers of two holders come side by side, and machines agree when computing ends") {
  sim_test::Bench b("3p1d");
  b.profile.paths.net.bytes_per_s = b.profile.cost.read_bytes_per_s = 5e9;
  b.profile.paths.load.bytes_per_s = 1e18;
  b.options.by_layer_bytes = 1 << 20;
  b.options.sched.fetch_rule = sched::FetchRule::threshold;
  // Node 0 has the first half of the prefix, node 1 all of it, and both are busy when the last request comes.
  b.add(0, kPrefix / 2, 0);
  b.add(1000, kPrefix / 2, 60);
  b.add(1000.01, kPrefix, 0);
  b.add(3000, kPrefix / 2, 100, 1);
  b.add(3000.01, kPrefix, 60, 1);
  b.add(3000.02, kPrefix, 8);
  const RequestRecord model = b.run().requests[5];
  const auto machines = run_machines(b.trace, TraceBlocks(b.trace), b.options);
  REQUIRE(machines.has_value());
  REQUIRE(model.remote_tokens == kPrefix * 512);
  CHECK(machines->requests[5].remote_tokens == kPrefix * 512);
  CHECK(machines->requests[5].ttft_s == doctest::Approx(model.ttft_s).epsilon(0.01));
}

TEST_CASE("sim/layer_load: a request whose holder dies after it has begun computes the missing blocks itself") {
  sim_test::Bench b = load_bench(5e9, 1);
  const RequestRecord before = b.run().requests[2];
  REQUIRE(before.remote_tokens == kPrefix * 512);
  const double began_s = 60.001 + before.queue_s, first_token_s = 60.001 + before.ttft_s;
  b.options.failures = {{.role = 'p', .index = 0, .at_s = began_s + 0.01}};
  const RequestRecord after = b.run().requests[2];
  CHECK(after.fate == Fate::served);
  CHECK(after.attempts == 1);
  CHECK(after.remote_tokens == 0);
  CHECK(after.ttft_s > before.ttft_s + 0.5);
  CHECK(after.prefill_s == doctest::Approx(after.ttft_s - after.queue_s));
  b.options.failures[0].at_s = first_token_s;
  CHECK(b.run().requests[2].ttft_s == before.ttft_s);
}

TEST_CASE("sim/layer_load: a layer that arrives after its part was given up changes nothing") {
  sim_test::Bench b = load_bench(5e9, 1);
  b.options.shape = *parse_cluster("3p1d");
  b.trace.clear();
  // Node 0 gets the first half of the prefix and `longer`, node 1 the whole prefix. Both are busy at the end, and node
  // 2 fetches one half from each.
  const std::vector<uint64_t> longer = b.add(1, kPrefix / 2, 60).hash_ids;
  b.add(1.01, kPrefix, 0);
  b.add(300, kPrefix / 2, 100, 1);
  std::copy(longer.begin(), longer.end(), b.trace.back().hash_ids.begin());
  b.add(300.01, kPrefix, 60, 1);
  b.add(300.02, kPrefix, 8);
  const RequestRecord before = b.run().requests[4];
  REQUIRE(before.prefill == 2);
  REQUIRE(before.remote_tokens == kPrefix * 512);
  b.options.failures = {{.role = 'p', .index = 0, .at_s = 300.02 + before.queue_s + 0.01}};
  const RequestRecord after = b.run().requests[4];  // layers from node 1 are on their way then
  CHECK(after.fate == Fate::served);
  CHECK(after.attempts == 1);
  CHECK(after.remote_tokens == 0);
  CHECK(after.ttft_s > before.ttft_s + 0.5);
}

TEST_CASE("sim/layer_load: a request that is given up after it has begun leaves its node to the next one") {
  sim_test::Bench b = load_bench(5e9, 1);
  b.options.shape = *parse_cluster("2p2d");
  const RequestRecord before = b.run().requests[2];
  b.add(60.01, 0, 4);
  b.options.failures = {{.role = 'd', .index = before.decode, .at_s = 60.001 + before.queue_s + 0.01}};
  const ClusterRun run = b.run();
  for (const RequestRecord& r : run.requests) CHECK(r.fate == Fate::served);
  CHECK(run.requests[2].attempts == 2);
}

TEST_CASE("sim/layer_load: the busy time of prefill nodes is what requests computed, also those that were given up") {
  for (const uint64_t bound : {UINT64_MAX, uint64_t{1}}) {
    CAPTURE(bound);
    sim_test::Bench b = load_bench(5e9, bound);
    b.options.shape = *parse_cluster("2p2d");
    const RequestRecord before = b.run().requests[2];
    b.options.failures = {{.role = 'd', .index = before.decode, .at_s = 60.001 + before.queue_s + 0.01}};
    const ClusterRun run = b.run();
    REQUIRE(run.requests[2].attempts == 2);
    double computed_s = 0;
    for (const RequestRecord& r : run.requests) computed_s += r.prefill_s;
    CHECK(run.prefill_busy_s == doctest::Approx(computed_s).epsilon(1e-6));
  }
}

}  // namespace layer_load_test

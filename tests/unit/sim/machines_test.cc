// Outcomes of requests, as a simulation counts a conductor's answers.
#include "sim/machines.h"

#include "cluster_bench.h"
#include "sim/world.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

Fate fate_by(node::Reason reason, sched::Bound bound = sched::Bound::none) {
  Outcome out;
  out.reason = reason, out.bound = bound;
  return fate_of(out);
}

}  // namespace

TEST_CASE("sim/machines: a predicted miss counts by its bound, at the conductor and at the decode node") {
  CHECK(fate_by(node::Reason::predicted_slo_miss, sched::Bound::ttft) == Fate::rejected_prefill);
  CHECK(fate_by(node::Reason::predicted_slo_miss, sched::Bound::tbt) == Fate::rejected_decode);
  CHECK(fate_by(node::Reason::predicted_slo_miss, sched::Bound::kv) == Fate::rejected_decode);
}

TEST_CASE("sim/machines: only a role without nodes counts as no node; what failed or ran out of time is unfinished") {
  using node::Reason;
  CHECK(fate_by(Reason::no_prefill) == Fate::rejected_node);
  CHECK(fate_by(Reason::no_decode) == Fate::rejected_node);
  CHECK(fate_by(Reason::tenant_quota) == Fate::rejected_quota);
  for (const Reason reason : {Reason::none, Reason::deadline_exceeded, Reason::internal, Reason::no_space,
                              Reason::queue_full, Reason::peer_lost}) {
    CAPTURE(to_string(reason));
    CHECK(fate_by(reason) == Fate::unfinished);
  }
  for (const auto& [finish, fate] : {std::pair{node::Finish::length, Fate::served},
                                     {node::Finish::stop, Fate::served},
                                     {node::Finish::abort, Fate::unfinished}}) {
    Outcome out;
    out.finish = finish;
    CHECK(fate_of(out) == fate);
  }
}

TEST_CASE("sim/machines: a prompt on an idle pipeline has its first token when the model of the cluster says so") {
  double alone_s = 0;
  for (const uint32_t pipeline : {1u, 2u, 3u, 4u}) {
    for (const double net_bytes_per_s : {1e11, 1e8}) {  // the second is the bottleneck: activations take 0.34 s a chunk
      // Machines queue the hand-off of three stages behind the activations, at both ends of a link. The model does not.
      if (net_bytes_per_s < 1e10 && pipeline > 2) continue;
      CAPTURE(pipeline);
      CAPTURE(net_bytes_per_s);
      sim_test::Bench b("12p1d");
      b.options.pipeline = pipeline;
      b.profile.paths.net.bytes_per_s = net_bytes_per_s;
      b.profile.kv_bytes_per_token = 16;  // machines send KV over the same links, and the model does not
      b.add(1, 0, 40);
      const double model_s = b.run().requests[0].ttft_s;
      const auto machines = run_machines(b.trace, TraceBlocks(b.trace), b.options);
      REQUIRE(machines.has_value());
      CHECK(machines->requests[0].ttft_s == doctest::Approx(model_s).epsilon(0.01));
      if (pipeline == 1) alone_s = model_s;
      if (pipeline > 1 && net_bytes_per_s > 1e10) CHECK(model_s < 0.8 * alone_s);
    }
  }
}

TEST_CASE("sim/machines: a pipeline reuses blocks, and is refused with more stages than layers or with disks") {
  sim_test::Bench b("2p1d");
  b.options.pipeline = 2;
  for (int i = 0; i < 2; ++i) b.add(1 + 60 * i, 20, 1);
  b.options.profile = &b.profile;
  const auto run = run_machines(b.trace, TraceBlocks(b.trace), b.options);
  REQUIRE(run.has_value());
  CHECK(run->requests[0].dram_tokens == 0);
  CHECK(run->requests[1].dram_tokens == 20 * 512);
  CHECK(run->requests[1].ttft_s < run->requests[0].ttft_s / 4);
  b.options.ssd_blocks = 100;
  CHECK(run_machines(b.trace, TraceBlocks(b.trace), b.options).error().what.starts_with("a member of a live pipeline"));
  b.options.ssd_blocks = 0, b.options.shape.prefill = b.options.pipeline = 5;
  CHECK(run_machines(b.trace, TraceBlocks(b.trace), b.options).error().what.starts_with("4 layers stand for all"));
}

TEST_CASE(
    "sim/machines: a prefix comes to the device layer by layer beside the computing, which hides all but a layer") {
  // The first prompt leaves 100 blocks in DRAM; the second one takes the device's pages; the third one has them again.
  const auto third = [](double load_bytes_per_s, uint64_t device_blocks) {
    sim_test::Bench b("1p1d");
    b.options.device_blocks = device_blocks;
    b.profile.context_tokens = 131'072;
    b.profile.paths.load = {.bytes_per_s = load_bytes_per_s, .latency_s = 0};
    b.profile.reused_s_per_token = 0;
    b.add(1, 100, 1), b.add(100, 0, 255), b.add(300, 100, 4);  // the last one is a single chunk
    b.options.profile = &b.profile;
    const auto run = run_machines(b.trace, TraceBlocks(b.trace), b.options);
    REQUIRE_OK(run);
    CHECK(run->requests[2].dram_tokens == 100 * 512);
    return run->requests[2].ttft_s;
  };
  const double bytes = 100.0 * 512 * 327'680;
  const double fast_s = third(1e18, 260);
  CHECK(third(1e18, 1000) == doctest::Approx(fast_s).epsilon(0.001));
  // The copies take half of the time of computing: only the first layer's quarter of them is not hidden.
  const double half_s = third(bytes / (0.5 * fast_s), 260);
  CHECK(half_s > fast_s * 1.05);
  CHECK(half_s < fast_s * 1.25);
  // The copies take three times as long as computing: the last layer is computed behind them.
  const double slow_s = third(bytes / (3 * fast_s), 260);
  CHECK(slow_s > 3 * fast_s);
  CHECK(slow_s < 3.5 * fast_s);
  CHECK(third(bytes / (3 * fast_s), 1000) < 1.05 * fast_s);  // the device has room for all
}

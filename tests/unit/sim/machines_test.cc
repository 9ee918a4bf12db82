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

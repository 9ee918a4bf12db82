// A small simulated cluster for tests of sim/cluster.h.
#pragma once

#include <algorithm>
#include <vector>

#include "sim/cluster.h"

namespace sim_test {

using namespace mc;
using namespace mc::sim;

/// A simulated cluster and the requests that it serves.
struct Bench {
  sched::Profile profile = *sched::builtin_profile("a800-llama3-70b");
  ClusterOptions options;
  std::vector<TraceRequest> trace;
  uint64_t next_id = 1'000'000;

  explicit Bench(const char* shape, const char* policy = "kv-centric") {
    options.shape = *parse_cluster(shape);
    options.policy = sched::find_policy(policy);
    options.sched.admission = sched::find_admission("none");
    options.sched.ttft_slo_s = 30, options.sched.tbt_slo_s = 0.2;
    options.dram_blocks = 5859;
    options.hold_order = HoldOrder::arrival;
    options.keep_samples = false;
  }

  /// `shared` blocks that all requests with that number begin with, and `own` ones.
  TraceRequest& add(double at_s, uint64_t shared, uint64_t own, uint64_t answer = 20) {
    TraceRequest r{.timestamp_ms = at_s * 1e3, .input_tokens = (shared + own) * 512, .output_tokens = answer};
    for (uint64_t i = 0; i < shared; ++i) r.hash_ids.push_back(i);
    for (uint64_t i = 0; i < own; ++i) r.hash_ids.push_back(next_id++);
    trace.push_back(std::move(r));
    return trace.back();
  }

  ClusterRun run() {
    options.profile = &profile;
    std::stable_sort(trace.begin(), trace.end(),
                     [](const TraceRequest& a, const TraceRequest& b) { return a.timestamp_ms < b.timestamp_ms; });
    return run_cluster(trace, TraceBlocks(trace), options);
  }
};

}  // namespace sim_test

// A simulated cluster as the flags describe it: for `sim`, its searches and `advise`.
#pragma once

#include <vector>

#include "base/cli.h"
#include "base/json.h"
#include "sim/cluster.h"

namespace mc::bench {

struct SimSetup {
  sched::Profile profile;
  sim::ClusterOptions options;  // profile, policy and admission are the caller's to point at
  std::vector<const sched::Policy*> policies;
  std::vector<const sched::Admission*> admissions;
};
Result<SimSetup> read_setup(const cli::Args& args);

/// The members a result has for one run.
Json cluster_figures(const sim::ClusterOptions& options, const sim::ClusterRun& run, const sim::ClusterFigures& f);

}  // namespace mc::bench

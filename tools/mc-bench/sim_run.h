// A simulated cluster as the flags describe it: for `sim`, its searches and `advise`.
#pragma once

#include <map>
#include <string>
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
  std::map<std::string, std::string> salts;  // by tenant of options.tenants
};
Result<SimSetup> read_setup(const cli::Args& args);

/// The trace's blocks as its tenants see them: equal ones of tenants with different salts are different. Refuses a
/// tenant that --api-keys does not name.
Result<sim::TraceBlocks> blocks_of(const std::vector<sim::TraceRequest>& trace, const SimSetup& setup);

/// The members a result has for one run.
Json cluster_figures(const sim::ClusterOptions& options, const sim::ClusterRun& run, const sim::ClusterFigures& f);

}  // namespace mc::bench

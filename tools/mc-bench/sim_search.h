// Searches over simulated clusters: the highest rate that keeps a goal, the best split of nodes.
#pragma once

#include <vector>

#include "sim_progress.h"
#include "sim_run.h"

namespace mc::bench {

struct SimPoint {
  sim::ClusterShape shape;
  double speedup = 1, rate_per_s = 0;  // rate 0: all requests came at once
  sim::ClusterFigures figures;
  bool is_search_limit = false;  // of find_max_rate: higher rates were not tried
  Json json;                     // as of cluster_figures, with cluster, its nodes, speedup and rate_per_s
};

/// One run of `options` as they are.
SimPoint simulate_point(const std::vector<sim::TraceRequest>& trace, const sim::TraceBlocks& blocks,
                        sim::ClusterOptions options, SimProgress& progress);

/// Speedups between which the search for the highest rate looks.
inline constexpr double kSpeedupLeast = 1.0 / 64, kSpeedupMost = 64;
/// The highest speedup of the trace, to 1 %, at which at least `share` of all requests is good; its point. A
/// speedup of 0 says that none down to kSpeedupLeast does. The search ends at the first doubling of the speedup that
/// reaches kSpeedupMost: if the goal is still kept there, the point is a search limit.
SimPoint find_max_rate(const std::vector<sim::TraceRequest>& trace, const sim::TraceBlocks& blocks,
                       sim::ClusterOptions options, double share, SimProgress& progress);

/// All splits of `nodes` into prefill and decode, in that order; the best has the most goodput, then the least
/// mean TTFT.
std::vector<SimPoint> find_ratio(const std::vector<sim::TraceRequest>& trace, const sim::TraceBlocks& blocks,
                                 sim::ClusterOptions options, uint32_t nodes, SimProgress& progress);
size_t best_of(const std::vector<SimPoint>& points);

}  // namespace mc::bench

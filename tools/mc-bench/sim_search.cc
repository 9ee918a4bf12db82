#include "sim_search.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"
#include "print.h"

namespace mc::bench {

SimPoint simulate_point(const std::vector<sim::TraceRequest>& trace, const sim::TraceBlocks& blocks,
                        sim::ClusterOptions options, SimProgress& progress) {
  progress.next(options.shape.text() + " at " + fixed(options.speedup, 2) + " times the trace's rate");
  options.progress = progress.watcher();
  const sim::ClusterRun run = sim::run_cluster(trace, blocks, options);
  SimPoint out;
  out.shape = options.shape, out.speedup = options.speedup;
  out.figures = sim::figures_of(trace, options, run);
  out.rate_per_s = run.span_s > 0 ? static_cast<double>(trace.size()) / run.span_s : 0;
  out.json = Json::object({{"cluster", options.shape.text()}, {"prefill_nodes", options.shape.prefill}});
  out.json.set("decode_nodes", options.shape.decode).set("coupled_nodes", options.shape.coupled);
  out.json.set("speedup", options.speedup).set("rate_per_s", run.span_s > 0 ? Json(out.rate_per_s) : Json());
  const Json figures = cluster_figures(options, run, out.figures);
  for (const JsonMember& member : figures.members()) out.json.set(member.key, member.value);
  return out;
}

SimPoint find_max_rate(const std::vector<sim::TraceRequest>& trace, const sim::TraceBlocks& blocks,
                       sim::ClusterOptions options, double share, SimProgress& progress) {
  constexpr double kPrecision = 1.01;
  options.keep_samples = false;
  // A run that has missed too often is not run to its end.
  options.misses_max = static_cast<uint64_t>(std::floor((1 - share) * static_cast<double>(trace.size()) + 1e-6));
  SimPoint best;
  const auto holds = [&](double speedup) {
    options.speedup = speedup;
    SimPoint point = simulate_point(trace, blocks, options, progress);
    if (point.figures.effective < share) return false;
    best = std::move(point);
    return true;
  };
  double low = options.speedup, high = low;
  if (holds(low)) {
    while (high < kSpeedupMost && holds(high * 2)) high = low = high * 2;
    best.is_search_limit = high >= kSpeedupMost;
    high = best.is_search_limit ? low : low * 2;
  } else {
    while (low > kSpeedupLeast && !holds(low / 2)) low /= 2;
    high = low;
    low /= 2;
  }
  if (best.figures.requests == 0) {
    best.speedup = 0;
    return best;
  }
  while (high / low > kPrecision) {
    const double middle = (low + high) / 2;
    (holds(middle) ? low : high) = middle;
  }
  best.json.set("search_limit", best.is_search_limit);
  return best;
}

std::vector<SimPoint> find_ratio(const std::vector<sim::TraceRequest>& trace, const sim::TraceBlocks& blocks,
                                 sim::ClusterOptions options, uint32_t nodes, SimProgress& progress) {
  MC_ASSERT(nodes > options.pipeline);
  options.keep_samples = false;
  std::vector<SimPoint> out;
  for (uint32_t prefill = options.pipeline; prefill < nodes; prefill += options.pipeline) {
    options.shape = {.prefill = prefill, .decode = nodes - prefill, .coupled = 0};
    out.push_back(simulate_point(trace, blocks, options, progress));
  }
  return out;
}

size_t best_of(const std::vector<SimPoint>& points) {
  const auto best = std::min_element(points.begin(), points.end(), [](const SimPoint& a, const SimPoint& b) {
    if (a.figures.good != b.figures.good) return a.figures.good > b.figures.good;
    return a.figures.ttft_s.mean < b.figures.ttft_s.mean;
  });
  return static_cast<size_t>(best - points.begin());
}

}  // namespace mc::bench

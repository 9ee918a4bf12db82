// Samples of a simulated cluster at even times: the queue, the batch and the load of each node, and the number of nodes
// that hold the blocks at a few ranks of popularity.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "sim/batch.h"
#include "sim/cluster.h"
#include "sim/tiers.h"

namespace mc::sim {

class Sampler {
 public:
  /// `nodes` compute prompts. The options and the blocks outlive the sampler.
  Sampler(const ClusterOptions& options, const TraceBlocks& blocks, size_t nodes);

  /// Takes all samples due until then. `queue_s` gives the seconds of work in the queue of a node; `batches` are those
  /// of the decode nodes, or of the nodes that do both.
  void sample_until(double end_s, const std::function<double(size_t, double)>& queue_s, std::span<const Batch> batches,
                    const TieredCaches& caches);
  /// Moves names and samples into the run.
  void move_to(ClusterRun& run);

 private:
  bool coupled() const { return options_.shape.coupled > 0; }
  NodeSample sample_of(const Batch& batch) const;

  const ClusterOptions& options_;
  size_t nodes_;
  double next_s_ = 0;
  ClusterRun out_;                 // names and samples only
  std::vector<uint32_t> watched_;  // blocks at the ranks
};

}  // namespace mc::sim

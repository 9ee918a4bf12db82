// Copies a worker's counters into its /metrics: the vLLM family and ours, from one look at the machine.
#pragma once

#include <map>

#include "base/metrics.h"
#include "node/worker.h"
#include "run/data_plane.h"

namespace mc::run {

class WorkerMetrics {
 public:
  /// All three outlive it.
  WorkerMetrics(Metrics& metrics, const node::Worker& worker, const DataPlane& data);
  /// Loop thread, a few times a second.
  void update();

 private:
  void count(const MetricFamily& family, std::initializer_list<std::string_view> labels, uint64_t total);

  Metrics& metrics_;
  const node::Worker& worker_;
  const DataPlane& data_;
  uint64_t exposed_ = 0;
  double exposed_s_ = 0;
  std::map<std::string, uint64_t> last_;  // counters as last seen, by family and labels
};

}  // namespace mc::run

// Copies a worker's counters into its /metrics: the vLLM family and ours, from one look at the machine.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "base/metrics.h"
#include "host/data_plane.h"
#include "host/lease_channels.h"
#include "node/worker.h"

namespace mc::host {

class WorkerMetrics {
 public:
  /// All four outlive it.
  WorkerMetrics(Metrics& metrics, const node::Worker& worker, DataPlane& data, LeaseChannels& leases);
  /// Loop thread, a few times a second.
  void update();
  /// Loop thread, with the tokens of each chunk or decode step that begins.
  void computes(size_t tokens);

 private:
  void update_work();
  void update_device(const wire::Load& load);
  void update_disk(const wire::Load& load);
  void update_transfers();
  void update_leases();
  void count(const MetricFamily& family, std::initializer_list<std::string_view> labels, uint64_t total);

  Metrics& metrics_;
  const node::Worker& worker_;
  DataPlane& data_;
  LeaseChannels& leases_;
  metric::Histogram iteration_tokens_;
  uint64_t exposed_ = 0;                  // values of Prefill::Stats::exposed_s as last seen
  std::map<std::string, uint64_t> last_;  // counters as last seen, by family and labels
};

}  // namespace mc::host

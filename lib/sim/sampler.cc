#include "sim/sampler.h"

#include <algorithm>
#include <string>

namespace mc::sim {
namespace {
constexpr uint32_t kRanks[] = {10, 100, 1000, 10000};
}  // namespace

Sampler::Sampler(const ClusterOptions& options, const TraceBlocks& blocks, size_t nodes)
    : options_(options), nodes_(nodes) {
  if (!options.keep_samples) return;
  std::vector<uint32_t> uses(blocks.unique()), order(blocks.unique());
  for (size_t r = 0; r < blocks.size(); ++r)
    for (const uint32_t block : blocks.of(r)) ++uses[block];
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return uses[a] > uses[b]; });
  for (const uint32_t rank : kRanks) {
    if (rank > order.size()) break;
    out_.replica_ranks.push_back(rank);
    watched_.push_back(order[rank - 1]);
  }
  for (size_t i = 0; i < nodes; ++i) out_.nodes.push_back((coupled() ? "m" : "p") + std::to_string(i));
  for (size_t i = 0; !coupled() && i < options.shape.decode; ++i) out_.nodes.push_back("d" + std::to_string(i));
  out_.samples.resize(out_.nodes.size());
}

NodeSample Sampler::sample_of(const Batch& batch) const {
  NodeSample out;
  out.rows = static_cast<uint32_t>(batch.rows() + batch.waiting());
  out.kv_tokens = static_cast<uint32_t>(batch.context() + batch.waiting_context());
  if (options_.sched.tbt_slo_s > 0)
    out.load = static_cast<float>(options_.profile->step_s(out.rows, out.kv_tokens) / options_.sched.tbt_slo_s);
  return out;
}

void Sampler::sample_until(double end_s, const std::function<double(size_t, double)>& queue_s,
                           std::span<const Batch> batches, const TieredCaches& caches) {
  if (!options_.keep_samples) return;
  for (; next_s_ <= end_s; next_s_ += options_.sample_s) {
    for (size_t i = 0; i < nodes_; ++i) {
      NodeSample s = coupled() ? sample_of(batches[i]) : NodeSample{};
      s.at_s = static_cast<float>(next_s_);
      s.queue_s = static_cast<float>(queue_s(i, next_s_));
      if (options_.sched.ttft_slo_s > 0) s.load = s.queue_s / static_cast<float>(options_.sched.ttft_slo_s);
      out_.samples[i].push_back(s);
    }
    for (size_t i = 0; !coupled() && i < batches.size(); ++i) {
      NodeSample s = sample_of(batches[i]);
      s.at_s = static_cast<float>(next_s_);
      out_.samples[nodes_ + i].push_back(s);
    }
    std::vector<uint32_t> replicas;
    for (const uint32_t block : watched_) replicas.push_back(caches.replicas(block));
    out_.replicas.push_back(std::move(replicas));
  }
}

void Sampler::move_to(ClusterRun& run) {
  run.nodes = std::move(out_.nodes), run.samples = std::move(out_.samples);
  run.replica_ranks = std::move(out_.replica_ranks), run.replicas = std::move(out_.replicas);
}

}  // namespace mc::sim

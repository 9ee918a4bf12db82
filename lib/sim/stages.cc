#include "sim/stages.h"

#include <algorithm>

#include "base/assert.h"
#include "sched/pipeline.h"

namespace mc::sim {

double Stages::compute(const sched::Profile& profile, uint64_t begin, uint64_t end, double now_s) {
  MC_ASSERT_LT(begin, end);
  const auto stages = static_cast<uint32_t>(free_s_.size());
  double end_s = 0;
  for (uint64_t at = begin; at < end; at += profile.chunk_tokens) {
    const uint64_t to = std::min(end, at + profile.chunk_tokens);
    double work_s = profile.chunk_s + profile.chunk_compute_s(static_cast<double>(at), static_cast<double>(to));
    if (at == begin) work_s += profile.fixed_s() + profile.reused_s_per_token * static_cast<double>(begin);
    const double bytes = static_cast<double>((to - at) * profile.activation_bytes_per_token);
    double before_s = now_s;
    for (uint32_t stage = 0; stage < stages; ++stage) {
      double& free_s = free_s_[stage];
      free_s = std::max(free_s, before_s) + work_s * sched::stage_share(profile.layers, stage, stages);
      end_s = free_s;
      if (stage + 1 == stages) break;
      double& link_free_s = link_free_s_[stage + 1];
      link_free_s = std::max(link_free_s, free_s) + bytes / profile.paths.net.bytes_per_s;
      before_s = link_free_s + profile.paths.net.latency_s;
    }
  }
  return end_s;
}

double Stages::alone_s(const sched::Profile& profile, uint64_t reused, uint64_t tokens) {
  const double compute_s = profile.prefill_s(static_cast<double>(tokens), static_cast<double>(reused));
  if (profile.reused_s_per_token != 0 || reused == 0) return compute_s;
  // Loading the prefix into the device runs beside computing, but for one layer (5.2).
  const double bytes = static_cast<double>(reused) * static_cast<double>(profile.kv_bytes_per_token);
  return profile.overlapped_s(profile.paths.load.seconds(bytes), compute_s);
}

void Stages::reset(double now_s) {
  free_s_.assign(free_s_.size(), now_s);
  link_free_s_.assign(link_free_s_.size(), now_s);
}

}  // namespace mc::sim

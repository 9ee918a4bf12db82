#include "sim/stages.h"

#include <algorithm>

#include "base/assert.h"
#include "sched/pipeline.h"

namespace mc::sim {

double Stages::compute(const sched::Profile& profile, uint64_t begin, uint64_t end, double now_s) {
  MC_ASSERT_LT(begin, end);
  const auto stages = static_cast<uint32_t>(free_s_.size());
  const double chunk_bytes =
      static_cast<double>(profile.chunk_tokens) * static_cast<double>(profile.activation_bytes_per_token);
  const double hop_s = profile.paths.net.seconds(chunk_bytes);
  double end_s = 0;
  for (uint64_t at = begin; at < end; at += profile.chunk_tokens) {
    const uint64_t to = std::min(end, at + profile.chunk_tokens);
    double work_s = profile.chunk_s + profile.chunk_compute_s(static_cast<double>(at), static_cast<double>(to));
    if (at == begin) work_s += profile.fixed_s();
    double before_s = now_s;
    for (uint32_t stage = 0; stage < stages; ++stage) {
      double& free_s = free_s_[stage];
      free_s = std::max(free_s, before_s) + work_s * sched::stage_share(profile.layers, stage, stages);
      before_s = free_s + hop_s;
      end_s = free_s;
    }
  }
  return end_s;
}

}  // namespace mc::sim

#include "sim/stages.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::sim {

double Stages::compute(const sched::Profile& profile, uint64_t begin, uint64_t end, double now_s) {
  MC_ASSERT_LT(begin, end);
  const double stages = static_cast<double>(free_s_.size());
  const double chunk_bytes =
      static_cast<double>(profile.chunk_tokens) * static_cast<double>(profile.activation_bytes_per_token);
  const double hop_s = profile.paths.net.seconds(chunk_bytes);
  double end_s = 0;
  for (uint64_t at = begin; at < end; at += profile.chunk_tokens) {
    const uint64_t to = std::min(end, at + profile.chunk_tokens);
    double work_s = profile.chunk_s + profile.chunk_compute_s(static_cast<double>(at), static_cast<double>(to));
    if (at == begin) work_s += profile.fixed_s();
    double before_s = now_s;
    for (double& free_s : free_s_) {
      free_s = std::max(free_s, before_s) + work_s / stages;
      before_s = free_s + hop_s;
      end_s = free_s;
    }
  }
  return end_s;
}

}  // namespace mc::sim

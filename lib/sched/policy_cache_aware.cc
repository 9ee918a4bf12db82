// Algorithm 1 without its fetch branch: the least sum of queue and prefill time, with the local prefix.

#include "sched/policy.h"

namespace mc::sched {
namespace {

int choose_cache_aware(const Snapshot&, const Options&, std::span<Candidate> candidates, Rng&) {
  int best = 0;
  for (size_t i = 1; i < candidates.size(); ++i)
    if (candidates[i].rank_s() < candidates[static_cast<size_t>(best)].rank_s()) best = static_cast<int>(i);
  return best;
}

}  // namespace

extern const Policy kPolicyCacheAware;
const Policy kPolicyCacheAware = {"cache-aware", "least predicted TTFT using only the node's own blocks",
                                  choose_cache_aware};

}  // namespace mc::sched

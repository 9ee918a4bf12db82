// The two load balancers of the papers' comparison, which ignore caches: by queued seconds (load) and by the number of
// unfinished requests (load-count). Ties go to the first node.

#include "sched/policy.h"

namespace mc::sched {
namespace {

int least_seconds(const Snapshot& snapshot, const Options&, std::span<Candidate> candidates, Rng&) {
  int best = 0;
  for (size_t i = 1; i < candidates.size(); ++i)
    if (snapshot.prefill[candidates[i].node].queue_s + candidates[i].handicap_s <
        snapshot.prefill[candidates[static_cast<size_t>(best)].node].queue_s +
            candidates[static_cast<size_t>(best)].handicap_s)
      best = static_cast<int>(i);
  return best;
}

int least_requests(const Snapshot& snapshot, const Options&, std::span<Candidate> candidates, Rng&) {
  int best = 0;
  for (size_t i = 1; i < candidates.size(); ++i)
    if (snapshot.prefill[candidates[i].node].unfinished <
        snapshot.prefill[candidates[static_cast<size_t>(best)].node].unfinished)
      best = static_cast<int>(i);
  return best;
}

}  // namespace

extern const Policy kPolicyLoad;
extern const Policy kPolicyLoadCount;
const Policy kPolicyLoad = {"load", "least predicted seconds of queued work", least_seconds};
const Policy kPolicyLoadCount = {"load-count", "fewest unfinished requests", least_requests};

}  // namespace mc::sched

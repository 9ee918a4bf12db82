// The common router that follows the longest match and breaks ties by load. It serves as a warning: one block that all
// prompts share sends all of them to the node that computed it first (Mooncake 6.1, cache-aware only).

#include "sched/policy.h"

namespace mc::sched {
namespace {

int choose_affinity(const Snapshot& snapshot, const Options&, std::span<Candidate> candidates, Rng&) {
  size_t best = 0;
  for (size_t i = 1; i < candidates.size(); ++i) {
    const Candidate &c = candidates[i], &b = candidates[best];
    if (c.local_blocks > b.local_blocks ||
        (c.local_blocks == b.local_blocks && snapshot.prefill[c.node].queue_s < snapshot.prefill[b.node].queue_s))
      best = i;
  }
  return static_cast<int>(best);
}

}  // namespace

extern const Policy kPolicyAffinity;
const Policy kPolicyAffinity = {"affinity", "longest local match, whatever the queue; known to collapse",
                                choose_affinity};

}  // namespace mc::sched

// A uniform choice, the baseline that every other policy must beat.

#include "sched/policy.h"

namespace mc::sched {
namespace {

int choose_random(const Snapshot&, const Options&, std::span<Candidate> candidates, Rng& rng) {
  return static_cast<int>(rng.below(candidates.size()));
}

}  // namespace

extern const Policy kPolicyRandom;
const Policy kPolicyRandom = {"random", "a uniformly random prefill node", choose_random};

}  // namespace mc::sched

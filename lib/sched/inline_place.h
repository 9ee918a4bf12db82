// The choice of a decode node that computes a short prompt itself (inlined prefill; Mooncake, arXiv:2407.00079, 5.2).
// Such a node needs no other one: the prompt's KV never moves. Its running requests wait for the chunk between two
// tokens, so a node is used only where the bound of TBT still holds for that gap.
#pragma once

#include <optional>

#include "sched/policy.h"

namespace mc::sched {

/// The decode node that would compute the prompt itself soonest; nullopt = none has room and a short enough rest of the
/// prompt within the bound of TBT.
std::optional<InlineCandidate> best_inline(const Snapshot& snapshot, const Options& options);

/// Predicted seconds until the prompt's KV from the chosen prefill node is on the chosen decode node.
double handed_over_s(const Snapshot& snapshot, const Placement& placement);

/// Decides between the chosen pair of nodes and best_inline(), and writes the decision into the placement. True: the
/// decode node computes the prompt, and `admission` admits the request there. Otherwise the pair stays as it is.
bool choose_inline(const Snapshot& snapshot, const Options& options, const Admission& admission, Placement& placement);

}  // namespace mc::sched

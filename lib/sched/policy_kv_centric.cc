// Algorithm 1 of Mooncake (brief, section 5.3): per prefill node, take the prefix that is here, or
// fetch the missing part from the node that holds the most; the node with the least predicted TTFT
// wins. Two fetch rules:
//   threshold  the paper's: fetch when best > threshold * local
//   cost       per node, the cheaper of computing and fetching; also lets a request wait for blocks
//              that another node is still computing, when that ends sooner than computing them again
// The node that fetched keeps the blocks, so hot prefixes replicate to where load sends requests.

#include <algorithm>

#include "sched/policy.h"

namespace mc::sched {
namespace {

// Ties go to the source with the fewest transfers leaving, then to the first.
int best_holder(const Snapshot& snapshot, std::string_view except) {
  int best = -1;
  for (size_t i = 0; i < snapshot.holders.size(); ++i) {
    const HolderView& h = snapshot.holders[i];
    if (h.name == except || h.readable_blocks == 0) continue;
    if (best < 0) {
      best = static_cast<int>(i);
      continue;
    }
    const HolderView& b = snapshot.holders[static_cast<size_t>(best)];
    if (h.readable_blocks > b.readable_blocks ||
        (h.readable_blocks == b.readable_blocks && h.transfers_leaving < b.transfers_leaving))
      best = static_cast<int>(i);
  }
  return best;
}

Candidate fetching(const Snapshot& snapshot, const Candidate& local, int holder, uint32_t blocks, double wait_s) {
  Candidate c = local;
  c.holder = holder;
  c.fetch_blocks = blocks - local.local_blocks;
  c.wait_s = wait_s;
  predict(snapshot, c);
  return c;
}

void consider_fetch(const Snapshot& snapshot, const Options& options, Candidate& c) {
  const std::string& here = snapshot.prefill[c.node].name;
  const int holder = best_holder(snapshot, here);
  const uint32_t best = holder < 0 ? 0 : snapshot.holders[static_cast<size_t>(holder)].readable_blocks;
  const Candidate local = c;
  if (options.fetch_rule == FetchRule::threshold) {
    if (best > 0 && best > options.threshold * local.local_blocks && best > local.local_blocks)
      c = fetching(snapshot, local, holder, best, 0);
    return;
  }
  if (best > local.local_blocks) {
    const Candidate fetched = fetching(snapshot, local, holder, best, 0);
    if (fetched.ttft_s < c.ttft_s) c = fetched;
  }
  for (size_t i = 0; i < snapshot.holders.size(); ++i) {
    const HolderView& h = snapshot.holders[i];
    if (h.name == here || h.pending_blocks <= h.readable_blocks || h.pending_blocks <= local.local_blocks) continue;
    const Candidate waited = fetching(snapshot, local, static_cast<int>(i), h.pending_blocks, h.pending_s);
    if (waited.ttft_s < c.ttft_s) c = waited;
  }
}

int choose(const Snapshot& snapshot, const Options& options, std::span<Candidate> candidates, Rng&) {
  int best = -1;
  for (size_t i = 0; i < candidates.size(); ++i) {
    consider_fetch(snapshot, options, candidates[i]);
    if (best < 0 || candidates[i].ttft_s < candidates[static_cast<size_t>(best)].ttft_s) best = static_cast<int>(i);
  }
  return best;
}

}  // namespace

extern const Policy kPolicyKvCentric;
const Policy kPolicyKvCentric = {"kv-centric", "least predicted TTFT; missing prefix fetched from its best holder",
                                 choose};

}  // namespace mc::sched

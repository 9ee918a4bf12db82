// Algorithm 1 of Mooncake (6.1, 6.2): per prefill node, take the prefix that is here, or
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

// The best source and the best other than it, found once a decision: a node does not fetch from itself.
// Ties go to the source with the fewest transfers leaving, then to the first.
struct Sources {
  int best = -1, second = -1;
  std::vector<int> pending;  // nodes that compute more than they hold
};

/// How good a source is: more blocks, then fewer transfers leaving. No source at all is less than any.
constexpr uint64_t kNoSource = UINT32_MAX;
uint64_t worth(const HolderView& h) {
  return uint64_t{h.readable_blocks} << 32 | (UINT32_MAX - h.transfers_leaving);
}

Sources sources_of(const Snapshot& snapshot) {
  Sources out;
  uint64_t best = kNoSource, second = kNoSource;
  const HolderView* holders = snapshot.holders.data();
  const int count = static_cast<int>(snapshot.holders.size());
  for (int i = 0; i < count; ++i) {
    const HolderView& h = holders[i];
    if (h.pending_blocks > h.readable_blocks) out.pending.push_back(i);
    const uint64_t worth_here = worth(h);
    if (worth_here <= second) continue;
    if (worth_here > best) {
      second = best, out.second = out.best;
      best = worth_here, out.best = i;
    } else {
      second = worth_here, out.second = i;
    }
  }
  return out;
}

bool is_self(const Snapshot& snapshot, const PrefillView& node, int holder) {
  return node.holder >= 0 ? node.holder == holder : snapshot.holder_names[static_cast<size_t>(holder)] == node.name;
}

Candidate fetching(const Snapshot& snapshot, const Candidate& local, int holder, uint32_t blocks, double wait_s) {
  Candidate c = local;
  c.holder = holder;
  c.fetch_blocks = blocks - local.local_blocks;
  c.wait_s = wait_s;
  predict(snapshot, c);
  return c;
}

void consider_fetch(const Snapshot& snapshot, const Options& options, const Sources& sources, Candidate& c) {
  const PrefillView& here = snapshot.prefill[c.node];
  const int holder = sources.best >= 0 && is_self(snapshot, here, sources.best) ? sources.second : sources.best;
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
  for (const int i : sources.pending) {
    const HolderView& h = snapshot.holders[static_cast<size_t>(i)];
    if (h.pending_blocks <= local.local_blocks || is_self(snapshot, here, i)) continue;
    const Candidate waited = fetching(snapshot, local, i, h.pending_blocks, h.pending_s);
    if (waited.ttft_s < c.ttft_s) c = waited;
  }
}

// A candidate's rank with any fetch is at least its queue and the computing that is left when all that anybody
// holds, or will, has been fetched in no time. Rounding keeps the order: max and sums are of no larger terms.
class Bound {
 public:
  Bound(const Snapshot& snapshot, const Sources& sources) : snapshot_(snapshot) {
    if (sources.best >= 0) most_ = snapshot.holders[static_cast<size_t>(sources.best)].readable_blocks;
    for (const int i : sources.pending)
      most_ = std::max(most_, snapshot.holders[static_cast<size_t>(i)].pending_blocks);
  }
  /// Whether no way can bring the candidate below best_s, or to it; the second of equals loses.
  bool rules_out(const Candidate& c, double best_s, bool second) const {
    const double least_s = rank_s(c);
    return least_s > best_s || (least_s == best_s && second);
  }

 private:
  double rank_s(const Candidate& c) const {
    if (most_ <= c.local_blocks) return c.rank_s();
    const double left_s = snapshot_.prefill[c.node].cost.prefill(snapshot_.tokens, reused_tokens(snapshot_, most_));
    return std::max(c.queue_s, 0.0) + left_s + c.handicap_s;
  }

  const Snapshot& snapshot_;
  uint32_t most_ = 0;
};

int choose(const Snapshot& snapshot, const Options& options, std::span<Candidate> candidates, Rng&) {
  const Sources sources = sources_of(snapshot);
  // The paper's rule may fetch what makes a candidate worse, so nothing bounds it; a node that is preferred need
  // not be the best.
  const bool prune = !options.complete && options.prefer.empty() && options.fetch_rule == FetchRule::cost;
  const Bound bound(snapshot, sources);
  // Near the end first: a good candidate early rules most others out. Ties still go to the first node.
  size_t best = 0;
  double best_s = candidates[0].rank_s();
  if (prune) {
    for (size_t i = 1; i < candidates.size(); ++i)
      if (const double rank_s = candidates[i].rank_s(); rank_s < best_s) best = i, best_s = rank_s;
    consider_fetch(snapshot, options, sources, candidates[best]);
    best_s = candidates[best].rank_s();
    // Those that wait longer than that in their queues alone are left out, without a branch: no
    // processor foresees them.
    std::vector<uint32_t> left(candidates.size());
    size_t count = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      left[count] = static_cast<uint32_t>(i);
      count += std::max(candidates[i].queue_s, 0.0) + candidates[i].handicap_s <= best_s;
    }
    for (size_t at = 0, first = best; at < count; ++at) {
      const size_t i = left[at];
      Candidate& c = candidates[i];
      if (i == first || bound.rules_out(c, best_s, i > best)) continue;
      consider_fetch(snapshot, options, sources, c);
      const double rank_s = c.rank_s();
      if (rank_s < best_s || (rank_s == best_s && i < best)) best = i, best_s = rank_s;
    }
    return static_cast<int>(best);
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    consider_fetch(snapshot, options, sources, candidates[i]);
    if (candidates[i].rank_s() < candidates[best].rank_s()) best = i;
  }
  return static_cast<int>(best);
}

}  // namespace

extern const Policy kPolicyKvCentric;
const Policy kPolicyKvCentric = {"kv-centric", "least predicted TTFT; missing prefix fetched from its best holder",
                                 choose};

}  // namespace mc::sched

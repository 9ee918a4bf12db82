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

/// Makes the candidate fetch its blocks up to number `blocks` from there, if that is sooner, or in any case.
void fetch_from(const Snapshot& snapshot, Candidate& c, int holder, uint32_t blocks, double wait_s, bool sooner) {
  const PrefillView& node = snapshot.prefill[c.node];
  const uint32_t fetched = blocks - c.local_blocks;
  const double fetch_s = fetch_seconds(snapshot, node.cost, snapshot.holders[static_cast<size_t>(holder)], fetched);
  const double prefill_s = node.cost.prefill(work_left(snapshot, blocks));
  const double ttft_s = std::max(c.queue_s, wait_s + fetch_s) + prefill_s;
  if (sooner && !(ttft_s < c.ttft_s)) return;
  c.holder = holder, c.fetch_blocks = fetched;
  c.wait_s = wait_s, c.fetch_s = fetch_s, c.prefill_s = prefill_s, c.ttft_s = ttft_s;
}

void consider_fetch(const Snapshot& snapshot, const Options& options, const Sources& sources, Candidate& c) {
  const PrefillView& here = snapshot.prefill[c.node];
  const int holder = sources.best >= 0 && is_self(snapshot, here, sources.best) ? sources.second : sources.best;
  const uint32_t best = holder < 0 ? 0 : snapshot.holders[static_cast<size_t>(holder)].readable_blocks;
  if (options.fetch_rule == FetchRule::threshold) {
    if (best > 0 && best > options.threshold * c.local_blocks && best > c.local_blocks)
      fetch_from(snapshot, c, holder, best, 0, false);
    return;
  }
  if (best > c.local_blocks) fetch_from(snapshot, c, holder, best, 0, true);
  for (const int i : sources.pending) {
    const HolderView& h = snapshot.holders[static_cast<size_t>(i)];
    if (h.pending_blocks <= c.local_blocks || is_self(snapshot, here, i)) continue;
    fetch_from(snapshot, c, i, h.pending_blocks, h.pending_s, true);
  }
}

// A candidate's rank with any fetch is at least its queue and the computing that is left when all that anybody
// holds, or will, has been fetched in no time. Rounding keeps the order: max and sums are of no larger terms.
class Bound {
 public:
  Bound(const Snapshot& snapshot, const Sources& sources) : snapshot_(snapshot) {
    uint32_t most = 0;
    if (sources.best >= 0) most = snapshot.holders[static_cast<size_t>(sources.best)].readable_blocks;
    for (const int i : sources.pending) most = std::max(most, snapshot.holders[static_cast<size_t>(i)].pending_blocks);
    left_ = work_left(snapshot, most);
  }
  double rank_s(const Candidate& c) const {
    const double left_s = snapshot_.prefill[c.node].cost.prefill(left_);
    return c.queue_s + std::min(left_s, c.prefill_s) + c.handicap_s;
  }

 private:
  const Snapshot& snapshot_;
  Work left_;  // of the prompt after that fetch
};

// The same choice without a close look at most. A good candidate first rules many others out; ties still go to the
// first node.
size_t choose_pruned(const Snapshot& snapshot, const Options& options, const Sources& sources,
                     std::span<Candidate> candidates) {
  const Bound bound(snapshot, sources);
  size_t best = 0;
  double best_s = candidates[0].rank_s();
  for (size_t i = 1; i < candidates.size(); ++i)
    if (const double rank_s = candidates[i].rank_s(); rarely(rank_s < best_s)) best = i, best_s = rank_s;
  consider_fetch(snapshot, options, sources, candidates[best]);
  best_s = candidates[best].rank_s();
  struct Left {
    uint32_t at;
    double least_s;
  };
  std::vector<Left> left(candidates.size());
  size_t count = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {  // without a branch: no processor foresees it
    left[count] = {static_cast<uint32_t>(i), bound.rank_s(candidates[i])};
    count += left[count].least_s <= best_s;
  }
  const size_t first = best;
  for (const auto& [i, least_s] : std::span(left).first(count)) {
    if (i == first || least_s > best_s || (least_s == best_s && i > best)) continue;
    consider_fetch(snapshot, options, sources, candidates[i]);
    const double rank_s = candidates[i].rank_s();
    if (rank_s < best_s || (rank_s == best_s && i < best)) best = i, best_s = rank_s;
  }
  return best;
}

int choose_kv_centric(const Snapshot& snapshot, const Options& options, std::span<Candidate> candidates, Rng&) {
  const Sources sources = sources_of(snapshot);
  // The paper's rule may fetch what makes a candidate worse, so nothing bounds it; a node that is preferred need
  // not be the best.
  if (!options.complete && options.prefer.empty() && options.fetch_rule == FetchRule::cost)
    return static_cast<int>(choose_pruned(snapshot, options, sources, candidates));
  size_t best = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    consider_fetch(snapshot, options, sources, candidates[i]);
    if (candidates[i].rank_s() < candidates[best].rank_s()) best = i;
  }
  return static_cast<int>(best);
}

}  // namespace

extern const Policy kPolicyKvCentric;
const Policy kPolicyKvCentric = {"kv-centric", "least predicted TTFT; missing prefix fetched from its best holder",
                                 choose_kv_centric};

}  // namespace mc::sched

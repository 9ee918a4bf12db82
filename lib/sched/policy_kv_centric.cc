// Algorithm 1 of Mooncake (6.1, 6.2). Each prefill node uses its local prefix, or fetches the missing part from the
// node that holds the most. The node with the least predicted TTFT wins. There are two fetch rules:
//   threshold  the rule of the paper: fetch when best > threshold * local
//   cost       for each node the cheaper of computing and fetching; a request may also wait for blocks that
//              another node is still computing, when that ends sooner than computing them again
// The node that fetched the blocks keeps them, so hot prefixes replicate to the nodes that load sends requests to.

#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "sched/fetch_plan.h"
#include "sched/policy.h"

namespace mc::sched {
namespace {

// The best source, and the best source other than that one, because a node does not fetch from itself. Both are found
// once a decision. Ties go to the source with the fewest leaving transfers, then to the first.
struct Sources {
  int best = -1, second = -1;
  std::vector<int> others;              // sources with the most blocks, where the costs of links are known
  std::vector<int> pending;             // nodes with more pending blocks than the best source holds
  std::optional<FetchPlanner> planner;  // where runs lie behind the longest match
  bool has_only_best() const { return others.empty() && pending.empty() && !planner; }
};

/// The quality of a source: more blocks, then fewer leaving transfers. kNoSource is below every source.
constexpr uint64_t kNoSource = UINT32_MAX;
uint64_t worth(const HolderView& h) {
  return (uint64_t{h.readable_blocks} << 32 | h.transfers_leaving) ^ UINT32_MAX;  // one load of both
}

constexpr size_t kOthersMax = 8;

/// The holders with the most readable blocks, best first. A longer run over a slow link may come later than a shorter
/// one over a fast link.
std::vector<int> best_sources(const Snapshot& snapshot) {
  const auto better = [&](int a, int b) {
    const uint64_t x = worth(snapshot.holders[static_cast<size_t>(a)]);
    const uint64_t y = worth(snapshot.holders[static_cast<size_t>(b)]);
    return x != y ? x > y : a < b;
  };
  std::vector<int> out;
  for (int i = 0; i < static_cast<int>(snapshot.holders.size()); ++i) {
    if (snapshot.holders[static_cast<size_t>(i)].readable_blocks == 0) continue;
    if (out.size() == kOthersMax && !better(i, out.back())) continue;
    if (out.size() == kOthersMax) out.pop_back();
    out.insert(std::upper_bound(out.begin(), out.end(), i, better), i);
  }
  return out;
}

Sources sources_of(const Snapshot& snapshot) {
  Sources out;
  if (snapshot.transfers) out.others = best_sources(snapshot);
  uint64_t best = kNoSource, second = kNoSource;
  const HolderView* holders = snapshot.holders.data();
  const int count = static_cast<int>(snapshot.holders.size());
  for (int i = 0; i < count; ++i) {
    const HolderView& h = holders[i];
    if (rarely(h.pending_blocks > h.readable_blocks)) out.pending.push_back(i);
    const uint64_t worth_here = worth(h);
    if (worth_here <= second) continue;
    if (worth_here > best) {
      second = best, out.second = out.best;
      best = worth_here, out.best = i;
    } else {
      second = worth_here, out.second = i;
    }
  }
  if (rarely(!snapshot.later_runs.empty())) out.planner.emplace(snapshot);
  return out;
}

/// Lets the candidate fetch its blocks up to number `blocks` from `holder`: always, or with `sooner` only if that
/// shortens the TTFT.
[[gnu::always_inline]] inline void fetch_from(const Snapshot& snapshot, Candidate& c, int holder, uint32_t blocks,
                                              double wait_s, bool sooner) {
  const PrefillView& node = snapshot.prefill[c.node];
  const uint32_t fetched = blocks - c.local_blocks;
  const double fetch_s = fetch_seconds(snapshot, reader_of(node), holder, fetched);
  const double prefill_s = node.cost.prefill(work_left(snapshot, blocks));
  const double to_device_s = to_device_seconds(snapshot, c.node, blocks);
  const double ttft_s = std::max({c.queue_s, c.load_s, wait_s + fetch_s}) + compute_seconds(prefill_s, to_device_s);
  if (sooner && !(ttft_s < c.ttft_s)) return;
  c.holder = holder, c.fetch_blocks = fetched;
  c.wait_s = wait_s, c.fetch_s = fetch_s, c.prefill_s = prefill_s, c.to_device_s = to_device_s, c.ttft_s = ttft_s;
}

// Considers a fetch from several holders, which together have more of the prefix than any one of them.
void consider_several(const Snapshot& snapshot, const Options& options, FetchPlanner& planner, Candidate& c) {
  const PrefillView& here = snapshot.prefill[c.node];
  const uint32_t reach = planner.reach(here, c.local_blocks);
  if (reach <= c.local_blocks + c.fetch_blocks) return;
  const FetchPlan& plan = planner.plan(here, c.local_blocks, reach);
  const double prefill_s = here.cost.prefill(work_left(snapshot, reach));
  const double to_device_s = to_device_seconds(snapshot, c.node, reach);
  const double ttft_s = std::max({c.queue_s, c.load_s, plan.seconds}) + compute_seconds(prefill_s, to_device_s);
  const bool fetch =
      options.fetch_rule == FetchRule::cost ? ttft_s < c.ttft_s : reach > options.threshold * c.local_blocks;
  if (!fetch) return;
  c.holder = plan.parts.front().holder, c.fetch_blocks = reach - c.local_blocks;
  c.wait_s = 0, c.fetch_s = plan.seconds, c.prefill_s = prefill_s, c.to_device_s = to_device_s, c.ttft_s = ttft_s;
}

/// The best source of a candidate, and the number of blocks that it has; -1 and 0 = none.
struct Source {
  int holder;
  uint32_t blocks;
};
Source best_source(const Snapshot& snapshot, const Sources& sources, const Candidate& c) {
  const PrefillView& here = snapshot.prefill[c.node];
  const int holder = sources.best >= 0 && is_self(snapshot, here, sources.best) ? sources.second : sources.best;
  return {holder, holder < 0 ? 0 : snapshot.holders[static_cast<size_t>(holder)].readable_blocks};
}

void consider_fetch(const Snapshot& snapshot, const Options& options, Sources& sources, Candidate& c) {
  const PrefillView& here = snapshot.prefill[c.node];
  const auto [holder, best] = best_source(snapshot, sources, c);
  if (options.fetch_rule == FetchRule::threshold) {
    if (best > 0 && best > options.threshold * c.local_blocks && best > c.local_blocks)
      fetch_from(snapshot, c, holder, best, 0, false);
    if (rarely(sources.planner.has_value())) consider_several(snapshot, options, *sources.planner, c);
    return;
  }
  if (best > c.local_blocks) fetch_from(snapshot, c, holder, best, 0, true);
  for (const int i : sources.others) {
    const uint32_t blocks = snapshot.holders[static_cast<size_t>(i)].readable_blocks;
    if (i != holder && blocks > c.local_blocks && !is_self(snapshot, here, i))
      fetch_from(snapshot, c, i, blocks, 0, true);
  }
  for (const int i : sources.pending) {
    const HolderView& h = snapshot.holders[static_cast<size_t>(i)];
    if (h.pending_blocks <= c.local_blocks || is_self(snapshot, here, i)) continue;
    fetch_from(snapshot, c, i, h.pending_blocks, h.pending_s, true);
  }
  if (rarely(sources.planner.has_value())) consider_several(snapshot, options, *sources.planner, c);
}

// consider_fetch() of the cost rule where no other source is worth a look.
void consider_best(const Snapshot& snapshot, const Sources& sources, Candidate& c) {
  const auto [holder, best] = best_source(snapshot, sources, c);
  if (best > c.local_blocks) fetch_from(snapshot, c, holder, best, 0, true);
}

// A lower bound of a candidate's TTFT with any fetch: its queue plus the computing that remains when all blocks that
// any node holds, or will hold, have been fetched in no time. Rounding keeps the order, because max and sums are of no
// larger terms.
class Bound {
 public:
  Bound(const Snapshot& snapshot, const Sources& sources) : snapshot_(snapshot) {
    uint32_t most = 0;
    if (sources.best >= 0) most = snapshot.holders[static_cast<size_t>(sources.best)].readable_blocks;
    for (const int i : sources.pending) most = std::max(most, snapshot.holders[static_cast<size_t>(i)].pending_blocks);
    for (const HolderRun& run : snapshot.later_runs) most = std::max(most, run.end);
    left_ = work_left(snapshot, most);
  }
  double rank_s(const Candidate& c) const {
    const double left_s = snapshot_.prefill[c.node].cost.prefill(left_);
    return c.queue_s + std::min(left_s, c.prefill_s) + c.handicap_s;
  }

 private:
  const Snapshot& snapshot_;
  Work left_;  // work of the prompt after that fetch
};

// Makes the exhaustive choice, but skips the exact prediction of most candidates. A good candidate first rules many
// others out. Ties still go to the first node.
size_t choose_pruned(const Snapshot& snapshot, const Options& options, Sources& sources,
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
  const auto left = std::make_unique_for_overwrite<Left[]>(candidates.size());
  size_t count = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {  // branch-free, because a processor cannot predict the comparison
    left[count] = {static_cast<uint32_t>(i), bound.rank_s(candidates[i])};
    count += left[count].least_s <= best_s;
  }
  const size_t first = best;
  const bool only_best = sources.has_only_best();
  for (const auto& [i, least_s] : std::span(left.get(), count)) {
    if (i == first || least_s > best_s || (least_s == best_s && i > best)) continue;
    if (only_best)
      consider_best(snapshot, sources, candidates[i]);
    else
      consider_fetch(snapshot, options, sources, candidates[i]);
    const double rank_s = candidates[i].rank_s();
    if (rank_s < best_s || (rank_s == best_s && i < best)) best = i, best_s = rank_s;
  }
  return best;
}

int choose_kv_centric(const Snapshot& snapshot, const Options& options, std::span<Candidate> candidates, Rng&) {
  Sources sources = sources_of(snapshot);
  // The paper's rule may choose a fetch that makes a candidate worse, so no bound holds for it. A preferred node need
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

#include "sched/fetch_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/assert.h"

namespace mc::sched {
namespace {

constexpr size_t kHoldersMax = 8;  // leading runs that a plan considers, the longest ones
constexpr size_t kSparesMax = 8;

/// The first block of the run that is read from disk; the end of the run = none.
uint32_t disk_begin(const HolderRun& run) {
  return run.end - std::min(run.disk_blocks, run.end - run.first);
}

// The longest leading runs, then the runs behind them.
std::vector<HolderRun> runs_of(const Snapshot& snapshot, const PrefillView& node, uint32_t first) {
  std::vector<HolderRun> runs;
  const auto longer = [&](const HolderRun& a, const HolderRun& b) {
    const auto& holders = snapshot.holders;
    const uint32_t leaving_a = holders[static_cast<size_t>(a.holder)].transfers_leaving;
    const uint32_t leaving_b = holders[static_cast<size_t>(b.holder)].transfers_leaving;
    return std::tuple(b.end, leaving_a, a.holder) < std::tuple(a.end, leaving_b, b.holder);
  };
  for (size_t i = 0; i < snapshot.holders.size(); ++i) {
    const HolderView& h = snapshot.holders[i];
    if (h.readable_blocks <= first || is_self(snapshot, node, static_cast<int>(i))) continue;
    const HolderRun run{static_cast<int>(i), 0, h.readable_blocks, h.disk_blocks};
    if (runs.size() == kHoldersMax && !longer(run, runs.back())) continue;
    if (runs.size() == kHoldersMax) runs.pop_back();
    runs.insert(std::upper_bound(runs.begin(), runs.end(), run, longer), run);
  }
  for (const HolderRun& run : snapshot.later_runs) {
    MC_ASSERT(run.first < run.end && run.disk_blocks <= run.end - run.first);
    if (run.end > first && !is_self(snapshot, node, run.holder)) runs.push_back(run);
  }
  return runs;
}

uint32_t reach_of(const std::vector<HolderRun>& runs, uint32_t first) {
  for (bool longer = true; longer;) {
    longer = false;
    for (const HolderRun& run : runs)
      if (run.first <= first && run.end > first) first = run.end, longer = true;
  }
  return first;
}

/// A piece of the prefix that no run divides, and the runs that contain it, best first.
struct Piece {
  uint32_t first, end;
  std::vector<const HolderRun*> runs;
};

std::vector<Piece> pieces_of(const Snapshot& snapshot, const std::vector<HolderRun>& runs, uint32_t first,
                             uint32_t end) {
  std::vector<uint32_t> cuts = {first, end};
  for (const HolderRun& run : runs)
    for (const uint32_t cut : {run.first, disk_begin(run), run.end})
      if (cut > first && cut < end) cuts.push_back(cut);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<Piece> pieces;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    Piece piece{cuts[i], cuts[i + 1], {}};
    for (const HolderRun& run : runs)
      if (run.first <= piece.first && piece.end <= run.end) piece.runs.push_back(&run);
    const auto rank = [&](const HolderRun* run) {
      const HolderView& holder = snapshot.holders[static_cast<size_t>(run->holder)];
      return std::tuple(disk_begin(*run) <= piece.first, holder.transfers_leaving, run->holder);
    };
    std::sort(piece.runs.begin(), piece.runs.end(),
              [&](const HolderRun* a, const HolderRun* b) { return rank(a) < rank(b); });
    MC_ASSERT(!piece.runs.empty());
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

/// Blocks that one holder sends.
struct Load {
  uint32_t blocks = 0, disk_blocks = 0;
};

// Runs that contain blocks of other holders' parts.
std::vector<FetchRun> spares_of(const Snapshot& snapshot, const std::vector<HolderRun>& runs,
                                const std::vector<FetchRun>& parts) {
  std::vector<FetchRun> spares;
  const uint32_t first = parts.front().first, end = parts.back().end;
  for (const HolderRun& run : runs) {
    const FetchRun spare{run.holder, std::max(run.first, first), std::min(run.end, end)};
    const bool replaces = std::any_of(parts.begin(), parts.end(), [&](const FetchRun& part) {
      return part.holder != spare.holder && part.first < spare.end && spare.first < part.end;
    });
    if (replaces) spares.push_back(spare);
  }
  const auto rank = [&](const FetchRun& run) {
    const HolderView& holder = snapshot.holders[static_cast<size_t>(run.holder)];
    return std::tuple(holder.disk_blocks > 0, holder.transfers_leaving, run.first, run.holder);
  };
  std::stable_sort(spares.begin(), spares.end(),
                   [&](const FetchRun& a, const FetchRun& b) { return rank(a) < rank(b); });
  spares.resize(std::min(spares.size(), kSparesMax));
  return spares;
}

}  // namespace

std::vector<int> FetchPlan::holders() const {
  std::vector<int> out;
  for (const FetchRun& part : parts)
    if (std::find(out.begin(), out.end(), part.holder) == out.end()) out.push_back(part.holder);
  return out;
}

uint32_t first_fetched(std::span<const kv::NodeMatch> matches, kv::NodeOrdinal node, const Candidate& candidate) {
  for (const kv::NodeMatch& match : matches)
    if (match.node == node) return std::min(match.resident, candidate.local_blocks);
  return 0;
}

uint32_t fetch_reach(const Snapshot& snapshot, const PrefillView& node, uint32_t first) {
  return reach_of(runs_of(snapshot, node, first), first);
}

FetchPlan plan_fetch(const Snapshot& snapshot, const PrefillView& node, uint32_t first, uint32_t end) {
  FetchPlan plan;
  const std::vector<HolderRun> runs = runs_of(snapshot, node, first);
  end = std::min(end, reach_of(runs, first));
  if (end <= first) return plan;
  std::vector<Piece> pieces = pieces_of(snapshot, runs, first, end);
  // Pieces without a choice come first, because their holders are busy with them in any case.
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.runs.size() < b.runs.size(); });
  std::map<int, Load> loads;  // key: holder
  for (const Piece& piece : pieces) {
    const HolderRun* best = nullptr;
    double best_s = 0;
    for (const HolderRun* run : piece.runs) {
      const Load load = loads[run->holder];
      const uint32_t blocks = piece.end - piece.first, disk = disk_begin(*run) <= piece.first ? blocks : 0;
      const double s = fetch_seconds(snapshot, node.cost, snapshot.holders[static_cast<size_t>(run->holder)],
                                     load.blocks + blocks, load.disk_blocks + disk);
      if (!best || s < best_s) best = run, best_s = s;
    }
    Load& load = loads[best->holder];
    load.blocks += piece.end - piece.first;
    if (disk_begin(*best) <= piece.first) load.disk_blocks += piece.end - piece.first;
    plan.seconds = std::max(plan.seconds, best_s);
    plan.parts.push_back({best->holder, piece.first, piece.end});
  }
  std::sort(plan.parts.begin(), plan.parts.end(),
            [](const FetchRun& a, const FetchRun& b) { return a.first < b.first; });
  size_t last = 0;
  for (size_t i = 1; i < plan.parts.size(); ++i) {
    MC_ASSERT_EQ(plan.parts[last].end, plan.parts[i].first);
    if (plan.parts[i].holder == plan.parts[last].holder)
      plan.parts[last].end = plan.parts[i].end;
    else
      plan.parts[++last] = plan.parts[i];
  }
  plan.parts.resize(last + 1);
  plan.spares = spares_of(snapshot, runs, plan.parts);
  // The rate is what the reader has reached so far: several senders together are not assumed to be faster.
  const double bytes = static_cast<double>(end - first) * static_cast<double>(snapshot.block_bytes);
  plan.seconds = std::max(plan.seconds, node.cost.read(bytes, 0));
  return plan;
}

FetchPlan plan_fetch(const Snapshot& snapshot, const Candidate& candidate, uint32_t first) {
  const uint32_t end = candidate.local_blocks + candidate.fetch_blocks;
  if (candidate.holder < 0 || candidate.fetch_blocks == 0 || first >= end) return {};
  FetchPlan plan;
  if (candidate.wait_s == 0) plan = plan_fetch(snapshot, snapshot.prefill[candidate.node], first, end);
  if (!plan.parts.empty() && plan.parts.back().end == end) return plan;
  return {{{candidate.holder, first, end}}, {}, candidate.fetch_s};
}

}  // namespace mc::sched

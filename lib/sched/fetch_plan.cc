#include "sched/fetch_plan.h"

#include <algorithm>
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

/// Seconds of reading so many bytes at the rate of the reader's fastest source.
double least_seconds(const Snapshot& snapshot, const BlockReader& reader, double bytes) {
  if (!snapshot.transfers || reader.holder < 0) return reader.cost.read(bytes, 0);
  const uint32_t slot = snapshot.holders[static_cast<size_t>(reader.holder)].slot;
  return bytes * snapshot.transfers->least_s_per_byte(slot, snapshot.now);
}

uint32_t reach_of(const std::vector<HolderRun>& runs, uint32_t first) {
  for (bool longer = true; longer;) {
    longer = false;
    for (const HolderRun& run : runs)
      if (run.first <= first && run.end > first) first = run.end, longer = true;
  }
  return first;
}

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

FetchPlanner::FetchPlanner(const Snapshot& snapshot) : snapshot_(snapshot) {
  const auto longer = [&](const HolderRun& a, const HolderRun& b) {
    const auto& holders = snapshot.holders;
    const uint32_t leaving_a = holders[static_cast<size_t>(a.holder)].transfers_leaving;
    const uint32_t leaving_b = holders[static_cast<size_t>(b.holder)].transfers_leaving;
    return std::tuple(b.end, leaving_a, a.holder) < std::tuple(a.end, leaving_b, b.holder);
  };
  for (size_t i = 0; i < snapshot.holders.size(); ++i) {
    const HolderView& h = snapshot.holders[i];
    const HolderRun run{static_cast<int>(i), 0, h.readable_blocks, h.disk_blocks};
    const bool is_full = leading_.size() > kHoldersMax;  // one more than a plan considers: the node itself may be one
    if (h.readable_blocks == 0 || (is_full && !longer(run, leading_.back()))) continue;
    if (is_full) leading_.pop_back();
    leading_.insert(std::upper_bound(leading_.begin(), leading_.end(), run, longer), run);
  }
}

/// The longest leading runs, then the runs behind them.
void FetchPlanner::find_runs(const PrefillView& node, uint32_t first) {
  runs_.clear();
  const auto add = [&](const HolderRun& run) {
    if (run.end > first && run.holder != left_out_ && !is_self(snapshot_, node, run.holder)) runs_.push_back(run);
  };
  for (const HolderRun& run : leading_)
    if (runs_.size() < kHoldersMax) add(run);
  for (const HolderRun& run : snapshot_.later_runs) {
    MC_ASSERT(run.first < run.end && run.disk_blocks <= run.end - run.first);
    add(run);
  }
}

uint32_t FetchPlanner::reach(const PrefillView& node, uint32_t first) {
  find_runs(node, first);
  return reach_of(runs_, first);
}

/// Cuts the prefix where a run begins, ends or continues on disk. Pieces that only one run contains come first, because
/// their holders are busy with them in any case.
void FetchPlanner::cut_pieces(uint32_t first, uint32_t end) {
  cuts_.assign({first, end});
  for (const HolderRun& run : runs_)
    for (const uint32_t cut : {run.first, disk_begin(run), run.end})
      if (cut > first && cut < end) cuts_.push_back(cut);
  std::sort(cuts_.begin(), cuts_.end());
  cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
  pieces_.clear();
  for (size_t i = 0; i + 1 < cuts_.size(); ++i) {
    Piece piece{cuts_[i], cuts_[i + 1], 0};
    for (const HolderRun& run : runs_) piece.runs += piece.is_in(run);
    MC_ASSERT_LT(0u, piece.runs);
    pieces_.push_back(piece);
  }
  std::sort(pieces_.begin(), pieces_.end(),
            [](const Piece& a, const Piece& b) { return std::tuple(a.runs, a.first) < std::tuple(b.runs, b.first); });
}

void FetchPlanner::count(std::span<const FetchRun> parts) {
  for (const FetchRun& part : parts) counted_.push_back({part.holder, part.end - part.first, 0});
}

FetchPlanner::Load& FetchPlanner::load_of(int holder) {
  const auto known =
      std::find_if(loads_.begin(), loads_.end(), [&](const Load& load) { return load.holder == holder; });
  return known != loads_.end() ? *known : loads_.emplace_back(Load{holder, 0, 0});
}

/// Gives a piece to the holder that will have sent it first, beside the pieces that it sends already.
void FetchPlanner::give(const Piece& piece, const BlockReader& reader) {
  const HolderRun* best = nullptr;
  double best_s = 0;
  const auto rank = [&](const HolderRun& run, double s) {
    const HolderView& holder = snapshot_.holders[static_cast<size_t>(run.holder)];
    return std::tuple(s, disk_begin(run) <= piece.first, holder.transfers_leaving, run.holder);
  };
  const uint32_t blocks = piece.end - piece.first;
  for (const HolderRun& run : runs_) {
    if (!piece.is_in(run)) continue;
    const Load& load = load_of(run.holder);
    const uint32_t disk = disk_begin(run) <= piece.first ? blocks : 0;
    const double s = fetch_seconds(snapshot_, reader, run.holder, load.blocks + blocks, load.disk_blocks + disk);
    if (!best || rank(run, s) < rank(*best, best_s)) best = &run, best_s = s;
  }
  Load& load = load_of(best->holder);
  load.blocks += blocks;
  if (disk_begin(*best) <= piece.first) load.disk_blocks += blocks;
  plan_.seconds = std::max(plan_.seconds, best_s);
  plan_.parts.push_back({best->holder, piece.first, piece.end});
}

const FetchPlan& FetchPlanner::plan(const PrefillView& node, uint32_t first, uint32_t end) {
  plan_.parts.clear(), plan_.spares.clear();
  plan_.seconds = 0;
  end = std::min(end, reach(node, first));
  if (end <= first) return plan_;
  cut_pieces(first, end);
  loads_ = counted_;
  for (const Piece& piece : pieces_) give(piece, reader_of(node));
  std::vector<FetchRun>& parts = plan_.parts;
  std::sort(parts.begin(), parts.end(), [](const FetchRun& a, const FetchRun& b) { return a.first < b.first; });
  size_t last = 0;
  for (size_t i = 1; i < parts.size(); ++i) {
    MC_ASSERT_EQ(parts[last].end, parts[i].first);
    if (parts[i].holder == parts[last].holder)
      parts[last].end = parts[i].end;
    else
      parts[++last] = parts[i];
  }
  parts.resize(last + 1);
  // The rate is what the reader has reached so far: several senders together are not assumed to be faster.
  const double bytes = static_cast<double>(end - first) * static_cast<double>(snapshot_.block_bytes);
  plan_.seconds = std::max(plan_.seconds, least_seconds(snapshot_, reader_of(node), bytes));
  return plan_;
}

FetchPlan FetchPlanner::plan_with_spares(const PrefillView& node, uint32_t first, uint32_t end) {
  FetchPlan out = plan(node, first, end);
  if (!out.parts.empty()) out.spares = spares_of(snapshot_, runs_, out.parts);
  return out;
}

bool is_fetch_measured(const Snapshot& snapshot, const Candidate& candidate) {
  if (candidate.holder < 0) return true;
  return learnt_cost(snapshot, reader_of(snapshot.prefill[candidate.node]), candidate.holder).has_value();
}

FetchPlan plan_fetch(const Snapshot& snapshot, const Candidate& candidate, uint32_t first) {
  const uint32_t end = candidate.local_blocks + candidate.fetch_blocks;
  if (candidate.holder < 0 || candidate.fetch_blocks == 0 || first >= end) return {};
  FetchPlan plan;
  if (candidate.wait_s == 0)
    plan = FetchPlanner(snapshot).plan_with_spares(snapshot.prefill[candidate.node], first, end);
  if (!plan.parts.empty() && plan.parts.back().end == end) return plan;
  return {{{candidate.holder, first, end}}, {}, candidate.fetch_s};
}

}  // namespace mc::sched

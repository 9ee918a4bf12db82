// The holders that a prefill node reads a prefix from. The prefix is cut where a holder's run ends or continues on its
// disk, and each piece is read from one holder. All holders are read at once, so a piece goes to the holder that will
// have sent it first:
//
//   p1  0 ............ 20                       parts   p1 [0, 20)  c0 [20, 60)
//   c0  0 ........................... 60        spares  c0 [0, 20)
//
// Ties go to memory before disk, then to the holder with fewer leaving transfers, then to the first one.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kv/index.h"
#include "sched/policy.h"

namespace mc::sched {

/// Blocks of a prompt that are read from one holder. Unlike HolderRun it says nothing of memory and disk: the holder
/// sends from both. wire::Source is such a run with the holder's name, for the node that fetches.
struct FetchRun {
  int holder = -1;  // index into Snapshot::holders
  uint32_t first = 0, end = 0;
  bool operator==(const FetchRun&) const = default;
};

struct FetchPlan {
  std::vector<FetchRun> parts;   // ascending and without a gap
  std::vector<FetchRun> spares;  // runs of holders that can replace the holder of a part, best first
  double seconds = 0;            // until the last block is here

  /// Holders of the parts, each once.
  std::vector<int> holders() const;
};

inline constexpr uint32_t kPartsAtOnce = 4;  // parts of one prefix that a prefill node leases or reads at once
inline constexpr size_t kRunsMax = 32;       // runs behind the longest match that a decision sees

/// Finds the runs of blocks behind the longest of `matches`. Only a prompt whose blocks are spread over several nodes
/// has such runs. `Index` is kv::PrefixIndex or the caches of a simulated cluster.
template <class Index, class Block>
void find_runs(const Index& index, std::span<const Block> prompt, std::span<const kv::NodeMatch> matches,
               std::vector<kv::NodeRun>& out) {
  uint32_t longest = 0;
  for (const kv::NodeMatch& match : matches) longest = std::max(longest, match.resident);
  out.clear();
  if (longest > 0) index.runs(prompt, longest, kRunsMax, out);
}

/// The first block that the candidate's node fetches, the node being number `node` in `matches`. Blocks that it still
/// has to compute for earlier requests are fetched, because they may arrive sooner from a holder.
uint32_t first_fetched(std::span<const kv::NodeMatch> matches, kv::NodeOrdinal node, const Candidate& candidate);
/// Plans the fetches of one prompt, for one candidate after another. The holders are looked at once, and the memory of
/// a plan is used again for the next one.
class FetchPlanner {
 public:
  /// `snapshot` outlives the planner and does not change.
  explicit FetchPlanner(const Snapshot& snapshot);
  /// Excludes a holder from the plans.
  void leave_out(int holder) { left_out_ = holder; }
  /// Counts parts that the holders send to another node at the same time.
  void count(std::span<const FetchRun> parts);
  /// The end of the run of blocks from `first` on that other nodes hold for this prefill node.
  uint32_t reach(const PrefillView& node, uint32_t first);
  /// The plan for blocks [first, end), as far as other nodes hold them, without spares. It is valid until the next
  /// call.
  const FetchPlan& plan(const PrefillView& node, uint32_t first, uint32_t end);
  FetchPlan plan_with_spares(const PrefillView& node, uint32_t first, uint32_t end);

 private:
  struct Piece {  // of the prefix; no run divides it
    uint32_t first, end;
    uint32_t runs;  // number of runs that contain it
    bool is_in(const HolderRun& run) const { return run.first <= first && end <= run.end; }
  };
  struct Load {  // blocks that one holder sends
    int holder;
    uint32_t blocks, disk_blocks;
  };
  void find_runs(const PrefillView& node, uint32_t first);
  void cut_pieces(uint32_t first, uint32_t end);
  Load& load_of(int holder);
  void give(const Piece& piece, const BlockReader& reader);

  const Snapshot& snapshot_;
  int left_out_ = -1;
  std::vector<HolderRun> leading_;  // the longest leading runs of all holders
  std::vector<Load> counted_;
  // scratch
  std::vector<HolderRun> runs_;  // runs that the node may read
  std::vector<uint32_t> cuts_;
  std::vector<Piece> pieces_;
  std::vector<Load> loads_;
  FetchPlan plan_;
};
/// Whether the cost of reads from the candidate's holder into its node is learnt. True without a fetch.
bool is_fetch_measured(const Snapshot& snapshot, const Candidate& candidate);
/// The plan of a candidate for the blocks from `first` on; empty without a fetch. A fetch that waits for blocks which
/// its holder computes has one part.
FetchPlan plan_fetch(const Snapshot& snapshot, const Candidate& candidate, uint32_t first);

}  // namespace mc::sched

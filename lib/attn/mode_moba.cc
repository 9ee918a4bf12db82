// MoBA (arXiv:2502.13189, section 2): a row attends to its own block and to the top_k - 1 earlier blocks whose mean key
// has the largest product with its query. Ties go to the larger block index and NaN counts as -inf. So exactly
// min(top_k - 1, candidates) blocks are chosen, and every implementation chooses equal ones. A row below top_k * block
// has at most top_k - 1 complete blocks before it. It chooses all of them, so it is dense.
#include <limits>

#include "attn/modes.h"

namespace mc::attn {
namespace {

constexpr ModeParam kMobaParams[] = {
    {"block", &Mode::block, 128, 1, 1 << 20, "tokens of a MoBA block, a multiple of the KV block"},
    {"top_k", &Mode::top_k, 3, 1, 1024, "blocks a token attends to, its own included"},
};

/// chosen[0..filled) are the best blocks so far, worst first: ascending by score, then by block.
struct Best {
  const float* scores;
  int32_t* chosen;
  int64_t room;
  int64_t filled = 0;

  float score(int64_t block) const {
    const float s = scores[block];
    return s == s ? s : -std::numeric_limits<float>::infinity();
  }

  /// Blocks come in ascending order, so the new block wins a tie.
  void offer(int64_t block) {
    const float s = score(block);
    if (filled == room) {
      if (s < score(chosen[0])) return;
    } else {
      // Opens a slot at the front. Every worse block moves down.
      for (int64_t i = filled; i > 0; --i) chosen[i] = chosen[i - 1];
      ++filled;
    }
    int64_t at = 0;
    for (; at + 1 < filled && score(chosen[at + 1]) <= s; ++at) chosen[at] = chosen[at + 1];
    chosen[at] = static_cast<int32_t>(block);
  }
};

void sort_ascending(int32_t* values, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    const int32_t value = values[i];
    int64_t at = i;
    for (; at > 0 && values[at - 1] > value; --at) values[at] = values[at - 1];
    values[at] = value;
  }
}

void select(const Mode& mode, const SelectRow& row) {
  constexpr int64_t kStrip = 64;
  Best best{row.scores, row.chosen, mode.top_k - 1};
  // A block or a whole strip whose scores are below the worst chosen one cannot change the choice. (NaN never compares
  // as below, and offer() treats it as -inf.)
  float worst = -std::numeric_limits<float>::infinity();
  for (int64_t begin = 0; begin < row.candidates && best.room > 0; begin += kStrip) {
    if (row.strip_max[begin / kStrip] < worst) continue;
    const int64_t end = begin + kStrip < row.candidates ? begin + kStrip : row.candidates;
    for (int64_t block = begin; block < end; ++block) {
      if (row.scores[block] < worst) continue;
      best.offer(block);
      if (best.filled == best.room) worst = best.score(best.chosen[0]);
    }
  }
  sort_ascending(row.chosen, best.filled);
  for (int64_t i = best.filled; i < best.room; ++i) row.chosen[i] = -1;
}

}  // namespace

const ModeRow kModeMoba = {
    .kind = ModeKind::moba,
    .name = "moba",
    .help = "every token attends to its own block and the top_k - 1 earlier blocks that score best",
    .params = kMobaParams,
    .full_last = 1,
    .dense_below = [](const Mode& mode) { return moba_dense_below(mode.block, mode.top_k); },
    .first_key = [](const Mode&, int64_t) { return int64_t{0}; },
    .select = select,
};

}  // namespace mc::attn

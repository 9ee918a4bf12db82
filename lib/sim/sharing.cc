#include "sim/sharing.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/assert.h"

namespace mc::sim {
namespace {

uint32_t common_blocks(const TraceBlocks& blocks) {
  auto common = blocks.of(0);
  for (size_t r = 1; r < blocks.size(); ++r) {
    const auto here = blocks.of(r);
    const auto end = std::mismatch(common.begin(), common.end(), here.begin(), here.end()).first;
    common = common.first(static_cast<size_t>(end - common.begin()));
  }
  // One request, or all equal: then nothing is left to tell sessions apart.
  return blocks.size() > 1 ? static_cast<uint32_t>(common.size()) : 0;
}

/// How many distinct blocks lie between two uses: a Fenwick tree with a one at the last use of each.
class StackDistances {
 public:
  StackDistances(size_t touches, uint32_t unique) : tree_(touches + 1), last_(unique, kNever) {}

  /// The distance to the last touch of `block`, or -1.
  double touch(uint32_t block) {
    double distance = -1;
    if (last_[block] != kNever) {
      distance = static_cast<double>(before(now_) - before(last_[block] + 1));
      add(last_[block], -1);
    }
    add(now_, 1);
    last_[block] = now_++;
    return distance;
  }

 private:
  static constexpr size_t kNever = SIZE_MAX;

  void add(size_t at, int64_t change) {
    for (size_t i = at + 1; i < tree_.size(); i += i & -i) tree_[i] += change;
  }
  int64_t before(size_t at) const {
    int64_t sum = 0;
    for (size_t i = at; i > 0; i -= i & -i) sum += tree_[i];
    return sum;
  }

  std::vector<int64_t> tree_;
  std::vector<size_t> last_;
  size_t now_ = 0;
};

std::vector<uint64_t> session_sizes(const TraceBlocks& blocks, uint32_t common) {
  std::map<uint32_t, uint64_t> sessions;
  std::vector<uint64_t> sizes;
  for (size_t r = 0; r < blocks.size(); ++r) {
    if (blocks.of(r).size() > common)
      ++sessions[blocks.of(r)[common]];
    else
      sizes.push_back(1);  // too short to belong anywhere
  }
  for (const auto& [key, size] : sessions) sizes.push_back(size);
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  return sizes;
}

}  // namespace

Sharing find_sharing(const std::vector<TraceRequest>& trace, const TraceBlocks& blocks) {
  MC_ASSERT_EQ(trace.size(), blocks.size());
  Sharing out;
  out.common_blocks = common_blocks(blocks);
  out.uses.resize(blocks.unique());
  std::vector<size_t> last_user(blocks.unique(), kNoParent);
  StackDistances distances(blocks.total(), blocks.unique());
  for (size_t r = 0; r < blocks.size(); ++r) {
    const auto here = blocks.of(r);
    size_t known = 0;
    while (known < here.size() && last_user[here[known]] != kNoParent) ++known;
    out.known_blocks.push_back(static_cast<uint32_t>(known));
    out.parents.push_back(known > out.common_blocks ? last_user[here[known - 1]] : kNoParent);
    for (size_t i = here.size(); i-- > 0;) {
      ++out.uses[here[i]];
      const double distance = distances.touch(here[i]);
      if (distance >= 0) out.stack_distances.push_back(distance);
      size_t& last = last_user[here[i]];
      if (last != kNoParent) out.reuse_gaps_s.push_back((trace[r].timestamp_ms - trace[last].timestamp_ms) / 1000);
      last = r;
    }
  }
  out.session_sizes = session_sizes(blocks, out.common_blocks);
  return out;
}

}  // namespace mc::sim

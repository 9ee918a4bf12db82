#include "sim/replacement.h"

#include <algorithm>
#include <set>

namespace mc::sim {
namespace {

int64_t number(uint64_t value) {
  return static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX));
}

constexpr Replacement kReplacements[] = {
    {.name = "lru",
     .summary = "least recently used",
     .rank = [](const BlockUse& u) -> BlockRank { return {number(u.stamp)}; }},
    {.name = "lru-head",
     .summary = "the same, but touched from the first block to the last",
     .rank = [](const BlockUse& u) -> BlockRank { return {number(u.stamp)}; },
     .head_first = true},
    {.name = "fifo",
     .summary = "first stored",
     .rank = [](const BlockUse& u) -> BlockRank { return {number(u.stored)}; }},
    {.name = "lfu",
     .summary = "fewest uses while resident, then least recently used",
     .rank = [](const BlockUse& u) -> BlockRank {
       return {number(u.count), number(u.stamp)};
     }},
    {.name = "lfu-forever",
     .summary = "fewest uses ever, then least recently used",
     .rank = [](const BlockUse& u) -> BlockRank {
       return {number(u.count_ever), number(u.stamp)};
     }},
    {.name = "length-aware",
     .summary = "fewest uses while resident, then the later position in its request",
     .rank = [](const BlockUse& u) -> BlockRank {
       return {number(u.count), -number(u.position), number(u.stamp)};
     }},
    {.name = "belady",
     .summary = "farthest next use: sees the future, a bound for the others",
     .rank = [](const BlockUse& u) -> BlockRank {
       return {-number(u.next_use), number(u.stamp)};
     },
     .bypass = true},
};

/// For each block of the trace in the order of prompts, where the same block comes next.
std::vector<uint64_t> next_uses(const TraceBlocks& trace) {
  std::vector<uint64_t> next(trace.total()), last(trace.unique(), UINT64_MAX);
  size_t at = trace.total();
  for (size_t r = trace.size(); r-- > 0;) {
    const auto blocks = trace.of(r);
    for (size_t i = blocks.size(); i-- > 0;) {
      next[--at] = last[blocks[i]];
      last[blocks[i]] = at;
    }
  }
  return next;
}

class Cache {
 public:
  Cache(uint64_t capacity, const Replacement& replacement, uint32_t unique)
      : capacity_(capacity), replacement_(replacement), entries_(unique) {}

  uint32_t leading(std::span<const uint32_t> blocks) const {
    uint32_t k = 0;
    while (k < blocks.size() && entries_[blocks[k]].resident) ++k;
    return k;
  }

  void touch(uint32_t block, uint64_t position, uint64_t next_use) {
    Entry& entry = entries_[block];
    BlockUse& use = entry.use;
    use.stamp = ++stamp_;
    ++use.count_ever;
    use.position = position;
    use.next_use = next_use;
    if (entry.resident) {
      ++use.count;
      order_.erase({entry.rank, block});
    } else {
      use.count = 1;
      use.stored = stamp_;
    }
    const BlockRank rank = replacement_.rank(use);
    if (!entry.resident && order_.size() >= capacity_ && !make_room(rank)) return;
    entry.resident = true;
    entry.rank = rank;
    order_.insert({rank, block});
  }

 private:
  struct Entry {
    bool resident = false;
    BlockUse use;
    BlockRank rank{};
  };

  bool make_room(const BlockRank& rank) {
    if (order_.empty() || (replacement_.bypass && rank < order_.begin()->first)) return false;
    entries_[order_.begin()->second].resident = false;
    order_.erase(order_.begin());
    return true;
  }

  uint64_t capacity_;
  const Replacement& replacement_;
  std::vector<Entry> entries_;
  std::set<std::pair<BlockRank, uint32_t>> order_;
  uint64_t stamp_ = 0;
};

}  // namespace

std::span<const Replacement> replacements() {
  return kReplacements;
}

const Replacement* find_replacement(std::string_view name) {
  for (const Replacement& replacement : kReplacements)
    if (replacement.name == name) return &replacement;
  return nullptr;
}

std::vector<uint32_t> replay_cache(const TraceBlocks& trace, uint64_t capacity, const Replacement& replacement) {
  const std::vector<uint64_t> next = next_uses(trace);
  Cache cache(capacity, replacement, trace.unique());
  std::vector<uint32_t> leading;
  size_t first = 0;  // of the request's blocks in `next`
  for (size_t r = 0; r < trace.size(); ++r) {
    const auto blocks = trace.of(r);
    leading.push_back(cache.leading(blocks));
    for (size_t i = 0; i < blocks.size(); ++i) {
      const size_t at = replacement.head_first ? i : blocks.size() - 1 - i;
      cache.touch(blocks[at], at, next[first + at]);
    }
    first += blocks.size();
  }
  return leading;
}

}  // namespace mc::sim

#include "node/evicted_blocks.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

void EvictedBlocks::note(const NodeId& node, std::span<const wire::BlockEvent> events, const kv::PrefixIndex& index,
                         TimePoint now) {
  for (const wire::BlockEvent& event : events) {
    const BlockHash& hash = event.block.hash;
    if (event.stored) {
      if (const auto at = entries_.find(hash); at != entries_.end())
        at->second.stored_at = std::min(at->second.stored_at, now);
      continue;
    }
    if (!event.evicted || !index.holders(hash).empty()) continue;
    entries_[hash] = {node, now, kNever, ++count_};
    order_.emplace_back(count_, hash);
    if (order_.size() <= entries_max_) continue;
    const auto oldest = entries_.find(order_.front().second);
    if (oldest != entries_.end() && oldest->second.number == order_.front().first) entries_.erase(oldest);
    order_.pop_front();
  }
  MC_ASSERT_LE(entries_.size(), order_.size());
  MC_ASSERT_LE(order_.size(), entries_max_);
}

/// The eviction of a block that was nowhere when the request was placed.
const EvictedBlocks::Entry* EvictedBlocks::find(const BlockHash& hash, TimePoint placed) const {
  const auto at = entries_.find(hash);
  return at == entries_.end() || at->second.at > placed || at->second.stored_at <= placed ? nullptr : &at->second;
}

// The runs come from a peer: their numbers bound nothing. Runs of an honest node ascend and are disjoint, so each block
// is looked at once; other runs stay as they are.
std::vector<wire::Miss> EvictedBlocks::explain(std::span<const wire::Miss> misses, std::span<const BlockHash> hashes,
                                               TimePoint placed, TimePoint now) const {
  std::vector<wire::Miss> out;
  uint32_t looked_at = 0;  // blocks before it were looked at
  for (const wire::Miss& run : misses) {
    const uint64_t run_end = uint64_t{run.first_block} + run.block_count;
    const auto end = static_cast<uint32_t>(std::min<uint64_t>(run_end, hashes.size()));
    if (run.kind != wire::MissKind::cold || run.first_block >= end || run.first_block < looked_at) {
      out.push_back(run);
      continue;
    }
    looked_at = end;
    for (uint32_t at = run.first_block; at < end;) {
      const Entry* entry = find(hashes[at], placed);
      wire::Miss part = run;
      part.first_block = at, part.block_count = 0;
      if (entry) {
        part.kind = wire::MissKind::evicted, part.node = entry->node;
        part.age_ms = static_cast<uint64_t>(std::max<Duration>(now - entry->at, Duration{}) / 1ms);
      }
      const auto belongs = [&](const Entry* other) { return entry ? other && other->node == entry->node : !other; };
      while (at < end && belongs(find(hashes[at], placed))) ++at, ++part.block_count;
      out.push_back(std::move(part));
    }
    if (run_end == end) continue;
    wire::Miss rest = run;
    rest.first_block = end, rest.block_count = static_cast<uint32_t>(run_end - end);
    out.push_back(std::move(rest));
  }
  return out;
}

}  // namespace mc::node

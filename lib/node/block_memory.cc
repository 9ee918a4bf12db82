#include "node/block_memory.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

void BlockMemory::evicted(const BlockHash& hash, TimePoint now) {
  const uint64_t number = ++evictions_;
  evicted_[hash] = {now, number};
  older_.emplace_back(number, hash);
  if (older_.size() <= entries_max_) return;
  const auto oldest = evicted_.find(older_.front().second);
  if (oldest != evicted_.end() && oldest->second.number == older_.front().first) evicted_.erase(oldest);
  older_.pop_front();
  MC_ASSERT_LE(evicted_.size(), older_.size());
}

void BlockMemory::rotten(const BlockHash& hash) {
  if (rotten_.size() >= entries_max_) rotten_.clear();
  rotten_.insert(hash);
}

void BlockMemory::unreadable(const BlockHash& hash) {
  if (unreadable_.size() >= entries_max_) unreadable_.clear();
  unreadable_.insert(hash);
}

void BlockMemory::stored(const BlockHash& hash) {
  rotten_.erase(hash);
  unreadable_.erase(hash);
  evicted_.erase(hash);
}

std::optional<Duration> BlockMemory::evicted_ago(const BlockHash& hash, TimePoint now) const {
  const auto it = evicted_.find(hash);
  if (it == evicted_.end()) return std::nullopt;
  MC_ASSERT(it->second.at <= now);
  return now - it->second.at;
}

// FNV-1a. A collision leads to a wrong miss reason and to nothing worse.
BlockMemory::Prompt BlockMemory::fingerprint(std::span<const uint32_t> tokens) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint32_t token : tokens) hash = (hash ^ token) * 0x100000001b3;
  return hash;
}

void BlockMemory::computed(std::span<const uint32_t> first_block, const std::string& attention,
                           const std::string& salt) {
  const Prompt prompt = fingerprint(first_block);
  if (!computed_[prompt].insert({attention, salt}).second) return;
  computed_order_.emplace_back(prompt, Name{attention, salt});
  if (computed_order_.size() <= entries_max_) return;
  const auto& [oldest, name] = computed_order_.front();
  const auto it = computed_.find(oldest);
  MC_ASSERT(it != computed_.end());
  it->second.erase(name);
  if (it->second.empty()) computed_.erase(it);
  computed_order_.pop_front();
}

wire::MissKind BlockMemory::other_name(std::span<const uint32_t> first_block, const std::string& attention,
                                       const std::string& salt) const {
  const auto it = computed_.find(fingerprint(first_block));
  if (it == computed_.end()) return wire::MissKind::cold;
  const auto is = [&](bool same_attention, bool same_salt) {
    return std::any_of(it->second.begin(), it->second.end(), [&](const Name& name) {
      return (name.attention == attention) == same_attention && (name.salt == salt) == same_salt;
    });
  };
  if (is(false, true)) return wire::MissKind::layout;
  return is(true, false) ? wire::MissKind::salt : wire::MissKind::cold;
}

void MissRuns::add(uint32_t block, wire::MissKind kind, const std::string& node, uint64_t age_ms) {
  MC_ASSERT(kind != wire::MissKind::none);
  if (!runs_.empty()) MC_ASSERT_EQ(runs_.back().first_block + runs_.back().block_count, block);
  if (runs_.empty() || runs_.back().kind != kind || runs_.back().node != node)
    runs_.push_back({kind, block, 0, node, age_ms});
  ++runs_.back().block_count;
}

void MissRuns::extend() {
  MC_ASSERT(!runs_.empty());
  ++runs_.back().block_count;
}

}  // namespace mc::node

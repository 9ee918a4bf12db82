// How often each block was used again: by a request that found it in memory, or by its return to memory after it had
// left. Blocks in memory keep their counts. Of those that have left, the one that left first is forgotten first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>

#include "base/ids.h"

namespace mc::node {

class ReuseCounts {
 public:
  static constexpr size_t kLeftMin = 65536;

  /// A block in memory was used.
  void used(const BlockHash& hash) {
    Entry& entry = entries_[hash];
    ++entry.count;
    entry.left = 0;
  }
  /// A block has left memory.
  void left(const BlockHash& hash) {
    Entry& entry = entries_[hash];
    ++entry.count;
    entry.left = ++departures_;
    order_.emplace_back(entry.left, hash);
    while (order_.size() > left_max_) forget_oldest();
  }
  uint32_t of(const BlockHash& hash) const {
    const auto it = entries_.find(hash);
    return it == entries_.end() ? 0 : it->second.count;
  }
  /// Departures that are remembered: kLeftMin at least. A block in memory that had no reader since its return counts
  /// among them, so memory should have fewer pages.
  void remember(size_t departures) { left_max_ = std::max(kLeftMin, departures); }

 private:
  struct Entry {
    uint32_t count = 0;
    uint64_t left = 0;  // number of its last departure; 0 = it was used in memory since
  };
  void forget_oldest() {
    const auto it = entries_.find(order_.front().second);
    if (it != entries_.end() && it->second.left == order_.front().first) entries_.erase(it);
    order_.pop_front();
  }

  size_t left_max_ = kLeftMin;
  uint64_t departures_ = 0;
  std::unordered_map<BlockHash, Entry, Id128Hash> entries_;
  std::deque<std::pair<uint64_t, BlockHash>> order_;  // departures, oldest first
};

}  // namespace mc::node

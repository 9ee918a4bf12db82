// How often a block was used again: by a request that found it in memory, or by its return to memory after it had left.
// The number of blocks is bounded; the block that was counted first is forgotten first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "base/ids.h"

namespace mc::node {

class ReuseCounts {
 public:
  explicit ReuseCounts(size_t blocks_max = 65536) : blocks_max_(blocks_max) {}

  void add(const BlockHash& hash) {
    const auto [it, fresh] = counts_.try_emplace(hash, 0);
    ++it->second;
    if (!fresh) return;
    order_.push_back(hash);
    if (order_.size() <= blocks_max_) return;
    counts_.erase(order_.front());
    order_.pop_front();
  }
  uint32_t of(const BlockHash& hash) const {
    const auto it = counts_.find(hash);
    return it == counts_.end() ? 0 : it->second;
  }

 private:
  size_t blocks_max_;
  std::unordered_map<BlockHash, uint32_t, Id128Hash> counts_;
  std::deque<BlockHash> order_;  // in the order of their first count
};

}  // namespace mc::node

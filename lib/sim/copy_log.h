// The copies of hot prefixes that were made ahead of demand, and which of their blocks a later request used.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "sched/sched.h"
#include "sim/tiers.h"

namespace mc::sim {

class CopyLog {
 public:
  struct Copy {
    uint32_t request = 0;  // the request whose leading blocks are copied
    sched::CopyOrders::Order order;
    bool used = false;
  };

  /// Returns the number of the copy.
  uint32_t begin(uint32_t request, const sched::CopyOrders::Order& order) {
    copies_.push_back({request, order});
    return static_cast<uint32_t>(copies_.size() - 1);
  }
  const Copy& at(uint32_t copy) const { return copies_[copy]; }
  /// Puts the copied blocks of the request's prompt into the cache of the target.
  void arrive(uint32_t copy, std::span<const uint32_t> prompt, TieredCaches& caches) {
    const sched::CopyOrders::Order& order = copies_[copy].order;
    const auto blocks = prompt.first(order.end_block);
    caches.copy_in(order.target, blocks, order.first_block);
    for (const uint32_t block : blocks.subspan(order.first_block)) copy_of_[{order.target, block}] = copy;
  }
  /// Counts those of the used blocks that a copy brought to the node and no request used before.
  void use(uint32_t node, std::span<const uint32_t> blocks, TieredCaches& caches) {
    caches.use_copied(node, blocks, [&](uint32_t block) {
      Copy& copy = copies_[copy_of_.at({node, block})];
      copies_used_ += !copy.used;
      copy.used = true;
      ++blocks_used_;
    });
  }
  uint64_t copies_used() const { return copies_used_; }
  uint64_t blocks_used() const { return blocks_used_; }

 private:
  std::vector<Copy> copies_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> copy_of_;  // (node, block) -> the last copy that brought it
  uint64_t copies_used_ = 0, blocks_used_ = 0;
};

}  // namespace mc::sim

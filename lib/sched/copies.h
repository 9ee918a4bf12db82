// Copies of hot prefixes that are under way (sched/replicate.h decides which are worth making). A copy is ordered when
// a request shows that its prefix draws more load than its holders should carry. At most `copying_max` copies run at a
// time, one for each prefix, paid from the budget. A late copy is given up. After a failure no copy is ordered for a
// while.
//
// The class reads no clock and no messages. Nodes are named by the slots of sched/board.h.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "sched/board.h"
#include "sched/fair.h"
#include "sched/replicate.h"

namespace mc::sched {

class CopyOrders {
 public:
  static constexpr Duration kTimeout = 20s, kPauseAfterFailure = 1s;

  explicit CopyOrders(const ReplicateOptions& options = {}) : popularity_(options) {}

  struct Order {
    uint64_t number = 0;
    uint32_t source = 0, target = 0;  // slots
    uint32_t first_block = 0, end_block = 0;
    BlockHash last;  // name of the last block
    uint64_t bytes = 0;
    TimePoint until{};
  };
  /// Counts a request with these reusable blocks that was placed on `chosen`, and orders a copy when one is worth
  /// making. The order counts as under way at once: the board books a transfer that leaves its source.
  std::optional<Order> consider(std::span<const BlockHash> hashes, const Snapshot& snapshot, const Candidate& chosen,
                                Board& board, TimePoint now);
  /// The order that consider() would give for a request that is not placed.
  struct Plan {
    Popularity::Demand demand;
    std::optional<Copy> copy;
  };
  Plan plan(std::span<const BlockHash> hashes, const Snapshot& snapshot, const Board& board, int chosen,
            TimePoint now) const;
  /// Ends an order: `blocks` were copied, or the copy failed. False when the order is not under way.
  bool end(uint64_t number, bool copied, uint32_t blocks, Board& board, TimePoint now);
  void end_late(Board& board, TimePoint now);
  /// Fails the orders from and to the node.
  void end_of(uint32_t slot, Board& board, TimePoint now);

  const Order* find(uint64_t number) const;
  size_t size() const { return orders_.size(); }
  TimePoint next_wakeup() const;
  double budget_bytes(TimePoint now) const { return popularity_.budget_bytes(seconds_of(now)); }
  /// Slots of the nodes that copies leave from.
  std::vector<int> sources() const;

  struct Stats {
    uint64_t copies = 0, blocks = 0, failed = 0;
  };
  const Stats& stats() const { return stats_; }

 private:
  std::vector<uint32_t> coming(std::span<const BlockHash> hashes, uint32_t blocks, const Board& board) const;

  Popularity popularity_;
  std::map<uint64_t, Order> orders_;
  uint64_t number_ = 0;
  TimePoint again_{};  // no copy is ordered before this time
  Stats stats_;
};

}  // namespace mc::sched

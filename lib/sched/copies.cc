#include "sched/copies.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::sched {
// Indexes in Snapshot::prefill of the nodes that a copy of at least the first `blocks` blocks is on its way to.
std::vector<uint32_t> CopyOrders::coming(std::span<const BlockHash> hashes, uint32_t blocks, const Board& board) const {
  std::vector<uint32_t> out;
  if (blocks == 0 || blocks > hashes.size()) return out;
  const auto rest = hashes.subspan(blocks - 1);
  for (const auto& [number, order] : orders_) {
    if (std::find(rest.begin(), rest.end(), order.last) == rest.end()) continue;
    const int at = board.prefill_at(static_cast<int>(order.target));
    if (at >= 0) out.push_back(static_cast<uint32_t>(at));
  }
  return out;
}

CopyOrders::Plan CopyOrders::plan(std::span<const BlockHash> hashes, const Snapshot& snapshot, const Board& board,
                                  int chosen, TimePoint now) const {
  Plan out;
  out.demand = popularity_.demand(hashes.first(std::min(hashes.size(), kCopyBlocksMax)), seconds_of(now));
  if (out.demand.replicas <= 1) return out;
  const auto on_their_way = coming(hashes, out.demand.blocks, board);
  out.copy = plan_copy(snapshot, out.demand, popularity_.options().replicas_max, chosen, on_their_way);
  return out;
}

std::optional<CopyOrders::Order> CopyOrders::consider(std::span<const BlockHash> hashes, const Snapshot& snapshot,
                                                      const Candidate& chosen, Board& board, TimePoint now) {
  const ReplicateOptions& options = popularity_.options();
  if (options.replicas_max == 0) return std::nullopt;
  popularity_.count(hashes, load_beside_prefix_s(snapshot, chosen), seconds_of(now));
  if (orders_.size() >= options.copying_max || now < again_) return std::nullopt;
  const auto copy = plan(hashes, snapshot, board, static_cast<int>(chosen.node), now).copy;
  if (!copy) return std::nullopt;
  MC_ASSERT(copy->first_block < copy->end_block && copy->end_block <= hashes.size());
  Order order;
  order.last = hashes[copy->end_block - 1];
  for (const auto& [number, other] : orders_)
    if (other.last == order.last) return std::nullopt;  // one copy of a prefix at a time; the next request checks again
  order.bytes = (copy->end_block - copy->first_block) * snapshot.block_bytes;
  if (!popularity_.pay(static_cast<double>(order.bytes), seconds_of(now))) return std::nullopt;
  order.number = ++number_;
  order.source = board.holder_slot(copy->source), order.target = board.prefill_slot(copy->target);
  order.first_block = copy->first_block, order.end_block = copy->end_block;
  order.until = now + kTimeout;
  MC_ASSERT(order.source != order.target);
  board.begin_transfer(static_cast<int>(order.source));
  orders_.emplace(order.number, order);
  MC_ASSERT_LE(orders_.size(), options.copying_max);
  return order;
}

bool CopyOrders::end(uint64_t number, bool copied, uint32_t blocks, Board& board, TimePoint now) {
  const auto at = orders_.find(number);
  if (at == orders_.end()) return false;
  board.end_transfer(static_cast<int>(at->second.source));
  if (copied) {
    ++stats_.copies;
    stats_.blocks += blocks;
  } else {
    ++stats_.failed;
    popularity_.refund(static_cast<double>(at->second.bytes));
    again_ = now + kPauseAfterFailure;
  }
  orders_.erase(at);
  return true;
}

void CopyOrders::end_late(Board& board, TimePoint now) {
  std::vector<uint64_t> late;
  for (const auto& [number, order] : orders_)
    if (now >= order.until) late.push_back(number);
  for (const uint64_t number : late) end(number, false, 0, board, now);
}

void CopyOrders::end_of(uint32_t slot, Board& board, TimePoint now) {
  std::vector<uint64_t> gone;
  for (const auto& [number, order] : orders_)
    if (order.source == slot || order.target == slot) gone.push_back(number);
  for (const uint64_t number : gone) end(number, false, 0, board, now);
}

const CopyOrders::Order* CopyOrders::find(uint64_t number) const {
  const auto at = orders_.find(number);
  return at == orders_.end() ? nullptr : &at->second;
}

TimePoint CopyOrders::next_wakeup() const {
  TimePoint at = kNever;
  for (const auto& [number, order] : orders_) at = std::min(at, order.until);
  return at;
}

std::vector<int> CopyOrders::sources() const {
  std::vector<int> out;
  for (const auto& [number, order] : orders_) out.push_back(static_cast<int>(order.source));
  return out;
}

}  // namespace mc::sched

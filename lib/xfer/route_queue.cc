#include "xfer/route_queue.h"

#include <utility>

#include "base/assert.h"

namespace mc::xfer {

/// Upper bound of a slice for a lane that wants `wanted` bytes.
uint64_t RouteQueue::most_bytes(uint64_t wanted) const {
  MC_ASSERT_LE(sizes_.least, sizes_.most);
  return std::clamp(wanted & ~uint64_t{4095}, sizes_.least, sizes_.most);
}

/// Size of the next slice of a request.
uint64_t RouteQueue::cut_bytes(const QueuedRequest& request, const LaneOffer& offer) const {
  const uint64_t total = request.asked().local.size();
  const uint64_t bytes = std::clamp<uint64_t>(total / (8 * offer.lane_count), sizes_.least, most_bytes(offer.wanted));
  return std::min((bytes + 4095) & ~uint64_t{4095}, total - request.state().cut);
}

bool RouteQueue::next_cut_tells(const QueuedRequest& request, const LaneOffer& offer) const {
  const Request& asked = request.asked();
  return asked.immediate && request.state().cut + cut_bytes(request, offer) == asked.local.size();
}

/// True when the request is wholly cut, or when only its last slice is left, which carries the immediate and waits
/// until the others are done. The request is queued again when they are.
bool RouteQueue::nothing_to_cut(const QueuedRequest& request, const LaneOffer& offer) const {
  const RequestState& state = request.state();
  if (state.finished || state.cut == request.asked().local.size()) return true;
  return state.slices > 0 && next_cut_tells(request, offer);
}

/// Brings requests that can be posted to the front. Requests whose next slice carries an immediate move to a queue of
/// their own.
void RouteQueue::sort_out(const LaneOffer& offer) {
  for (PerClass& each : classes_) {
    for (auto& queue = each.requests; !queue.empty(); queue.pop_front()) {
      if (nothing_to_cut(queue.front(), offer)) continue;
      if (!next_cut_tells(queue.front(), offer)) break;
      each.telling.push_back(queue.front());
    }
    while (!each.telling.empty() && nothing_to_cut(each.telling.front(), offer)) each.telling.pop_front();
  }
}

void RouteQueue::put_back(uint32_t slice, bool first) {
  const SliceRecord& record = (*slices_)[slice];
  MC_ASSERT(record.state == SliceRecord::State::waiting);
  PerClass& each = of(record.transfer_class());
  auto& queue = record.tells() ? each.retelling : each.retries;
  if (first)
    queue.push_front(slice);
  else
    queue.push_back(slice);
}

std::optional<uint32_t> RouteQueue::next(const LaneOffer& offer) {
  sort_out(offer);
  const bool tells = offer.tells > 0;
  const bool urgent = of(TransferClass::urgent).ready(tells), bulk = of(TransferClass::bulk).ready(tells);
  if (!urgent && !bulk) return std::nullopt;
  PerClass& each = of(order_.next(urgent, bulk, offer.now));
  const bool tell = each.told = each.tells_next(tells);
  auto& retries = tell ? each.retelling : each.retries;
  if (!retries.empty()) {
    const uint32_t index = retries.front();
    retries.pop_front();
    MC_ASSERT((*slices_)[index].state == SliceRecord::State::waiting);
    const uint64_t most = most_bytes(offer.wanted);
    if (!tell && (*slices_)[index].bytes > most)
      retries.push_front(slices_->split(index, most));  // the slice was cut for a faster lane
    return index;
  }
  auto& queue = tell ? each.telling : each.requests;
  MC_ASSERT(!queue.empty());
  const QueuedRequest request = queue.front();
  const uint64_t bytes = cut_bytes(request, offer);
  MC_ASSERT_LT(uint64_t{0}, bytes);
  const uint32_t index =
      slices_->make(*request.batch, request.request, request.state().cut, static_cast<uint32_t>(bytes));
  request.state().cut += bytes;
  MC_ASSERT_LE(request.state().cut, request.asked().local.size());
  if (nothing_to_cut(request, offer)) queue.pop_front();
  return index;
}

RouteQueue::Turn RouteQueue::turn() const {
  Turn turn{.bulk_since = order_.bulk_since()};
  for (size_t i = 0; i < classes_.size(); ++i) turn.told[i] = classes_[i].told;
  return turn;
}

void RouteQueue::taken(const Turn& turn, std::span<const uint32_t> given, size_t taken, TimePoint now) {
  MC_ASSERT_LE(taken, given.size());
  for (size_t i = 0; i < classes_.size(); ++i) classes_[i].told = turn.told[i];
  bool bulk_moved = false;
  for (const uint32_t slice : given.first(taken)) {
    const SliceRecord& record = (*slices_)[slice];
    bulk_moved |= record.transfer_class() == TransferClass::bulk;
    of(record.transfer_class()).told = record.tells();
  }
  // An offer that was not taken is no attempt.
  for (size_t i = given.size(); i > taken; --i) put_back(given[i - 1], true);
  if (!bulk_moved) order_.restore(turn.bulk_since == kNever ? now : turn.bulk_since);
}

void RouteQueue::erase(uint32_t slice) {
  const SliceRecord& record = (*slices_)[slice];
  PerClass& each = of(record.transfer_class());
  std::erase(record.tells() ? each.retelling : each.retries, slice);
}

void RouteQueue::drop(const OpenBatch& batch) {
  const auto mine = [&](const QueuedRequest& request) { return request.batch == &batch; };
  for (PerClass& each : classes_) {
    std::erase_if(each.requests, mine);
    std::erase_if(each.telling, mine);
  }
}

RouteQueue::Content RouteQueue::take_all() {
  Content all;
  for (PerClass& each : std::exchange(classes_, {})) {
    for (const auto* queue : {&each.requests, &each.telling})
      all.requests.insert(all.requests.end(), queue->begin(), queue->end());
    for (const auto* queue : {&each.retries, &each.retelling})
      all.slices.insert(all.slices.end(), queue->begin(), queue->end());
  }
  MC_ASSERT(idle());
  return all;
}

}  // namespace mc::xfer

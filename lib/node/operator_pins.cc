#include "node/operator_pins.h"

#include <algorithm>
#include <string>

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"

namespace mc::node {

void OperatorPins::add(const BlockHash& last, Pin pin) {
  for (const kv::PageIndex page : pin.pages) {
    std::vector<BlockHash>& on = pages_[{pin.shelf->number, page}];
    if (on.empty()) bytes_ += pin.shelf->layout.page_bytes();
    on.push_back(last);
  }
  const bool fresh = pins_.emplace(last, std::move(pin)).second;
  MC_ASSERT(fresh);
}

OperatorPins::Pin OperatorPins::take(std::map<BlockHash, Pin>::iterator at) {
  MC_ASSERT(at != pins_.end());
  for (const kv::PageIndex page : at->second.pages) {
    const auto on = pages_.find({at->second.shelf->number, page});
    MC_ASSERT(on != pages_.end());
    std::erase(on->second, at->first);
    if (!on->second.empty()) continue;
    pages_.erase(on);
    MC_ASSERT_LE(at->second.shelf->layout.page_bytes(), bytes_);
    bytes_ -= at->second.shelf->layout.page_bytes();
  }
  Pin pin = std::move(at->second);
  pins_.erase(at);
  return pin;
}

Result<void> OperatorPins::pin(const BlockHash& last, Shelf& shelf, const std::vector<kv::PageIndex>& pages,
                               TimePoint until) {
  MC_ASSERT(!pages.empty());
  uint64_t more = 0;
  for (const kv::PageIndex page : pages) more += is_pinned(shelf, page) ? 0 : shelf.layout.page_bytes();
  const auto earlier = pins_.find(last);
  if (bytes_ + more > bytes_max_)
    return user_error(err::kNotEnoughMemory, std::to_string(pages.size()) + " blocks of " +
                                                 human_bytes(pages.size() * shelf.layout.page_bytes()) +
                                                 " would be pinned; " + human_bytes(bytes_) +
                                                 " are pinned already, and " + human_bytes(bytes_max_) +
                                                 " may be, half of the memory for blocks");
  if (pins_.size() >= kPinsMax && earlier == pins_.end())
    return user_error(err::kNotEnoughMemory,
                      "the node has " + std::to_string(pins_.size()) + " pins, the limit of a node");
  MC_TRY(lease, shelf.leases.grant("pin", pages, until));
  if (earlier != pins_.end()) {
    const Pin old = take(earlier);
    (void)old.shelf->leases.release(old.lease);
  }
  add(last, {&shelf, lease, until, pages});
  MC_ASSERT_LE(bytes_, bytes_max_);
  return {};
}

std::optional<uint64_t> OperatorPins::unpin(const BlockHash& last) {
  const auto at = pins_.find(last);
  if (at == pins_.end()) return std::nullopt;
  const Pin pin = take(at);
  (void)pin.shelf->leases.release(pin.lease);
  return pin.pages.size();
}

void OperatorPins::expired(const Shelf& shelf, kv::LeaseId lease) {
  const auto at = std::find_if(pins_.begin(), pins_.end(), [&](const auto& pin) {
    return pin.second.shelf == &shelf && pin.second.lease == lease;
  });
  if (at != pins_.end()) (void)take(at);
}

std::optional<TimePoint> OperatorPins::until(const Shelf& shelf, kv::PageIndex page) const {
  const auto on = pages_.find({shelf.number, page});
  if (on == pages_.end()) return std::nullopt;
  TimePoint until{};
  for (const BlockHash& last : on->second) until = std::max(until, pins_.at(last).until);
  return until;
}

size_t OperatorPins::count(const Shelf& shelf) const {
  return static_cast<size_t>(
      std::count_if(pins_.begin(), pins_.end(), [&](const auto& pin) { return pin.second.shelf == &shelf; }));
}

uint32_t OperatorPins::leases(const Shelf& shelf, kv::PageIndex page) const {
  const auto on = pages_.find({shelf.number, page});
  return on == pages_.end() ? 0 : static_cast<uint32_t>(on->second.size());
}

}  // namespace mc::node

#include "model/device_pages.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::model {

int32_t DevicePages::new_slot(const std::byte* host) {
  MC_ASSERT(host != nullptr);
  if (free_.empty()) {
    slots_.push_back({.host = host});
    return static_cast<int32_t>(slots_.size()) - 1;
  }
  const int32_t number = *free_.begin();
  free_.erase(free_.begin());
  slots_[static_cast<size_t>(number)] = {.host = host};
  return number;
}

void DevicePages::free_slot(int32_t number) {
  Slot& slot = slots_[static_cast<size_t>(number)];
  MC_ASSERT(slot.host != nullptr && slot.keepers == 0);
  slot = {};
  free_.insert(number);
}

Result<void> DevicePages::reserve(uint32_t pages) {
  MC_ASSERT(slots_.empty() && room_ == 0);
  MC_TRY(pool, gpu::DeviceBuffer::make(device_, pages * page_bytes_, "KV pages"));
  pool_ = std::move(pool);
  room_ = pages;
  return {};
}

void DevicePages::begin() {
  for (const int32_t number : taken_) free_slot(number);
  taken_.clear();
  read_.clear();
  used_.clear();
  missing_.clear();
}

int32_t DevicePages::take(const std::byte* host, PageUse use) {
  if (use == PageUse::read) {
    if (const auto known = read_.find(host); known != read_.end()) return known->second;
    if (const auto shared = kept_.find(host); shared != kept_.end()) {
      used_.push_back({shared->second, use});
      return shared->second;
    }
  }
  const int32_t number = new_slot(host);
  if (use == PageUse::read) read_.emplace(host, number);
  taken_.push_back(number);
  used_.push_back({number, use});
  return number;
}

int32_t DevicePages::keep(uint64_t sequence, size_t index, const std::byte* host, PageUse use) {
  std::vector<int32_t>& pages = sequences_[sequence];
  MC_ASSERT_LE(index, pages.size());
  if (index == pages.size()) {
    const auto shared = kept_.find(host);
    const int32_t number = shared != kept_.end() ? shared->second : new_slot(host);
    MC_ASSERT(shared == kept_.end() || use == PageUse::read);  // only one sequence writes a page
    kept_.emplace(host, number);
    ++slots_[static_cast<size_t>(number)].keepers;
    pages.push_back(number);
  }
  const int32_t number = pages[index];
  MC_ASSERT(slots_[static_cast<size_t>(number)].host == host);
  used_.push_back({number, use});
  return number;
}

Result<void> DevicePages::grow() {
  for (; !slots_.empty() && slots_.back().host == nullptr; slots_.pop_back())
    free_.erase(static_cast<int32_t>(slots_.size()) - 1);
  has_moved_ = slots_.size() > room_;
  if (!has_moved_) return {};
  const size_t before = room_;
  pool_ = gpu::DeviceBuffer();  // first the old one goes: the two need not fit together
  room_ = 0;
  for (Slot& slot : slots_) slot.is_filled = false;
  // Half as much again as before spares the copies of the next growth, where there is room for it.
  for (const size_t pages : {std::max(slots_.size(), before + before / 2), slots_.size()}) {
    auto pool = gpu::DeviceBuffer::make(device_, pages * page_bytes_, "KV pages of the pass");
    if (!pool && pages > slots_.size() && pool.error().code == Code::no_space) continue;
    if (!pool) return std::move(pool).error();
    pool_ = std::move(*pool);
    room_ = pages;
    break;
  }
  return {};
}

Result<void> DevicePages::make_room() {
  MC_CHECK(grow());
  std::set<int32_t> seen;
  for (const Used& used : used_) {
    const Slot& slot = slots_[static_cast<size_t>(used.number)];
    if (slot.is_filled || used.use == PageUse::fresh || !seen.insert(used.number).second) continue;
    missing_.push_back({slot.host, used.number});
  }
  return {};
}

void DevicePages::note_filled() {
  for (const Used& used : used_) slots_[static_cast<size_t>(used.number)].is_filled = true;
}

void DevicePages::forget(uint64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  for (const int32_t number : found->second) {
    Slot& slot = slots_[static_cast<size_t>(number)];
    MC_ASSERT(slot.keepers > 0);
    if (--slot.keepers > 0) continue;
    MC_ASSERT_EQ(kept_.erase(slot.host), 1u);
    free_slot(number);
  }
  sequences_.erase(found);
}

size_t DevicePages::kept() const {
  return kept_.size();
}

}  // namespace mc::model

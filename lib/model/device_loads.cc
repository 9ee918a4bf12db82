#include "model/device_loads.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/copy_crc.h"
#include "base/hash.h"

namespace mc::model {

Result<void> DeviceLoads::prepare(uint64_t pool) {
  pool_ = pool;
  MC_TRY(stream, gpu::Stream::make(device_));
  MC_TRY(computed, gpu::Event::make(device_));
  stream_ = std::move(stream), computed_ = std::move(computed);
  const size_t bytes = std::max(kPieceBytes, layout_.layer_bytes());
  for (Slot& slot : slots_) {
    MC_TRY(done, gpu::Event::make(device_));
    MC_TRY(memory, gpu::PinnedBuffer::make(device_, bytes, "copies of KV pages"));
    slot.done = std::move(done), slot.memory = std::move(memory);
  }
  return {};
}

void DeviceLoads::add(PageLoad load) {
  MC_ASSERT(!load.from.empty() && load.from.size() == load.to.size());
  MC_ASSERT_EQ(load.crcs.size(), load.from.size() * layout_.layers);
  for (const int32_t page : load.to) failed_.erase(page);
  loads_.push_back({.load = std::move(load)});
}

Result<void> DeviceLoads::error_of(std::span<const int32_t> pages) const {
  if (failed_.empty()) return {};
  for (const int32_t page : pages)
    if (const auto found = failed_.find(page); found != failed_.end()) return found->second;
  return {};
}

void DeviceLoads::mark_used(std::span<const int32_t> pages) {
  for (Loading& at : loads_)
    at.is_used =
        std::ranges::any_of(at.load.to, [&](int32_t page) { return std::ranges::find(pages, page) != pages.end(); });
}

Result<void> DeviceLoads::begin_pass(std::span<const int32_t> pages) {
  mark_used(pages);
  return error_of(pages);
}

/// Copies as many extents of one layer as the slot holds. False: the bytes of one do not match its checksum.
Result<bool> DeviceLoads::copy_extents(Loading& at, Slot& slot) {
  const size_t each = layout_.layer_bytes(), offset = layout_.layer_offset(at.layer);
  MC_TRY(room, slot.memory.view());
  bool is_sound = true;
  for (size_t filled = 0; at.block < at.load.from.size() && filled + each <= room.size(); filled += each, ++at.block) {
    const uint32_t crc = copy_crc32c(&room[filled], at.load.from[at.block] + offset, each);
    is_sound &= crc == at.load.crcs[at.block * layout_.layers + at.layer];
    const uint64_t page = pool_ + static_cast<uint64_t>(at.load.to[at.block]) * layout_.page_bytes();
    MC_CHECK(stream_.copy_in(page + offset, slot.memory, filled, each));
  }
  if (at.block == at.load.from.size()) at.block = 0, ++at.layer;
  return is_sound;
}

Result<void> DeviceLoads::queue_piece(Loading& at) {
  if (at.layer == 0 && at.block == 0) {  // what the device computes on older blocks of these pages comes first
    MC_CHECK(device_.record(computed_));
    MC_CHECK(stream_.wait(computed_));
  }
  turn_ = (turn_ + 1) % kSlots;
  Slot& slot = slots_[turn_];
  if (slot.is_used) MC_CHECK(slot.done.finish());
  slot.is_used = true;
  const auto is_sound = copy_extents(at, slot);
  MC_CHECK(stream_.record(slot.done));  // also behind the copies that came before a failure
  if (!is_sound) return is_sound.error();
  if (!*is_sound) return Error{Code::corrupt, "cached blocks changed in memory"};
  return {};
}

/// Checks all extents of the load, so that one failure finds every block that has changed.
void DeviceLoads::find_rotten(Loading& at) {
  std::vector<uint32_t> rotten;
  for (uint32_t i = 0; i < at.load.from.size(); ++i)
    for (uint32_t layer = 0; layer < layout_.layers; ++layer)
      if (crc32c({at.load.from[i] + layout_.layer_offset(layer), layout_.layer_bytes()}) !=
          at.load.crcs[size_t{i} * layout_.layers + layer]) {
        rotten.push_back(i);
        break;
      }
  at.error = Error{Code::corrupt, std::to_string(rotten.size()) + " cached blocks changed in memory"};
  ended_.push_back({at.load.load, at.error, std::move(rotten), at.busy});
}

void DeviceLoads::copy_piece(Loading& at) {
  const TimePoint began = SystemClock::instance().now();
  const auto queued = queue_piece(at);
  at.busy += SystemClock::instance().now() - began;
  if (queued) return;
  if (queued.error().code == Code::corrupt && !device_.failure()) {
    find_rotten(at);
  } else {
    at.error = queued.error();
    ended_.push_back({at.load.load, at.error, {}, at.busy});
  }
  for (const int32_t page : at.load.to) failed_.insert_or_assign(page, *at.error);
}

bool DeviceLoads::advance() {
  const auto next = std::ranges::find_if(loads_, [&](const Loading& at) { return !at.is_queued(layout_.layers); });
  if (next == loads_.end()) return false;
  copy_piece(*next);
  return true;
}

Result<void> DeviceLoads::advance(uint32_t layer) {
  bool is_awaited = false;
  for (Loading& at : loads_) {
    if (!at.is_used) continue;
    while (!at.error && at.layer <= layer && at.layer < layout_.layers) copy_piece(at), is_awaited = true;
    if (at.error) return *at.error;
  }
  if (!is_awaited) (void)advance();
  return {};
}

Result<void> DeviceLoads::await(uint32_t layer) {
  bool is_awaited = false;
  for (Loading& at : loads_) {
    if (!at.is_used) continue;
    while (!at.error && at.layer <= layer) copy_piece(at);
    if (at.error) return *at.error;
    is_awaited = true;
  }
  // Copies are queued in order, so the last piece comes after all that the layer needs.
  return is_awaited ? device_.wait(slots_[turn_].done) : Result<void>{};
}

Result<void> DeviceLoads::finish(std::span<const int32_t> pages) {
  mark_used(pages);
  for (Loading& at : loads_)
    while (at.is_used && !at.is_queued(layout_.layers)) copy_piece(at);
  settle();
  return error_of(pages);
}

void DeviceLoads::settle() {
  for (Slot& slot : slots_) {
    if (!slot.is_used) continue;
    const auto finished = slot.done.finish();
    slot.is_used = false;
    if (finished) continue;
    for (Loading& at : loads_)  // the device has failed
      if (!at.error) at.error = finished.error(), ended_.push_back({at.load.load, at.error, {}, at.busy});
  }
  std::erase_if(loads_, [&](const Loading& at) {
    if (at.error) return true;
    if (at.layer < layout_.layers) return false;
    ended_.push_back({at.load.load, std::nullopt, {}, at.busy});
    return true;
  });
}

std::optional<LoadEnd> DeviceLoads::take_ended() {
  if (ended_.empty()) return std::nullopt;
  LoadEnd end = std::move(ended_.front());
  ended_.pop_front();
  return end;
}

}  // namespace mc::model

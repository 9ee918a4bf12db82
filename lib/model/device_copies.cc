#include "model/device_copies.h"

#include <cstring>

#include "base/assert.h"

namespace mc::model {

Result<void> DeviceCopies::prepare() {
  for (Way* way : {&in_, &out_}) {
    MC_TRY(stream, gpu::Stream::make(device_));
    MC_TRY(computed, gpu::Event::make(device_));
    way->stream = std::move(stream), way->computed = std::move(computed);
    for (Slot& slot : way->slots) {
      MC_TRY(done, gpu::Event::make(device_));
      slot.done = std::move(done);
    }
  }
  return {};
}

Result<void> DeviceCopies::begin(bool keeps_stores) {
  for (Way* way : {&in_, &out_})
    for (Slot& slot : way->slots) {
      if (keeps_stores && way == &out_) continue;
      if (slot.is_used) MC_CHECK(slot.done.finish());
      slot.is_used = false;
      slot.pieces.clear();
    }
  return follow_kernels(in_);
}

Result<void> DeviceCopies::follow_kernels(Way& way) {
  MC_CHECK(device_.record(way.computed));
  return way.stream.wait(way.computed);
}

Result<void> DeviceCopies::reserve(Slot& slot, size_t bytes) {
  if (bytes <= slot.memory.bytes()) return {};
  slot.memory = gpu::PinnedBuffer();  // first the old one goes: the host need not have both
  MC_TRY(memory, gpu::PinnedBuffer::make(device_, bytes, "copies of KV pages"));
  slot.memory = std::move(memory);
  return {};
}

Result<void> DeviceCopies::load(uint32_t layer, std::span<const Load> pieces) {
  Slot& slot = in_.of(layer);
  if (slot.is_used) MC_CHECK(slot.done.finish());
  slot.is_used = !pieces.empty();
  if (pieces.empty()) return {};
  size_t bytes = 0;
  for (const Load& piece : pieces) bytes += piece.bytes;
  MC_CHECK(reserve(slot, bytes));
  MC_TRY(room, slot.memory.view());
  size_t at = 0;
  for (const Load& piece : pieces) {
    std::memcpy(&room[at], piece.from, piece.bytes);
    MC_CHECK(in_.stream.copy_in(piece.to, slot.memory, at, piece.bytes));
    at += piece.bytes;
  }
  return in_.stream.record(slot.done);
}

Result<void> DeviceCopies::await_load(uint32_t layer) {
  const Slot& slot = in_.of(layer);
  return slot.is_used ? device_.wait(slot.done) : Result<void>{};
}

Result<void> DeviceCopies::store(uint32_t layer, std::vector<Store> pieces) {
  Slot& slot = out_.of(layer);
  MC_ASSERT(!slot.is_used);
  if (pieces.empty()) return {};
  size_t bytes = 0;
  for (const Store& piece : pieces) bytes += piece.bytes;
  MC_CHECK(reserve(slot, bytes));
  MC_CHECK(follow_kernels(out_));
  size_t at = 0;
  for (const Store& piece : pieces) {
    MC_CHECK(out_.stream.copy_out(slot.memory, at, piece.from, piece.bytes));
    at += piece.bytes;
  }
  MC_CHECK(out_.stream.record(slot.done));
  slot.is_used = true;
  slot.pieces = std::move(pieces);
  return {};
}

Result<void> DeviceCopies::finish_store(uint32_t layer) {
  Slot& slot = out_.of(layer);
  if (!slot.is_used) return {};
  MC_CHECK(slot.done.finish());
  MC_TRY(room, slot.memory.view());
  size_t at = 0;
  for (const Store& piece : slot.pieces) {
    std::memcpy(piece.to, &room[at], piece.bytes);
    at += piece.bytes;
  }
  slot.is_used = false;
  slot.pieces.clear();
  return {};
}

}  // namespace mc::model

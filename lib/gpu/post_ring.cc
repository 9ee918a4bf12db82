#include "gpu/post_ring.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace mc::gpu {

Result<void> PostRing::post(uint64_t to, std::span<const std::byte> from) {
  if (from.empty()) return {};
  if (chunks_.empty() || from.size() > chunks_[current_].memory.bytes() - chunks_[current_].used)
    MC_CHECK(next_chunk(from.size()));
  Chunk& chunk = chunks_[current_];
  MC_TRY(room, chunk.memory.view(chunk.used, from.size()));
  std::memcpy(room.data(), from.data(), from.size());
  MC_CHECK(device_.copy_in(to, chunk.memory, chunk.used, from.size()));
  chunk.used += from.size();
  return {};
}

/// Moves on to a chunk with room for so many bytes.
Result<void> PostRing::next_chunk(size_t bytes) {
  if (!chunks_.empty()) {
    MC_CHECK(device_.record(chunks_[current_].done));
    current_ = (current_ + 1) % kChunks;
  }
  if (current_ == chunks_.size()) {
    MC_TRY(done, Event::make(device_));
    chunks_.push_back({.memory = {}, .done = std::move(done)});
  }
  Chunk& chunk = chunks_[current_];
  MC_CHECK(chunk.done.finish());
  chunk.used = 0;
  if (chunk.memory.bytes() >= bytes) return {};
  chunk.memory = PinnedBuffer();  // first the old one goes: the host need not have both
  MC_TRY(memory, PinnedBuffer::make(device_, std::max(bytes, kChunkBytes), "copies to the GPU"));
  chunk.memory = std::move(memory);
  return {};
}

}  // namespace mc::gpu

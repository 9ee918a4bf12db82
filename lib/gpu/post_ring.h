// Copies to a device for which the host does not wait: the bytes are put into page-locked memory, where the caller's
// own may change at once. The memory is a ring of chunks. A chunk is used again when the copies from it have ended. The
// host waits for that only when it is ahead of the device by three chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/gpu.h"

namespace mc::gpu {

class PostRing {
 public:
  /// The device must outlive the ring. Nothing is allocated before the first post().
  explicit PostRing(Device& device) : device_(device) {}
  /// Queues the copy on the device's own stream.
  Result<void> post(uint64_t to, std::span<const std::byte> from);

 private:
  static constexpr size_t kChunkBytes = size_t{256} << 10, kChunks = 4;
  struct Chunk {
    PinnedBuffer memory;
    Event done;       // recorded after the last copy from the chunk
    size_t used = 0;  // bytes
  };
  Result<void> next_chunk(size_t bytes);

  Device& device_;
  std::vector<Chunk> chunks_;
  size_t current_ = 0;
};

}  // namespace mc::gpu

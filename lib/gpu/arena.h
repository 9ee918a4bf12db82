// One allocation that is cut into named parts, and the record of where bytes live. A forward pass takes its weights and
// its scratch memory from arenas, so that a device's memory is asked for once and a shortage names the part.
//
//   MC_TRY(arena, Arena::open(device, Place::device, bytes, "weights"));
//   MC_TRY(part, arena.take(size, "layer 3 qkv"));
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/gpu.h"

namespace mc::gpu {

/// Where bytes live.
enum class Place : uint8_t {
  device,  // memory of the GPU
  pinned,  // page-locked memory of the host, which copies reach
};
std::string_view to_string(Place place);

/// A part of an arena. Its bytes are the arena's.
struct Part {
  std::string name;
  Place place = Place::device;
  uint64_t address = 0;  // of the device; of the host when `place` is pinned
  size_t bytes = 0;
};

class Arena {
 public:
  static constexpr size_t kAlignment = 256;  // of every part

  /// Errors: those of DeviceBuffer and PinnedBuffer.
  static Result<Arena> open(Device& device, Place place, size_t bytes, std::string_view name);

  /// The next `bytes` bytes. MC5003 or MC7005 when they do not fit: what is needed and what is left.
  Result<Part> take(size_t bytes, std::string_view name);
  /// All parts go; the bytes stay allocated.
  void clear();

  Place place() const { return place_; }
  size_t bytes() const { return bytes_; }
  size_t used() const { return used_; }
  std::span<const Part> parts() const { return parts_; }
  /// The part that an address lies in, or null.
  const Part* find(uint64_t address) const;

 private:
  std::string name_;
  Place place_ = Place::device;
  DeviceBuffer device_;
  PinnedBuffer pinned_;
  uint64_t base_ = 0;
  size_t bytes_ = 0, used_ = 0;
  std::vector<Part> parts_;  // by address
};

}  // namespace mc::gpu

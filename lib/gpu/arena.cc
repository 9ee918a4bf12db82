#include "gpu/arena.h"

#include <algorithm>

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"

namespace mc::gpu {

std::string_view to_string(Place place) {
  return place == Place::device ? "device" : "pinned";
}

Result<Arena> Arena::open(Device& device, Place place, size_t bytes, std::string_view name) {
  MC_ASSERT(bytes > 0);
  Arena out;
  out.name_ = name;
  out.place_ = place;
  out.bytes_ = bytes;
  if (place == Place::device) {
    MC_TRY(buffer, DeviceBuffer::make(device, bytes, name));
    out.base_ = buffer.address();
    out.device_ = std::move(buffer);
  } else {
    MC_TRY(buffer, PinnedBuffer::make(device, bytes, name));
    MC_TRY(view, buffer.view());
    out.base_ = reinterpret_cast<uint64_t>(view.data());
    out.pinned_ = std::move(buffer);
  }
  return out;
}

Result<Part> Arena::take(size_t bytes, std::string_view name) {
  const size_t first = (used_ + kAlignment - 1) / kAlignment * kAlignment;
  MC_ASSERT(bytes > 0);
  if (first > bytes_ || bytes > bytes_ - first) {
    const std::string text = name_ + ": " + std::string(name) + " needs " + human_bytes(bytes) + ", left are " +
                             human_bytes(first > bytes_ ? 0 : bytes_ - first) + " of " + human_bytes(bytes_) + " (" +
                             std::string(to_string(place_)) + " memory)";
    return user_error(place_ == Place::device ? err::kDeviceMemory : err::kNotEnoughMemory, text, name_);
  }
  used_ = first + bytes;
  parts_.push_back({std::string(name), place_, base_ + first, bytes});
  return parts_.back();
}

void Arena::clear() {
  parts_.clear();
  used_ = 0;
}

const Part* Arena::find(uint64_t address) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), address,
                                      [](uint64_t at, const Part& part) { return at < part.address; });
  if (after == parts_.begin()) return nullptr;
  const Part& part = *(after - 1);
  MC_ASSERT_LE(part.address, address);
  return address - part.address < part.bytes ? &part : nullptr;
}

}  // namespace mc::gpu

// The tables that a pass copies to the device, in one piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/extent.h"
#include "gpu/kernels/layer.h"

namespace mc::model {

class DeviceInputs {
 public:
  static constexpr size_t kAlignment = 16, kTables = 8;
  static size_t bytes_most(size_t rows, size_t head_dim) {
    return rows * (2 * 4 + 3 * sizeof(gpu::RowPlace) + sizeof(gpu::PageRows) + head_dim * 4) + kTables * kAlignment;
  }
  /// `address`: where the tables will stand.
  explicit DeviceInputs(uint64_t address) : address_(address) {}
  template <class T>
  uint64_t add(const std::vector<T>& table) {
    const size_t at = round_up(bytes_.size(), kAlignment), size = table.size() * sizeof(T);
    bytes_.resize(at + size);
    if (size > 0) std::memcpy(&bytes_[at], table.data(), size);
    return address_ + at;
  }
  std::span<const std::byte> bytes() const { return bytes_; }

  uint64_t tokens = 0, cosine = 0, sine = 0;    // int32, f32
  uint64_t last = 0;                            // int32: the rows that go through the model's last layer
  uint64_t places = 0, sealed = 0, summed = 0;  // RowPlace
  uint64_t coded = 0;                           // PageRows

 private:
  uint64_t address_;
  std::vector<std::byte> bytes_;
};

}  // namespace mc::model

// The last values of a series, for a reader that looks now and then. Nothing is allocated.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace mc {

class Recent {
 public:
  static constexpr uint64_t kKept = 256;

  void add(double value) { values_[count_++ % kKept] = value; }
  /// Values that were ever added.
  uint64_t count() const { return count_; }
  /// Calls `take` with each value after the first `seen`, oldest first. Only the last kKept values are left.
  template <class Take>
  void after(uint64_t seen, Take take) const {
    for (uint64_t i = std::max(seen, count_ - std::min(count_, kKept)); i < count_; ++i) take(values_[i % kKept]);
  }

 private:
  std::array<double, kKept> values_{};
  uint64_t count_ = 0;
};

}  // namespace mc

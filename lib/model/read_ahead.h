// Reading of mapped files ahead of their use, on a thread of its own: the first pass then computes with the pages that
// are there already while the disk reads others.
#pragma once

#include <cstddef>
#include <span>
#include <thread>

namespace mc::model {

class ReadAhead {
 public:
  ReadAhead() = default;  // reads nothing
  /// Has the kernel read the ranges, in this order. They must stay mapped until the destructor returns, which does not
  /// wait for the rest. Best effort.
  explicit ReadAhead(std::span<const std::span<const std::byte>> ranges);

 private:
  std::jthread thread_;
};

}  // namespace mc::model

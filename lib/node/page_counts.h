// For each page of a pool, how many things use it now, such as reads that write it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/assert.h"

namespace mc::node {

class PageCounts {
 public:
  explicit PageCounts(uint32_t pages) : uses_(pages) {}

  /// Every page must be one of the pool's.
  void add(std::span<const uint32_t> pages) {
    for (const uint32_t page : pages) ++uses_.at(page);
  }
  /// The pages of an earlier add().
  void remove(std::span<const uint32_t> pages) {
    for (const uint32_t page : pages) {
      MC_ASSERT_LT(0u, uses_.at(page));
      --uses_[page];
    }
  }
  bool is_used(uint32_t page) const { return uses_.at(page) > 0; }
  bool any_used(std::span<const uint32_t> pages) const {
    return std::any_of(pages.begin(), pages.end(), [&](uint32_t page) { return is_used(page); });
  }
  bool operator==(const PageCounts&) const = default;

 private:
  std::vector<uint32_t> uses_;  // [page]
};

}  // namespace mc::node

// Zeroed pages that contain nothing else. After a fork, the child cannot access registered pages (ibv_fork_init), so it
// would lack any other data in them.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/assert.h"

namespace mc::xfer {

struct FreePages {
  void operator()(std::byte* pages) const { std::free(pages); }
};
using OwnPages = std::unique_ptr<std::byte[], FreePages>;

inline OwnPages own_pages(size_t bytes) {
  constexpr size_t kPage = 4096;
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  auto* pages = static_cast<std::byte*>(std::aligned_alloc(kPage, whole));
  MC_ASSERT(pages != nullptr);
  std::memset(pages, 0, whole);
  return OwnPages(pages);
}

}  // namespace mc::xfer

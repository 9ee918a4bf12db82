// Allocations that fail on purpose. It replaces the program's operator new, so one source file of a test program
// includes it.
#pragma once

#include <new>

#include "replaced_memory.h"
#include "test.h"

namespace mc::test {

/// Allocations of this thread that still succeed; negative = all.
inline thread_local long t_allocations_left = -1;

inline bool may_allocate() {
  if (t_allocations_left < 0) return true;
  if (t_allocations_left == 0) return false;
  --t_allocations_left;
  return true;
}

/// Runs `work` with a failure at its first allocation, at its second, and so on until it has enough.
/// Returns how many runs failed.
template <class Work>
long with_each_allocation_failing(Work work) {
  for (long n = 0;; ++n) {
    t_allocations_left = n;
    bool enough = false;
    try {
      work();
      enough = t_allocations_left > 0;
    } catch (const std::bad_alloc&) {
    }
    t_allocations_left = -1;
    if (enough) return n;
    REQUIRE(n < 1'000'000);
  }
}

}  // namespace mc::test

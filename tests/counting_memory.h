// Counts allocations. It replaces the program's operator new, so one source file of a test program includes it.
#pragma once

#include <atomic>

#include "replaced_memory.h"

namespace mc::test {

/// Allocations of all threads since the start.
inline std::atomic<long> g_allocations{0};

inline bool may_allocate() {
  g_allocations.fetch_add(1, std::memory_order_relaxed);  // a count alone
  return true;
}

}  // namespace mc::test

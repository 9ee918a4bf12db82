// Counts allocations. It replaces the program's operator new, so one source file of a test program includes it.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

namespace mc::test {

/// Allocations of all threads since the start.
inline std::atomic<long> g_allocations{0};

}  // namespace mc::test

[[gnu::noinline]] void* operator new(size_t bytes) {
  mc::test::g_allocations.fetch_add(1, std::memory_order_relaxed);
  void* at = std::malloc(bytes > 0 ? bytes : 1);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}
[[gnu::noinline]] void operator delete(void* at) noexcept {
  std::free(at);
}
[[gnu::noinline]] void operator delete(void* at, size_t) noexcept {
  std::free(at);
}

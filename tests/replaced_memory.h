// All forms of the program's operator new and operator delete, over malloc(). Replacing only some of them would pair a
// library's operator new with the operator delete here, which AddressSanitizer reports. A header that includes this one
// defines mc::test::may_allocate(), and one source file of a test program includes that header.
#pragma once

#include <cstdlib>
#include <new>

namespace mc::test {

/// Is called once for each allocation. False: the allocation fails.
inline bool may_allocate();

/// Null: no memory.
inline void* replaced_new(size_t bytes, size_t alignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__) noexcept {
  if (!may_allocate()) return nullptr;
  if (bytes == 0) bytes = 1;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(bytes);
  void* at = nullptr;
  return ::posix_memalign(&at, alignment, bytes) == 0 ? at : nullptr;
}

inline void* or_throw(void* at) {
  if (at == nullptr) throw std::bad_alloc();
  return at;
}

}  // namespace mc::test

// The compiler would report a malloc() that it sees through an inlined operator new without operator delete.
#define MC_REPLACED [[gnu::noinline]]

MC_REPLACED void* operator new(size_t bytes) {
  return mc::test::or_throw(mc::test::replaced_new(bytes));
}
MC_REPLACED void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return mc::test::replaced_new(bytes);
}
MC_REPLACED void* operator new(size_t bytes, std::align_val_t alignment) {
  return mc::test::or_throw(mc::test::replaced_new(bytes, static_cast<size_t>(alignment)));
}
MC_REPLACED void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return mc::test::replaced_new(bytes, static_cast<size_t>(alignment));
}
MC_REPLACED void* operator new[](size_t bytes) {
  return ::operator new(bytes);
}
MC_REPLACED void* operator new[](size_t bytes, const std::nothrow_t& nothrow) noexcept {
  return ::operator new(bytes, nothrow);
}
MC_REPLACED void* operator new[](size_t bytes, std::align_val_t alignment) {
  return ::operator new(bytes, alignment);
}
MC_REPLACED void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t& nothrow) noexcept {
  return ::operator new(bytes, alignment, nothrow);
}

MC_REPLACED void operator delete(void* at) noexcept {
  std::free(at);
}
MC_REPLACED void operator delete(void* at, size_t) noexcept {
  std::free(at);
}
MC_REPLACED void operator delete(void* at, const std::nothrow_t&) noexcept {
  std::free(at);
}
MC_REPLACED void operator delete(void* at, std::align_val_t) noexcept {
  std::free(at);
}
MC_REPLACED void operator delete(void* at, size_t, std::align_val_t) noexcept {
  std::free(at);
}
MC_REPLACED void operator delete(void* at, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(at);
}
MC_REPLACED void operator delete[](void* at) noexcept {
  std::free(at);
}
MC_REPLACED void operator delete[](void* at, size_t) noexcept {
  std::free(at);
}
MC_REPLACED void operator delete[](void* at, const std::nothrow_t&) noexcept {
  std::free(at);
}
MC_REPLACED void operator delete[](void* at, std::align_val_t) noexcept {
  std::free(at);
}
MC_REPLACED void operator delete[](void* at, size_t, std::align_val_t) noexcept {
  std::free(at);
}
MC_REPLACED void operator delete[](void* at, std::align_val_t, const std::nothrow_t&) noexcept {
  std::free(at);
}

#undef MC_REPLACED

// Arrays whose memory the system gives when it is touched: a kernel touches little of what it may use, and a library
// little of its workspace.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

namespace mc::gpu::emu {

/// `count` zeroed objects. Large arrays are mapped: calloc() writes zeros into memory that was freed before. Under
/// AddressSanitizer none is, because it sees the end of an array of calloc() alone.
template <class T>
class ZeroedArray {
 public:
  explicit ZeroedArray(size_t count = 0) : at_(make(count), Free{bytes_of(count)}), size_(count) {
    static_assert(std::is_trivially_copyable_v<T>);
  }
  size_t size() const { return size_; }
  T* data() { return at_.get(); }
  T& operator[](size_t i) { return at_.get()[i]; }
  const T& operator[](size_t i) const { return at_.get()[i]; }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kMapped = SIZE_MAX;
#else
  static constexpr size_t kMapped = 256 << 10;  // bytes
#endif
  struct Free {
    size_t bytes = 0;
    void operator()(T* at) const {
      if (bytes < kMapped)
        std::free(at);
      else
        munmap(at, bytes);
    }
  };
  static size_t bytes_of(size_t count) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(std::max<size_t>(count, 1), sizeof(T), &bytes)) throw std::bad_alloc();
    return bytes;
  }
  static T* make(size_t count) {
    const size_t bytes = bytes_of(count);
    if (bytes < kMapped) {
      if (void* made = std::calloc(1, bytes); made != nullptr) return static_cast<T*>(made);
    } else if (void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                 -1, 0);
               made != MAP_FAILED) {
      return static_cast<T*>(made);
    }
    throw std::bad_alloc();
  }

  std::unique_ptr<T, Free> at_;
  size_t size_;
};

/// Bytes that are 0xff before they are written: NaN in every real type.
class PoisonedBytes {
 public:
  explicit PoisonedBytes(size_t size = 0) : bytes_(size), poisoned_((size + kPiece - 1) / kPiece) {}
  size_t size() const { return bytes_.size(); }
  /// The `bytes` bytes from `first`.
  std::byte* at(size_t first, size_t bytes) {
    for (size_t piece = first / kPiece; piece * kPiece < first + bytes; ++piece)
      if (poisoned_[piece] == 0) poison(piece);
    return bytes_.data() + first;
  }

 private:
  static constexpr size_t kPiece = 65536;
  void poison(size_t piece) {
    std::memset(bytes_.data() + piece * kPiece, 0xff, std::min(kPiece, size() - piece * kPiece));
    poisoned_[piece] = 1;
  }

  ZeroedArray<std::byte> bytes_;
  std::vector<uint8_t> poisoned_;  // by piece
};

}  // namespace mc::gpu::emu

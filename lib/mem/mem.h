// Owned memory, move-only. Sizes and alignment are in bytes; everything is page-aligned and zero at
// first. Two kinds:
//   HostBuffer    private pages of this process: kernel scratch, weights, local pools
//   SharedBuffer  a memfd that other processes map through its descriptor: the arena of a KV pool and
//                 the segments of the shm transport. Sealed SHRINK|GROW, so that a peer's mapping can
//                 never fault, and by default peers can map it for reading only, because they pull KV
//                 and never push it: no late or hostile write can touch a page.
// `Location` names the host or a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mc {
class Parallel;
}

namespace mc::mem {

/// The place of bytes: the host ("cpu") or a GPU ("cuda:1").
struct Location {
  enum class Kind : uint8_t { cpu = 0, cuda = 1 };
  Kind kind = Kind::cpu;
  int index = 0;  // number of the device; 0 for cpu
  bool operator==(const Location&) const = default;
};
std::string to_string(Location location);

/// The bytes that this process can still allocate: the smaller of MemAvailable and the room in its cgroup.
size_t available_bytes();

struct HostOptions {
  const char* name = "buffer";  // for error messages
  /// 2 MiB pages, and 2 MiB aligned. Without a message small pages where the kernel has none, or memory is short.
  bool huge_pages = false;
  Parallel* prefault = nullptr;  // touch every page now, on these threads; null = on first use
};

class HostBuffer {
 public:
  using Options = HostOptions;

  HostBuffer() = default;
  /// bytes > 0. Code::no_space names what was needed and what is free.
  static Result<HostBuffer> allocate(size_t bytes, const Options& options = {});
  ~HostBuffer() { release(); }
  HostBuffer(HostBuffer&& other) noexcept { swap(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    HostBuffer(std::move(other)).swap(*this);
    return *this;
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }
  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(HostBuffer& other) noexcept;
  void release();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::byte* mapping_ = nullptr;  // the mapping; data_ is the first aligned byte in it
  size_t mapping_bytes_ = 0;
  bool in_heap_ = false;
};

struct SharedOptions {
  const char* name = "shared";   // shows in /proc/*/maps as /memfd:name
  bool huge_pages = false;       // advise only
  bool peers_write = false;      // false: every later mapping of the descriptor is read-only (F_SEAL_FUTURE_WRITE)
  Parallel* prefault = nullptr;  // reserve every page now, so that running out is an error here and not a SIGBUS later
};

class SharedBuffer {
 public:
  using Options = SharedOptions;

  SharedBuffer() = default;
  /// Creates a memfd of `bytes` > 0, rounded up to whole 4 KiB pages, mapped for reading and writing.
  static Result<SharedBuffer> create(size_t bytes, const Options& options = {});
  /// Maps a peer's memfd; the descriptor is borrowed and may be closed afterwards. Code::invalid if it is not sealed
  /// SHRINK, because its owner could then cause a fault here, or is not `expected_bytes` long (0 = any).
  static Result<SharedBuffer> map(int fd, size_t expected_bytes = 0, bool writable = false);
  ~SharedBuffer() { release(); }
  SharedBuffer(SharedBuffer&& other) noexcept { swap(other); }
  SharedBuffer& operator=(SharedBuffer&& other) noexcept {
    SharedBuffer(std::move(other)).swap(*this);
    return *this;
  }

  /// Null when mapped read-only: use bytes() const.
  std::byte* data() { return writable_ ? data_ : nullptr; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool writable() const { return writable_; }
  explicit operator bool() const { return data_ != nullptr; }
  std::span<std::byte> bytes() { return {data(), writable_ ? size_ : 0}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// To hand to peers (SCM_RIGHTS or /proc/PID/fd/N); -1 for a mapped peer. Owned by this object.
  int fd() const { return fd_; }

 private:
  void swap(SharedBuffer& other) noexcept;
  void release();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
  bool writable_ = false;
};

}  // namespace mc::mem

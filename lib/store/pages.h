// Memory for disk transfers: page-aligned and owned. It grows and is kept, so that a steady state does not allocate.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>

#include "store/disk.h"

namespace mc::store {

constexpr size_t whole_pages(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

class PageBuffer {
 public:
  /// At least `bytes`, in whole pages. What an earlier call returned is gone when this one has to grow.
  std::span<std::byte> room(size_t bytes) {
    const size_t wanted = whole_pages(bytes);
    if (wanted > size_) {
      data_.reset(static_cast<std::byte*>(::operator new (wanted, std::align_val_t{kPageBytes})));
      size_ = wanted;
    }
    return {data_.get(), wanted};
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete (data, std::align_val_t{kPageBytes}); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

inline bool is_page_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kPageBytes == 0;
}

/// One operation, in this thread. Error as io_error() names it, with `name` for the file.
Result<void> run_one(Disk& disk, std::string_view name, Io io);
Result<void> read_pages(Disk& disk, std::string_view name, FileId file, uint64_t offset, std::span<std::byte> out);
Result<void> write_pages(Disk& disk, std::string_view name, FileId file, uint64_t offset,
                         std::span<const std::byte> bytes);
Result<void> flush_file(Disk& disk, std::string_view name, FileId file);

}  // namespace mc::store

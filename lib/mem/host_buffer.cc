// Private anonymous memory straight from mmap: page-aligned, zero, and returned to the system at once. A limit of the
// address space may leave no room for a mapping. Then memory comes from the C library's heap. The heap may hold freed
// memory that it cannot return, because a block behind it is in use. Without the heap, a process at its limit could
// serve no further request.
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/extent.h"
#include "mem/mem.h"
#include "mem/pages.h"

namespace mc::mem {

Result<HostBuffer> HostBuffer::allocate(size_t bytes, const Options& options) {
  MC_ASSERT_LT(size_t{0}, bytes);
  MC_CHECK(check_room(options.name, bytes));
  size_t align = options.huge_pages ? kHugePageBytes : kPageBytes;
  HostBuffer buffer;
  // A 2 MiB aligned range lies somewhere in a mapping 2 MiB longer; the slack is never touched.
  buffer.mapping_bytes_ = round_up(bytes, kPageBytes) + (align - kPageBytes);
  void* mapping = mmap(nullptr, buffer.mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    const int error = errno;
    // Memory is short, so the heap gives what the buffer needs, in small pages.
    align = kPageBytes;
    buffer.mapping_bytes_ = round_up(bytes, kPageBytes);
    mapping = std::aligned_alloc(align, buffer.mapping_bytes_);
    if (mapping == nullptr)
      return {Code::no_space, std::string("mem: mmap of ") + size_text(bytes) + " for " + options.name + ": " +
                                  std::strerror(error) + " (" + size_text(available_bytes()) + " free)"};
    std::memset(mapping, 0, buffer.mapping_bytes_);
    buffer.in_heap_ = true;
  }
  buffer.mapping_ = static_cast<std::byte*>(mapping);
  buffer.data_ = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(mapping), align));
  buffer.size_ = bytes;
  MC_ASSERT(buffer.data_ + round_up(bytes, kPageBytes) <= buffer.mapping_ + buffer.mapping_bytes_);
  if (align == kHugePageBytes) madvise(buffer.data_, round_up(bytes, kPageBytes), MADV_HUGEPAGE);
  if (options.prefault != nullptr) MC_CHECK(prefault(options.name, buffer.data_, bytes, *options.prefault));
  return buffer;
}

void HostBuffer::swap(HostBuffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(in_heap_, other.in_heap_);
}

void HostBuffer::release() {
  if (in_heap_)
    std::free(mapping_);
  else if (mapping_ != nullptr)
    munmap(mapping_, mapping_bytes_);
}

}  // namespace mc::mem

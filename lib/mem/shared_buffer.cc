// Memory shared by descriptor. Seals are what makes sharing safe in both directions: SHRINK|GROW let a
// peer trust the length it mapped, FUTURE_WRITE lets the owner trust that peers only read.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/extent.h"
#include "mem/mem.h"
#include "mem/pages.h"

namespace mc::mem {
namespace {

Error os_error(const std::string& what) {
  const Code code = errno == ENOMEM || errno == ENOSPC ? Code::no_space : Code::io;
  return {code, "mem: " + what + ": " + std::strerror(errno)};
}

}  // namespace

Result<SharedBuffer> SharedBuffer::create(size_t bytes, const Options& options) {
  MC_ASSERT_LT(size_t{0}, bytes);
  MC_CHECK(check_room(options.name, bytes));
  const std::string thing = size_text(bytes) + " for " + options.name;
  SharedBuffer buffer;
  buffer.size_ = round_up(bytes, kPageBytes);
  buffer.fd_ = memfd_create(options.name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (buffer.fd_ < 0) return os_error("memfd of " + thing);
  if (ftruncate(buffer.fd_, static_cast<off_t>(buffer.size_)) != 0) return os_error("ftruncate to " + thing);
  void* data = mmap(nullptr, buffer.size_, PROT_READ | PROT_WRITE, MAP_SHARED, buffer.fd_, 0);
  if (data == MAP_FAILED) return os_error("mmap of " + thing);
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.writable_ = true;
  // After the mapping: FUTURE_WRITE spares mappings that exist.
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (!options.peers_write) seals |= F_SEAL_FUTURE_WRITE;
  if (fcntl(buffer.fd_, F_ADD_SEALS, seals) != 0) return os_error("seals on " + thing);
  if (options.huge_pages) madvise(data, buffer.size_, MADV_HUGEPAGE);
  if (options.prefault != nullptr) MC_CHECK(prefault(options.name, buffer.data_, buffer.size_, *options.prefault));
  return buffer;
}

Result<SharedBuffer> SharedBuffer::map(int fd, size_t expected_bytes, bool writable) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return {Code::invalid, "mem: descriptor " + std::to_string(fd) +
                               " is no memfd sealed against shrinking; its owner could fault us, so it is refused"};
  struct stat info = {};
  if (fstat(fd, &info) != 0) return os_error("fstat of descriptor " + std::to_string(fd));
  const size_t bytes = static_cast<size_t>(info.st_size);
  if (bytes == 0 || (expected_bytes != 0 && bytes != round_up(expected_bytes, kPageBytes)))
    return {Code::invalid, "mem: descriptor " + std::to_string(fd) + " holds " + size_text(bytes) + ", expected " +
                               size_text(round_up(expected_bytes, kPageBytes))};
  void* data = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED)
    return os_error("mmap of a peer's " + size_text(bytes) + (writable ? " for writing" : " for reading"));
  SharedBuffer buffer;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  buffer.writable_ = writable;
  return buffer;
}

void SharedBuffer::swap(SharedBuffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  std::swap(writable_, other.writable_);
}

void SharedBuffer::release() {
  if (data_ != nullptr) munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace mc::mem

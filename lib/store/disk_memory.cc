#include "store/disk_memory.h"

#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/fd.h"

namespace mc::store {

MemoryDisk::MemoryDisk(DiskImage image, DiskWatcher* watcher) : image_(std::move(image)), watcher_(watcher) {}

Result<std::vector<std::string>> MemoryDisk::list() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [name, content] : image_) out.push_back(name);
  return out;
}

Result<FileId> MemoryDisk::open(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (!image_.contains(name)) return errno_error(name, ENOENT);
  open_.push_back(name);
  return static_cast<FileId>(open_.size() - 1);
}

Result<FileId> MemoryDisk::create(const std::string& name, uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const int error = image_.contains(name) ? EEXIST : watcher_ != nullptr ? watcher_->before_create(name, bytes) : 0;
    if (error != 0) return errno_error(name, error);
    image_[name].resize(bytes);
  }
  return open(name);
}

Result<void> MemoryDisk::remove(const std::string& name, FileId file) {
  const std::lock_guard lock(mutex_);
  if (watcher_ != nullptr) watcher_->removed(name);
  MC_ASSERT(open_.at(file) == name);
  open_[file].clear();
  if (image_.erase(name) == 0) return errno_error(name, ENOENT);
  return {};
}

uint64_t MemoryDisk::size(FileId file) const {
  const std::lock_guard lock(mutex_);
  return image_.at(open_.at(file)).size();
}

int MemoryDisk::transfer(const Io& io) {
  const std::string& name = open_.at(io.file);
  if (name.empty()) return EBADF;
  if (watcher_ != nullptr)
    if (const int error = watcher_->before(io, name); error != 0) return error;
  std::vector<std::byte>& content = image_.at(name);
  MC_ASSERT_EQ(io.offset % kPageBytes, size_t{0});
  uint64_t at = io.offset;
  if (at + bytes_of(io.parts) > content.size()) return io.op == Io::Op::read ? ENODATA : ENOSPC;
  for (const iovec& part : io.parts) {
    // As O_DIRECT wants it, so that a test finds what a real disk would refuse.
    MC_ASSERT_EQ(reinterpret_cast<uintptr_t>(part.iov_base) % kPageBytes, size_t{0});
    MC_ASSERT_EQ(part.iov_len % kPageBytes, size_t{0});
    if (io.op == Io::Op::read) std::memcpy(part.iov_base, content.data() + at, part.iov_len);
    if (io.op == Io::Op::write) std::memcpy(content.data() + at, part.iov_base, part.iov_len);
    at += part.iov_len;
  }
  return 0;
}

void MemoryDisk::run(std::span<Io> ios, const std::function<void(Io&)>& ended) {
  for (Io& io : ios) {
    {
      const std::lock_guard lock(mutex_);
      io.error = transfer(io);
    }
    ended(io);
  }
}

const DiskEntry kDiskMemory = {
    .name = "memory",
    .summary = "no disk: the store's own speed",
    .open = [](const std::string&, Access) -> Result<std::unique_ptr<Disk>> {
      return std::unique_ptr<Disk>(new MemoryDisk());
    },
};

}  // namespace mc::store

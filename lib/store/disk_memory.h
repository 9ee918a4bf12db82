// A disk in memory. It is the harness's own speed in mc-bench disk, and the disk of tests: a watcher sees every
// operation in order, so that it can rebuild the states that a power cut may leave, and it can make operations fail.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "store/disk.h"

namespace mc::store {

/// For tests. Called under the disk's lock, one operation at a time.
class DiskWatcher {
 public:
  virtual ~DiskWatcher() = default;
  /// Before the operation: 0, or the errno with which it fails. A write that fails changes nothing.
  virtual int before(const Io& io, const std::string& name) = 0;
  /// The same for create(). Nothing is made when it is not 0.
  virtual int before_create(const std::string& name, uint64_t bytes) = 0;
  virtual void removed(const std::string& name) = 0;
};

using DiskImage = std::map<std::string, std::vector<std::byte>>;  // contents by name

class MemoryDisk final : public Disk {
 public:
  /// `watcher` outlives the disk; none: no one looks.
  explicit MemoryDisk(DiskImage image = {}, DiskWatcher* watcher = nullptr);

  Result<std::vector<std::string>> list() override;
  Result<FileId> open(const std::string& name) override;
  Result<FileId> create(const std::string& name, uint64_t bytes) override;
  Result<void> remove(const std::string& name, FileId file) override;
  uint64_t size(FileId file) const override;
  void run(std::span<Io> ios, const std::function<void(Io&)>& ended) override;

 private:
  int transfer(const Io& io);

  mutable std::mutex mutex_;
  DiskImage image_;
  std::vector<std::string> open_;  // names by file; empty = removed
  DiskWatcher* watcher_;
};

}  // namespace mc::store

// A directory of the file system as a Disk, all but run(): the lock, names, sizes, zero-filled files. Files are opened
// with O_DIRECT where the file system has it; where it has not, fdatasync alone makes writes durable.
#pragma once

#include <deque>
#include <mutex>

#include "base/fd.h"
#include "store/disk.h"

namespace mc::store {

class PosixFiles : public Disk {
 public:
  Result<std::vector<std::string>> list() override;
  Result<FileId> open(const std::string& name) override;
  Result<FileId> create(const std::string& name, uint64_t bytes) override;
  Result<void> remove(const std::string& name, FileId file) override;
  uint64_t size(FileId file) const override;

 protected:
  /// Makes the directory with mode 0700 when it is not there, then locks it. MC5005: it is a link, belongs to another
  /// user or is open to other users. busy: another store has it, and the pid it wrote.
  /// With read_only nothing is made, and the lock is shared with other readers.
  Result<void> enter(const std::string& directory, Access access);
  int fd(FileId file) const;
  /// The operation by system calls in this thread. Sets io.error.
  void transfer(Io& io) const;

 private:
  struct File {
    Fd fd;
    uint64_t bytes = 0;
  };
  Result<void> take_lock();
  Result<FileId> keep(Fd fd, uint64_t bytes);
  Error failed(const std::string& what) const;

  std::string directory_;
  Access access_ = Access::read_write;
  Fd directory_fd_, lock_;
  mutable std::mutex mutex_;  // of files_
  std::deque<File> files_;
};

}  // namespace mc::store

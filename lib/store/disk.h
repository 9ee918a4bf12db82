// A disk as the store sees it: a directory of files that are read and written in whole pages and flushed. Everything
// the store promises rests on three facts, and a Disk may rely on nothing else of its user:
//   - a write that has not been flushed may survive a power cut whole, in part (any of its 512-byte sectors) or not at
//     all, independently of other writes;
//   - after run() has ended a flush without an error, all writes to that file that had ended before are durable;
//   - create() and remove() are durable when they return, name and size included.
// To add a kind of disk, write its class and name its entry in kDisks[] in disks.cc.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::store {

inline constexpr size_t kPageBytes = 4096;

using FileId = uint32_t;

/// One operation. Offset and length are multiples of a page, and so is the address of every part: disks bypass the page
/// cache where they can.
struct Io {
  enum class Op : uint8_t { read, write, flush };
  Op op = Op::read;
  FileId file = 0;
  uint64_t offset = 0;           // bytes
  std::span<const iovec> parts;  // at most kPartsMax; none for a flush. A write does not change the memory
  int error = 0;                 // errno, set by run(); ENODATA when a read goes beyond the end of the file
  uint32_t tag = 0;              // the caller's
};
inline constexpr size_t kPartsMax = 512;
uint64_t bytes_of(std::span<const iovec> parts);
/// "seg.000001: write of 65536 bytes at 4096: Input/output error"; no_space for a full disk, else io.
Error io_error(std::string_view file, const Io& io);

class Disk {
 public:
  virtual ~Disk() = default;

  /// Names of all files, in order.
  virtual Result<std::vector<std::string>> list() = 0;
  virtual Result<FileId> open(const std::string& name) = 0;
  /// A file of zeros, whose pages have been written once: later writes allocate nothing. Fails if the name is there.
  virtual Result<FileId> create(const std::string& name, uint64_t bytes) = 0;
  /// Also closes `file`, whose number is not used again.
  virtual Result<void> remove(const std::string& name, FileId file) = 0;
  virtual uint64_t size(FileId file) const = 0;

  /// Runs all operations, in any order and at once, and calls `ended` in this thread for each as it ends. Any number of
  /// threads may be inside. A wait for the device has no deadline: the memory belongs to it until it answers.
  virtual void run(std::span<Io> ios, const std::function<void(Io&)>& ended) = 0;
};

enum class Access : uint8_t {
  read_write,
  read_only,  // nothing on the disk changes: nothing is made, removed or written
};

struct DiskEntry {
  const char* name;
  const char* summary;
  /// Takes `directory`, made when it is not there, for this process alone; with read_only it must be there, and other
  /// readers may have it too. unsupported: this machine has no such kind. busy: another process has it.
  Result<std::unique_ptr<Disk>> (*open)(const std::string& directory, Access access);
};

/// In the order in which "auto" tries them.
std::span<const DiskEntry* const> disks();
extern const DiskEntry kDiskUring, kDiskThreads, kDiskMemory;

struct OpenedDisk {
  std::unique_ptr<Disk> disk;
  std::string kind;  // name of the entry
};
/// `kind` is "auto" or the name of an entry.
Result<OpenedDisk> open_disk(std::string_view kind, const std::string& directory, Access access = Access::read_write);
/// The values of --disk-io.
std::vector<std::string> disk_names();

}  // namespace mc::store

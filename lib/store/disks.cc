// The table of disks, and what they share.
#include <array>
#include <cerrno>

#include "base/errors.h"
#include "base/fd.h"
#include "store/disk.h"

namespace mc::store {
namespace {

constexpr std::array kDisks = {&kDiskUring, &kDiskThreads, &kDiskMemory};

constexpr const char* kOpNames[] = {"read", "write", "flush"};

}  // namespace

std::span<const DiskEntry* const> disks() {
  return kDisks;
}

uint64_t bytes_of(std::span<const iovec> parts) {
  uint64_t sum = 0;
  for (const iovec& part : parts) sum += part.iov_len;
  return sum;
}

Error io_error(std::string_view file, const Io& io) {
  std::string what = std::string(file) + ": " + kOpNames[static_cast<size_t>(io.op)];
  if (io.op != Io::Op::flush)
    what += " of " + std::to_string(bytes_of(io.parts)) + " bytes at " + std::to_string(io.offset);
  if (io.error == ENODATA) return {Code::io, what + ": the file ends before"};
  return errno_error(what, io.error);
}

Result<OpenedDisk> open_disk(std::string_view kind, const std::string& directory, Access access) {
  std::string why;
  for (const DiskEntry* entry : disks()) {
    if (kind != "auto" && kind != entry->name) continue;
    auto opened = entry->open(directory, access);
    if (opened) return OpenedDisk{std::move(*opened), entry->name};
    if (kind != "auto" || opened.error().code != Code::unsupported) return std::move(opened).error();
    why = opened.error().what;
  }
  return Error{Code::invalid, "store: no disk named " + std::string(kind) + why};
}

std::vector<std::string> disk_names() {
  std::vector<std::string> out = {"auto"};
  for (const DiskEntry* entry : kDisks) out.push_back(entry->name);
  return out;
}

}  // namespace mc::store

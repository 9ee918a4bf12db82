#include "store/pages.h"

namespace mc::store {

Result<void> run_one(Disk& disk, std::string_view name, Io io) {
  disk.run({&io, 1}, [](Io&) {});
  if (io.error != 0) return io_error(name, io);
  return {};
}

Result<void> read_pages(Disk& disk, std::string_view name, FileId file, uint64_t offset, std::span<std::byte> out) {
  const iovec part{out.data(), out.size()};
  return run_one(disk, name, {.op = Io::Op::read, .file = file, .offset = offset, .parts = {&part, 1}});
}

Result<void> write_pages(Disk& disk, std::string_view name, FileId file, uint64_t offset,
                         std::span<const std::byte> bytes) {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return run_one(disk, name, {.op = Io::Op::write, .file = file, .offset = offset, .parts = {&part, 1}});
}

Result<void> flush_file(Disk& disk, std::string_view name, FileId file) {
  return run_one(disk, name, {.op = Io::Op::flush, .file = file});
}

}  // namespace mc::store

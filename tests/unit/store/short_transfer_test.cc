// Short transfers: the kernel may write or read fewer bytes than it was asked for. A disk moves the rest.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <vector>

#include "base/fd.h"
#include "base/rng.h"
#include "store/disk.h"
#include "store/pages.h"
#include "unit/store/folder.h"

using namespace mc;
using namespace mc::store;

namespace short_transfer_test {

constexpr size_t kPages = 24;
std::atomic<size_t> g_bytes_most{0};  // of each call; 0: no bound
std::atomic<size_t> g_calls{0}, g_short{0};
std::atomic<const rlimit*> g_lifted{nullptr};  // the limit on the size of a file that the next call sets

/// The first `bytes` bytes of the parts.
std::vector<iovec> beginning(std::span<const iovec> parts, size_t bytes) {
  std::vector<iovec> out;
  for (const iovec& part : parts) {
    if (bytes == 0) break;
    out.push_back({part.iov_base, std::min(part.iov_len, bytes)});
    bytes -= out.back().iov_len;
  }
  return out;
}

ssize_t transfer(long number, int fd, std::span<const iovec> parts, off_t offset) {
  ++g_calls;
  if (const rlimit* limit = g_lifted.exchange(nullptr)) ::setrlimit(RLIMIT_FSIZE, limit);
  const size_t most = g_bytes_most;
  if (most == 0 || bytes_of(parts) <= most) return ::syscall(number, fd, parts.data(), parts.size(), offset, 0);
  ++g_short;
  const auto some = beginning(parts, most);
  return ::syscall(number, fd, some.data(), some.size(), offset, 0);
}

}  // namespace short_transfer_test

/// In place of the C library's: the program's own definition is the one that is linked.
extern "C" ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  return short_transfer_test::transfer(SYS_pwritev, fd, {parts, static_cast<size_t>(count)}, offset);
}
extern "C" ssize_t preadv(int fd, const iovec* parts, int count, off_t offset) {
  return short_transfer_test::transfer(SYS_preadv, fd, {parts, static_cast<size_t>(count)}, offset);
}

namespace short_transfer_test {

/// While it lives, a system call transfers at most so many bytes.
class Bound {
 public:
  explicit Bound(size_t bytes) {
    g_calls = 0, g_short = 0;
    g_bytes_most = bytes;
  }
  ~Bound() { g_bytes_most = 0; }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;
};

/// Parts of one, two and three pages.
std::vector<iovec> uneven_parts(std::span<std::byte> memory) {
  std::vector<iovec> out;
  for (size_t at = 0, pages = 1; at < memory.size(); pages = pages % 3 + 1) {
    const size_t bytes = std::min(pages * kPageBytes, memory.size() - at);
    out.push_back({memory.data() + at, bytes});
    at += bytes;
  }
  return out;
}

/// The file through plain system calls, which no disk of the test makes.
std::vector<std::byte> content_of(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<std::byte> out(kPages * kPageBytes);
  REQUIRE(::pread(fd.get(), out.data(), out.size(), 0) == static_cast<ssize_t>(out.size()));
  return out;
}

struct Files {
  store_test::Folder folder;
  std::unique_ptr<Disk> disk;
  FileId file = 0;
  PageBuffer buffer, back;
  std::span<std::byte> out, in;

  /// False: this machine has no such kind.
  bool open(const DiskEntry& entry) {
    auto opened = entry.open(folder.path, Access::read_write);
    if (!opened && opened.error().code == Code::unsupported) return false;
    REQUIRE_OK(opened);
    disk = std::move(*opened);
    const auto made = disk->create("a", kPages * kPageBytes);
    REQUIRE_OK(made);
    file = *made;
    out = buffer.room(kPages * kPageBytes);
    in = back.room(kPages * kPageBytes);
    Rng rng(mc::test::seed());
    for (std::byte& byte : out) byte = static_cast<std::byte>(rng.next());
    std::memset(in.data(), 0, in.size());
    return true;
  }
};

constexpr std::array kKinds = {&kDiskUring, &kDiskThreads};

TEST_CASE("store/disk: a short write or read is continued at the byte where it ended") {
  for (const DiskEntry* entry : kKinds) {
    for (const size_t pages : {1u, 2u, 5u}) {  // within a part, at its end, and beyond several
      CAPTURE(entry->name);
      CAPTURE(pages);
      Files files;
      if (!files.open(*entry)) continue;
      for (const auto op : {Io::Op::write, Io::Op::read}) {
        const auto parts = uneven_parts(op == Io::Op::write ? files.out : files.in);
        Io io{.op = op, .file = files.file, .offset = 0, .parts = parts};
        const Bound bound(pages * kPageBytes);
        files.disk->run({&io, 1}, [](Io&) {});
        CHECK(io.error == 0);
        CHECK(g_calls == (kPages + pages - 1) / pages);
        CHECK(g_short > 0);
      }
      const auto content = content_of(files.folder.path + "/a");
      CHECK(std::memcmp(content.data(), files.out.data(), content.size()) == 0);
      CHECK(std::memcmp(files.in.data(), files.out.data(), files.in.size()) == 0);
    }
  }
}

TEST_CASE("store/disk: short transfers of many operations at once are continued") {
  Files files;
  REQUIRE(files.open(kDiskThreads));
  for (const auto op : {Io::Op::write, Io::Op::read}) {
    const auto memory = op == Io::Op::write ? files.out : files.in;
    std::vector<iovec> parts;
    std::vector<Io> ios;
    for (size_t i = 0; i < kPages; ++i) parts.push_back({memory.data() + i * kPageBytes, kPageBytes});
    for (size_t i = 0; i < kPages; i += 4)
      ios.push_back({.op = op, .file = files.file, .offset = i * kPageBytes, .parts = {&parts[i], 4}});
    const Bound bound(3 * kPageBytes);
    files.disk->run(ios, [](Io& io) { CHECK(io.error == 0); });
    CHECK(g_short == ios.size());
  }
  CHECK(std::memcmp(files.in.data(), files.out.data(), files.in.size()) == 0);
}

TEST_CASE("store/disk: a short write of an io_uring is continued by a system call") {
  Files files;
  if (!files.open(kDiskUring)) return;
  // The kernel writes up to the limit on the size of a file, so the second write of the ring is short.
  const std::array<iovec, 2> parts = {
      {{files.out.data(), 8 * kPageBytes}, {files.out.data() + 8 * kPageBytes, 16 * kPageBytes}}};
  std::array<Io, 2> ios = {
      {{.op = Io::Op::write, .file = files.file, .offset = 0, .parts = {&parts[0], 1}},
       {.op = Io::Op::write, .file = files.file, .offset = 8 * kPageBytes, .parts = {&parts[1], 1}}}};
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{11 * kPageBytes, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  g_calls = 0;
  g_lifted = &before;  // by the system call
  files.disk->run(ios, [](Io&) {});
  g_lifted = nullptr;
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(ios[0].error == 0);
  CHECK(ios[1].error == 0);
  CHECK(g_calls == 1);
  const auto content = content_of(files.folder.path + "/a");
  CHECK(std::memcmp(content.data(), files.out.data(), content.size()) == 0);
}

}  // namespace short_transfer_test

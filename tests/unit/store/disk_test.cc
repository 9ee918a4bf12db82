// Every kind of disk of the table, on real files where it has some.
#include "store/disk.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/errors.h"
#include "base/rng.h"
#include "store/pages.h"
#include "unit/store/folder.h"

using namespace mc;
using namespace mc::store;

namespace disk_test {

/// A call of fsync(): what it was for, and whether the watched path was there by then.
struct Synced {
  bool is_folder = false, named = false;
  bool operator==(const Synced&) const = default;
};
std::string watched;  // empty: nothing is noted
std::vector<Synced> synced;

}  // namespace disk_test

/// In place of the C library's: the program's own definition is the one that is linked.
extern "C" int fsync(int fd) {
  struct stat status;
  if (!disk_test::watched.empty() && ::fstat(fd, &status) == 0)
    disk_test::synced.push_back({S_ISDIR(status.st_mode), std::filesystem::exists(disk_test::watched)});
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace disk_test {

constexpr uint64_t kFile = 64 * kPageBytes;

/// Null: this machine has no such kind.
std::unique_ptr<Disk> open_kind(const DiskEntry& entry, const std::string& folder) {
  auto disk = entry.open(folder, Access::read_write);
  if (!disk && disk.error().code == Code::unsupported) {
    MESSAGE(disk.error().what);
    return nullptr;
  }
  REQUIRE_OK(disk);
  return std::move(*disk);
}

TEST_CASE("store/disk: every kind gives back what was written, in many pieces at once") {
  for (const DiskEntry* entry : disks()) {
    CAPTURE(entry->name);
    const store_test::Folder folder;
    const auto disk = open_kind(*entry, folder.path + "/new/dir");
    if (!disk) continue;
    const auto file = disk->create("a", kFile);
    REQUIRE_OK(file);
    CHECK(disk->size(*file) == kFile);
    Rng rng(mc::test::seed());
    PageBuffer buffer, back;
    const auto out = buffer.room(kFile), in = back.room(kFile);
    for (std::byte& byte : out) byte = static_cast<std::byte>(rng.next());
    REQUIRE_OK(read_pages(*disk, "a", *file, 0, in));
    CHECK(in[0] == std::byte{0});  // a new file is zeros
    CHECK(std::memcmp(in.data(), in.data() + 1, kFile - 1) == 0);
    for (const auto op : {Io::Op::write, Io::Op::read}) {
      std::vector<iovec> parts;
      std::vector<Io> ios;
      const auto memory = op == Io::Op::write ? out : in;
      for (size_t i = 0; i < 64; ++i) parts.push_back({memory.data() + i * kPageBytes, kPageBytes});
      for (size_t i = 0; i < 32; ++i)  // each of two pages
        ios.push_back({.op = op, .file = *file, .offset = i * 2 * kPageBytes, .parts = {&parts[2 * i], 2}});
      size_t ended = 0;
      disk->run(ios, [&](Io& io) {
        CHECK(io.error == 0);
        ++ended;
      });
      CHECK(ended == 32);
    }
    CHECK(std::memcmp(out.data(), in.data(), kFile) == 0);
    REQUIRE_OK(flush_file(*disk, "a", *file));
    REQUIRE_OK(disk->create("b", kPageBytes));
    CHECK_FALSE(disk->create("a", kPageBytes).has_value());
    REQUIRE_OK(disk->remove("a", *file));
    const auto names = disk->list();
    REQUIRE_OK(names);
    CHECK(std::count(names->begin(), names->end(), "a") == 0);
    CHECK(std::count(names->begin(), names->end(), "b") == 1);
    CHECK(disk->open("a").error().code == Code::not_found);
  }
}

TEST_CASE("store/disk: a file is flushed before it gets its name, and the folder whenever a name comes or goes") {
  size_t tried = 0;
  for (const DiskEntry* entry : disks()) {
    CAPTURE(entry->name);
    const store_test::Folder folder;
    const auto disk = open_kind(*entry, folder.path);
    if (!disk || entry == &kDiskMemory) continue;
    ++tried;
    watched = folder.path + "/a";
    synced.clear();
    const auto file = disk->create("a", kPageBytes);
    REQUIRE_OK(file);
    CHECK(synced == std::vector<Synced>{{.is_folder = false, .named = false}, {.is_folder = true, .named = true}});
    synced.clear();
    REQUIRE_OK(disk->remove("a", *file));
    CHECK(synced == std::vector<Synced>{{.is_folder = true, .named = false}});
    watched.clear();
  }
  CHECK(tried > 0);
}

TEST_CASE("store/disk: a read behind the end of a file fails, alone or among others") {
  for (const DiskEntry* entry : disks()) {
    CAPTURE(entry->name);
    const store_test::Folder folder;
    const auto disk = open_kind(*entry, folder.path);
    if (!disk) continue;
    const auto file = disk->create("a", 4 * kPageBytes);
    REQUIRE_OK(file);
    PageBuffer buffer;
    const auto room = buffer.room(2 * kPageBytes);
    const auto read = read_pages(*disk, "a", *file, 3 * kPageBytes, room);
    REQUIRE_FALSE(read.has_value());
    CHECK(read.error().code == Code::io);
    CHECK(read.error().what == "a: read of 8192 bytes at 12288: the file ends before");
    PageBuffer second;
    const iovec good{second.room(kPageBytes).data(), kPageBytes}, bad{room.data(), room.size()};
    std::vector<Io> ios = {{.file = *file, .offset = 3 * kPageBytes, .parts = {&bad, 1}},
                           {.file = *file, .offset = 0, .parts = {&good, 1}}};
    disk->run(ios, [](Io&) {});
    CHECK(ios[0].error == ENODATA);
    CHECK(ios[1].error == 0);
  }
}

TEST_CASE("store/disk: a folder belongs to one store at a time, and the error names the process") {
  const store_test::Folder folder;
  auto first = open_disk("threads", folder.path);
  REQUIRE_OK(first);
  const auto second = open_disk("auto", folder.path);
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().code == Code::busy);
  CHECK(second.error().mc == err::kStoreBusy);
  CHECK(second.error().what == folder.path + " is in use by process " + std::to_string(::getpid()));
  first->disk.reset();
  REQUIRE_OK(open_disk("threads", folder.path));
}

TEST_CASE("store/disk: files that were not finished are removed when the folder is opened") {
  const store_test::Folder folder;
  std::ofstream(folder.path + "/seg.000000.part") << "x";
  const auto disk = open_disk("threads", folder.path);
  REQUIRE_OK(disk);
  CHECK_FALSE(std::filesystem::exists(folder.path + "/seg.000000.part"));
}

TEST_CASE("store/disk: a file that has no room is refused and leaves nothing behind") {
  const store_test::Folder folder;
  const auto disk = open_disk("threads", folder.path);
  REQUIRE_OK(disk);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{1 << 20, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  const auto file = disk->disk->create("big", 2 << 20);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  REQUIRE_FALSE(file.has_value());
  CHECK(file.error().code == Code::no_space);
  const auto names = disk->disk->list();
  REQUIRE_OK(names);
  CHECK(*names == std::vector<std::string>{"lock"});
}

}  // namespace disk_test

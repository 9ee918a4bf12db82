// The disk of a live node: what it writes it gives back, also to the next process, and damage is found.

#include "host/block_disk.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/errors.h"
#include "base/hash.h"
#include "host/disk_flags.h"
#include "node/disk_block.h"
#include "test.h"

namespace block_disk_test {

using namespace mc;
using host::BlockDisk;

namespace {

struct Folder {
  Folder() {
    std::string pattern = test::binary_dir() + "/block-disk-XXXXXX";
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path, error);
  }
  std::string path;
};

struct alignas(4096) PageBytes {
  std::byte bytes[16384];
};

ExtentLayout layout() {
  ExtentLayout out;
  out.layers = 2, out.kv_heads = 1, out.head_dim = 8, out.dtype = Dtype::f32;
  REQUIRE(out.page_bytes() <= sizeof(PageBytes));
  return out;
}

BlockHash hash_of(uint8_t n) {
  BlockHash out;
  out.bytes[0] = n, out.bytes[15] = 1;
  return out;
}

/// A block with content of its own, and its description.
node::DiskBlock block_of(uint8_t n, PageBytes& page) {
  const ExtentLayout shape = layout();
  for (size_t i = 0; i < sizeof page.bytes; ++i)
    page.bytes[i] = i < shape.layers * shape.layer_bytes() ? static_cast<std::byte>(n * 31 + i % 253) : std::byte{0};
  node::DiskBlock block{hash_of(n), n == 1 ? BlockHash{} : hash_of(n - 1), {}, (n - 1u) * 64, shape, {}};
  for (uint32_t layer = 0; layer < shape.layers; ++layer)
    block.layer_crcs.push_back(crc32c({page.bytes + shape.layer_offset(layer), shape.layer_bytes()}));
  return block;
}

struct DiskBench {
  explicit DiskBench(const std::string& folder) {
    auto opened = BlockDisk::open({.directory = folder + "/kv", .capacity_bytes = 32 << 20, .io = "threads"});
    REQUIRE_OK(opened);
    disk = std::move(*opened);
  }

  node::Event wait() {
    for (;;) {
      if (auto event = disk->next()) return std::move(*event);
      pollfd fd{disk->event_fd(), POLLIN, 0};
      REQUIRE(::poll(&fd, 1, 30'000) == 1);
    }
  }
  template <class T>
  T wait_for() {
    for (;;) {
      node::Event event = wait();
      if (auto* found = std::get_if<T>(&event)) return std::move(*found);
    }
  }
  Code write(uint8_t n, PageBytes& page) {
    disk->write({.op = n, .block = block_of(n, page)}, {page.bytes, layout().page_bytes()});
    const auto done = wait_for<node::DiskWritten>();
    CHECK(done.op == n);
    return done.code;
  }
  node::DiskLoaded load(uint8_t n, PageBytes& page) {
    std::memset(page.bytes, 0xee, sizeof page.bytes);
    disk->load({.op = n, .hash = hash_of(n), .layout = layout()}, {page.bytes, layout().page_bytes()});
    return wait_for<node::DiskLoaded>();
  }

  std::unique_ptr<BlockDisk> disk;
};

}  // namespace

TEST_CASE("host/disk: a block comes back byte for byte with its checksums, in this process and in the next") {
  Folder folder;
  PageBytes page, back;
  {
    DiskBench b(folder.path);
    CHECK(b.wait_for<node::DiskFound>().blocks.empty());
    for (uint8_t n = 1; n <= 5; ++n) REQUIRE(b.write(n, page) == Code::ok);
    const auto loaded = b.load(5, back);
    CHECK(loaded.code == Code::ok);
    CHECK(loaded.layer_crcs == block_of(5, page).layer_crcs);
    CHECK(std::memcmp(page.bytes, back.bytes, layout().page_bytes()) == 0);
    CHECK(b.load(9, back).code == Code::not_found);
  }
  DiskBench again(folder.path);
  CHECK(again.disk->restart().blocks == 5);
  const auto found = again.wait_for<node::DiskFound>();
  CHECK(found.last);
  REQUIRE(found.blocks.size() == 5);
  CHECK(found.blocks[2].hash == hash_of(3));
  CHECK(found.blocks[2].parent == hash_of(2));
  CHECK(found.blocks[2].first_position == 128);
  CHECK(found.blocks[2].layout == layout());
  for (uint8_t n = 1; n <= 5; ++n) {
    REQUIRE(again.load(n, back).code == Code::ok);
    block_of(n, page);
    CHECK(std::memcmp(page.bytes, back.bytes, layout().page_bytes()) == 0);
  }
}

TEST_CASE("host/disk: what the disk gives up for a block is told before the block counts as written") {
  Folder folder;
  DiskBench b(folder.path);
  b.wait_for<node::DiskFound>();
  ExtentLayout large = layout();  // so that most of the blocks wait while the first ones are written
  large.kv_heads = 8;
  const std::vector<std::byte> page(large.page_bytes());
  const uint32_t crc = crc32c(std::span(page).first(large.layer_bytes()));
  node::DiskBlock block{hash_of(1), {}, {}, 0, large, {crc, crc}};
  const uint64_t value = node::disk_value_bytes(large);
  const auto count = static_cast<uint32_t>(4 * (32 << 20) / value);  // four times what the disk has room for, at once
  const auto numbered = [](uint32_t n) {
    BlockHash out;
    std::memcpy(out.bytes.data(), &n, sizeof n);
    out.bytes[15] = 2;
    return out;
  };
  for (uint32_t n = 0; n < count; ++n) {
    block.hash = numbered(n);
    b.disk->write({.op = n, .block = block}, page);
  }
  std::set<BlockHash> there;
  for (uint32_t ended = 0; ended < count;) {
    const node::Event event = b.wait();
    if (const auto* evicted = std::get_if<node::DiskEvicted>(&event))
      for (const BlockHash& hash : evicted->hashes) there.erase(hash);
    const auto* written = std::get_if<node::DiskWritten>(&event);
    if (!written) continue;
    ++ended;
    if (written->code == Code::ok) there.insert(numbered(static_cast<uint32_t>(written->op)));
    REQUIRE(there.size() * value <= 32 << 20);
  }
  CHECK(there.contains(numbered(count - 1)));
}

TEST_CASE("host/disk: a segment that cannot be made ahead is reported") {
  Folder folder;
  PageBytes page;
  DiskBench b(folder.path);
  b.wait_for<node::DiskFound>();
  std::filesystem::remove_all(folder.path + "/kv");  // open files stay, and no new one can be made
  std::optional<node::DiskUpkeepFailed> failed;
  for (uint8_t n = 1; n < 255 && !failed; ++n) {
    b.disk->write({.op = n, .block = block_of(n, page)}, {page.bytes, layout().page_bytes()});
    for (bool is_written = false; !is_written;) {
      const node::Event event = b.wait();
      is_written = std::holds_alternative<node::DiskWritten>(event);
      if (const auto* upkeep = std::get_if<node::DiskUpkeepFailed>(&event)) failed = *upkeep;
    }
  }
  if (!failed) failed = b.wait_for<node::DiskUpkeepFailed>();  // it comes behind the writes
  CHECK(failed->work == node::DiskUpkeepFailed::Work::maintain);
  CHECK(failed->what.starts_with("freeing disk space in advance failed: "));
}

TEST_CASE("host/disk: the files of a disk are counted, and grow in size before they grow in number") {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  Folder folder;
  const std::string place = folder.path + "/kv";
  CHECK(host::block_disk_files(place, kGiB / 16) == 16 + 16);  // 16 of 4 MiB, and a few beside
  CHECK(host::block_disk_files(place, 16 * kGiB) == 256 + 16);
  CHECK(host::block_disk_files(place, 64 * kGiB) == 1024 + 16);
  CHECK(host::block_disk_files(place, 1024 * kGiB) == 1024 + 16);
  CHECK(host::block_disk_files(place, 4096 * kGiB) == 4096 + 16);  // the format ends at 1 GiB
  // A disk of 32 MiB has segments of 2 MiB, and keeps them when it grows.
  DiskBench b(folder.path);
  CHECK(host::block_disk_files(place, kGiB) == 512 + 16);
}

TEST_CASE("host/disk: too few threads for the disk end the start in words, however many there are" *
          doctest::skip(::geteuid() != 0)) {
  for (const std::string io : {"memory", "threads"}) {
#if defined(__SANITIZE_THREAD__)
    constexpr int kOthers = 1;  // ThreadSanitizer's own
#else
    constexpr int kOthers = 0;
#endif
    const int enough = kOthers + (io == "memory" ? 2 : 18);  // a writer, a reader, and the threads of the disk
    for (const int room : {0, 1, enough - 1, enough}) {
      CAPTURE(io);
      CAPTURE(room);
      Folder folder;
      const pid_t pid = ::fork();
      if (pid == 0) {
        // Root has no limit, and a user's threads are counted together: the child becomes a user of its own.
        const auto user = static_cast<uid_t>(50'000 + ::getpid() % 10'000);
        const rlimit limit{static_cast<rlim_t>(room) + 1, static_cast<rlim_t>(room) + 1};
        if (::chown(folder.path.c_str(), user, user) != 0 || ::setrlimit(RLIMIT_NPROC, &limit) != 0) ::_exit(4);
        if (::chdir(folder.path.c_str()) != 0 || ::setuid(user) != 0) ::_exit(4);
        const auto disk = BlockDisk::open({.directory = "kv", .capacity_bytes = 16 << 20, .io = io});
        ::_exit(disk ? 0 : disk.error().mc == err::kSystemLimit ? 1 : 3);
      }
      int status = 0;
      REQUIRE(::waitpid(pid, &status, 0) == pid);
      REQUIRE(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == (room < enough ? 1 : 0));
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose allocators end the process instead
TEST_CASE("host/disk: a block that finds no memory fails alone with no_space") {
  Folder folder;
  DiskBench b(folder.path);
  ExtentLayout huge = layout();
  huge.layers = 1 << 20, huge.kv_heads = 1 << 10, huge.head_dim = 1 << 10;
  REQUIRE(huge.page_bytes() > uint64_t{1} << 47);  // more than a process can have
  PageBytes page;
  node::DiskBlock block = block_of(1, page);
  block.layout = huge;
  b.disk->write({.op = 7, .block = block}, {page.bytes, huge.page_bytes()});
  const auto written = b.wait_for<node::DiskWritten>();
  CHECK(written.op == 7);
  CHECK(written.code == Code::no_space);
  CHECK(written.what.find("no memory") == 0);
  b.disk->load({.op = 8, .hash = hash_of(1), .layout = huge}, {page.bytes, huge.page_bytes()});
  const auto loaded = b.wait_for<node::DiskLoaded>();
  CHECK(loaded.op == 8);
  CHECK(loaded.code == Code::no_space);
  REQUIRE(b.write(2, page) == Code::ok);
  CHECK(b.load(2, page).code == Code::ok);
}
#endif

TEST_CASE("host/disk: a page that does not match its checksums is not written") {
  Folder folder;
  DiskBench b(folder.path);
  PageBytes page;
  const node::DiskBlock block = block_of(1, page);
  page.bytes[100] ^= std::byte{1};
  b.disk->write({.op = 1, .block = block}, {page.bytes, layout().page_bytes()});
  CHECK(b.wait_for<node::DiskWritten>().code == Code::corrupt);
  CHECK(b.load(1, page).code == Code::not_found);
}

TEST_CASE("host/disk: a byte that changed on disk is found, and the block is gone from then on") {
  Folder folder;
  PageBytes page;
  {
    DiskBench b(folder.path);
    REQUIRE(b.write(1, page) == Code::ok);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder.path + "/kv")) {
    if (!entry.path().filename().string().starts_with("seg.")) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(2 * 4096 + 77);
    char byte = 0;
    file.get(byte);
    file.seekp(2 * 4096 + 77);
    file.put(static_cast<char>(byte ^ 8));
  }
  DiskBench b(folder.path);
  CHECK(b.load(1, page).code == Code::corrupt);
  CHECK(b.wait_for<node::DiskEvicted>().hashes == std::vector<BlockHash>{hash_of(1)});
  CHECK(b.load(1, page).code == Code::not_found);
}

TEST_CASE("host/disk: a block of another layout or namespace under the name is not given out") {
  Folder folder;
  DiskBench b(folder.path);
  PageBytes page;
  REQUIRE(b.write(1, page) == Code::ok);
  NamespaceId other;
  other.bytes[3] = 7;
  b.disk->load({.op = 1, .hash = hash_of(1), .name_space = other, .layout = layout()},
               {page.bytes, layout().page_bytes()});
  CHECK(b.wait_for<node::DiskLoaded>().code == Code::corrupt);
  // Nobody can use the value, so it is dropped. The drop follows one write and comes before the next.
  REQUIRE(b.write(2, page) == Code::ok);
  REQUIRE(b.write(3, page) == Code::ok);
  CHECK(b.load(1, page).code == Code::not_found);
}

TEST_CASE("host/disk: a block that is dropped, then written again, stays") {
  Folder folder;
  DiskBench b(folder.path);
  std::vector<PageBytes> pages(32);
  for (int round = 0; round < 10; ++round) {
    // The writer is busy with the first blocks when the drop and the write behind it come.
    for (uint8_t n = 1; n <= 31; ++n)
      b.disk->write({.op = n, .block = block_of(n, pages[n])}, {pages[n].bytes, layout().page_bytes()});
    const node::DiskBlock block = block_of(32, pages[0]);
    b.disk->drop({{block.hash}});
    b.disk->write({.op = 32, .block = block}, {pages[0].bytes, layout().page_bytes()});
    for (int n = 1; n <= 32; ++n) REQUIRE(b.wait_for<node::DiskWritten>().code == Code::ok);
    PageBytes back;
    REQUIRE(b.write(40, back) == Code::ok);  // the drop is over
    REQUIRE(b.load(32, back).code == Code::ok);
  }
}

TEST_CASE("host/disk: many large blocks at once need no more memory than a few") {
  Folder folder;
  DiskBench b(folder.path);
  ExtentLayout large;
  large.layers = 32, large.kv_heads = 8, large.head_dim = 128, large.dtype = Dtype::f32;
  constexpr uint64_t kCount = 48, kMiB = 1024;  // in the kB of /proc
  REQUIRE(large.page_bytes() > 16 << 20);
  std::vector<std::byte> page(large.page_bytes());
  b.wait_for<node::DiskFound>();
  const auto peak_kb = [] {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
      if (word == "VmHWM:") return status >> word, std::stoull(word);
    return 0ull;
  };
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
  const uint64_t before = peak_kb();
  for (uint64_t n = 1; n <= kCount; ++n) b.disk->load({.op = n, .hash = hash_of(9), .layout = large}, page);
  for (uint64_t n = 1; n <= kCount; ++n) CHECK(b.wait_for<node::DiskLoaded>().code == Code::not_found);
  CHECK(peak_kb() < before + 512 * kMiB);
  const node::DiskBlock wrong{hash_of(9), {}, {}, 0, large, std::vector<uint32_t>(32, 1)};
  for (uint64_t n = 1; n <= kCount; ++n) b.disk->write({.op = n, .block = wrong}, page);
  for (uint64_t n = 1; n <= kCount; ++n) CHECK(b.wait_for<node::DiskWritten>().code == Code::corrupt);
  CHECK(peak_kb() < before + 512 * kMiB);
}

TEST_CASE("host/disk: a directory of something else or of another process is refused with the cause") {
  Folder folder;
  std::ofstream(folder.path + "/thesis.tex") << "x";
  const auto foreign = BlockDisk::open({.directory = folder.path, .capacity_bytes = 32 << 20});
  REQUIRE_FALSE(foreign.has_value());
  CHECK(foreign.error().what.find("thesis.tex") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder.path + "/lock"));
  DiskBench b(folder.path);
  const auto second = BlockDisk::open({.directory = folder.path + "/kv", .capacity_bytes = 32 << 20});
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().code == Code::busy);
}

TEST_CASE("host/disk: a check passes a store whose superblocks are blank and that has no segment, as a start does") {
  Folder folder;
  const host::BlockDiskOptions options{.directory = folder.path + "/kv", .capacity_bytes = 32 << 20};
  DiskBench(folder.path).disk.reset();
  for (const char* name : {"super.a", "super.b"})
    std::ofstream(options.directory + "/" + name, std::ios::trunc) << std::string(4096, '\0');
  CHECK_FALSE(BlockDisk::check(options).has_value());
  for (const auto& entry : std::filesystem::directory_iterator(options.directory))
    if (entry.path().filename().string().starts_with("seg.")) std::filesystem::remove(entry.path());
  const auto checked = BlockDisk::check(options);
  REQUIRE_OK(checked);
  const auto opened = BlockDisk::open(options);
  REQUIRE_OK(opened);
  CHECK((*opened)->value_bytes_max() == *checked);
}

TEST_CASE("host/disk: a check refuses a directory in which a start cannot make a missing file, and names the file" *
          doctest::skip(::geteuid() != 0)) {
  Folder folder;
  constexpr uid_t kNobody = 65534;
  REQUIRE(::chown(folder.path.c_str(), kNobody, kNobody) == 0);
  const host::BlockDiskOptions options{.directory = folder.path + "/kv", .capacity_bytes = 32 << 20};
  REQUIRE(::seteuid(kNobody) == 0);  // no mode holds root back
  std::vector<std::pair<Error, Error>> errors;
  for (const char* missing : {"lock", "super.b"}) {
    if (!BlockDisk::open(options)) break;  // nobody may not enter the folders above
    std::filesystem::remove(options.directory + "/" + missing);
    ::chmod(options.directory.c_str(), 0500);
    const auto checked = BlockDisk::check(options);
    const auto opened = BlockDisk::open(options);
    errors.emplace_back(checked ? Error{Code::ok, ""} : checked.error(), opened ? Error{Code::ok, ""} : opened.error());
    ::chmod(options.directory.c_str(), 0700);
  }
  REQUIRE(::seteuid(0) == 0);
  WARN_MESSAGE(errors.size() == 2, "not tried: nobody may not enter the folders above " << folder.path);
  for (const auto& [checked, opened] : errors) {
    CHECK(opened.mc == err::kFileAccess);
    CHECK(checked.mc == opened.mc);
    CHECK(opened.what.ends_with(checked.what));
  }
}

TEST_CASE("host/disk: --ssd takes a directory and a size, and says what is wrong with other values") {
  const auto place = host::parse_ssd("a:b/kv:64GiB");
  REQUIRE_OK(place);
  CHECK(place->directory == "a:b/kv");
  CHECK(place->bytes == uint64_t{64} << 30);
  for (const char* wrong : {"", "kv", ":64GiB", "kv:", "kv:some", "kv:50%", "kv:1MiB"})
    CHECK_FALSE(host::parse_ssd(wrong).has_value());
}

}  // namespace block_disk_test

#include "mem/mem.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/parallel.h"
#include "test.h"

using namespace mc;
using namespace mc::mem;

TEST_CASE("mem: a host buffer is zero, page-aligned, and 2 MiB aligned when huge pages are asked for") {
  auto small = HostBuffer::allocate(100);
  REQUIRE_OK(small);
  CHECK(small->size() == 100);
  CHECK(reinterpret_cast<uintptr_t>(small->data()) % 4096 == 0);
  CHECK(std::ranges::all_of(small->bytes(), [](std::byte b) { return b == std::byte{}; }));
  Parallel pool(2);
  auto huge = HostBuffer::allocate((5u << 20) + 3, {.huge_pages = true, .prefault = &pool});
  REQUIRE_OK(huge);
  CHECK(reinterpret_cast<uintptr_t>(huge->data()) % (2u << 20) == 0);
  huge->data()[huge->size() - 1] = std::byte{1};
}

TEST_CASE("mem: a buffer that cannot fit is refused with needed and free bytes, not by the kernel later") {
  const size_t needed = size_t{1} << 46;
  for (auto error : {HostBuffer::allocate(needed, {.name = "pool"}).error(),
                     SharedBuffer::create(needed, {.name = "pool"}).error()}) {
    CHECK(error.code == Code::no_space);
    CHECK(error.what.find("pool needs 70368744177664 bytes (64.0 TiB)") != std::string::npos);
    CHECK(error.what.find("are free") != std::string::npos);
  }
}

TEST_CASE("mem: moving a buffer leaves the source empty") {
  auto a = HostBuffer::allocate(64);
  REQUIRE_OK(a);
  HostBuffer b = std::move(*a);
  CHECK_FALSE(static_cast<bool>(*a));
  CHECK(b.size() == 64);
  b = HostBuffer();
  CHECK_FALSE(static_cast<bool>(b));
}

TEST_CASE("mem: a peer that maps a shared buffer sees its bytes and cannot write them") {
  Parallel pool(1);
  auto owner = SharedBuffer::create(5000, {.name = "test", .prefault = &pool});
  REQUIRE_OK(owner);
  CHECK(owner->size() == 8192);
  auto peer = SharedBuffer::map(owner->fd(), 5000);
  REQUIRE_OK(peer);
  CHECK_FALSE(peer->writable());
  CHECK(peer->data() == nullptr);
  owner->data()[4999] = std::byte{42};
  CHECK(std::as_const(*peer).data()[4999] == std::byte{42});
  CHECK(SharedBuffer::map(owner->fd(), 5000, true).error().code == Code::io);
  CHECK(ftruncate(owner->fd(), 4096) != 0);
  CHECK(ftruncate(owner->fd(), 1 << 20) != 0);
}

TEST_CASE("mem: a buffer made for peers that write can be mapped for writing") {
  auto owner = SharedBuffer::create(4096, {.peers_write = true});
  REQUIRE_OK(owner);
  auto peer = SharedBuffer::map(owner->fd(), 0, true);
  REQUIRE_OK(peer);
  peer->data()[7] = std::byte{9};
  CHECK(owner->data()[7] == std::byte{9});
}

TEST_CASE("mem: a descriptor that could shrink under us, or has another length, is refused") {
  const int fd = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(fd >= 0);
  REQUIRE(ftruncate(fd, 4096) == 0);
  CHECK(SharedBuffer::map(fd).error().code == Code::invalid);
  REQUIRE(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  CHECK(SharedBuffer::map(fd).has_value());
  const Error error = SharedBuffer::map(fd, 8192).error();
  CHECK(error.code == Code::invalid);
  CHECK(error.what.find("4096 bytes (4.0 KiB), expected 8192 bytes (8.0 KiB)") != std::string::npos);
  close(fd);
  CHECK(SharedBuffer::map(-1).error().code == Code::invalid);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose heaps have other rules
TEST_CASE("mem: at the limit of the address space a buffer comes from what the heap has free") {
  const pid_t child = fork();
  if (child == 0) {
    // The heap keeps two blocks that are free again, because a block behind each of them is in use.
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    void* volatile blocks[2];  // volatile: a compiler may leave out memory that nobody uses
    void* volatile last = nullptr;
    for (const size_t i : {0, 1}) {
      blocks[i] = std::malloc(i == 0 ? 3 << 20 : 8 << 20);
      do last = std::malloc(64);  // until one lies behind the block: the first ones may fill small holes before it
      while (last != nullptr && last < blocks[i]);
    }
    std::ifstream statm("/proc/self/statm");
    rlim_t size = 0;
    statm >> size;
    const rlimit limit{size * 4096, RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
    while (last != nullptr) last = std::malloc(64 << 10);  // what earlier tests have freed
    bool is_zero = true;
    for (const bool huge_pages : {false, true}) {  // the second block has no room for 2 MiB more than its buffer
      std::free(blocks[huge_pages]);  // one for each buffer: small allocations may stay in the middle of the first
      auto made = mem::HostBuffer::allocate(huge_pages ? 7 << 20 : 2 << 20, {.huge_pages = huge_pages});
      is_zero = is_zero && made && reinterpret_cast<uintptr_t>(made->data()) % 4096 == 0;
      for (size_t i = 0; is_zero && i < made->size(); ++i) is_zero = made->data()[i] == std::byte{0};
    }
    const auto refused = mem::HostBuffer::allocate(64 << 20);
    const bool is_named = !refused && refused.error().what.find("Cannot allocate memory") != std::string::npos;
    _exit(is_zero && is_named ? 0 : is_zero ? 2 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

// A process that is killed while it puts blocks on a real disk. Whatever it acknowledged is there when the store opens
// again, in the same folder, life after life.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <vector>

#include "base/fd.h"
#include "base/rng.h"
#include "count.h"
#include "store/store.h"
#include "unit/store/folder.h"

using namespace mc;
using namespace mc::store;

namespace kill_test {

constexpr uint64_t kBlocksMax = 3000;
constexpr uint64_t kSegment = 1 << 20;
constexpr Options kOptions{.capacity_bytes = 64 * kSegment, .segment_bytes = kSegment};

Id128 id_of(uint64_t n) {
  Id128 id;
  std::memcpy(id.bytes.data(), &n, sizeof n);
  id.bytes[15] = 1;
  return id;
}

std::vector<std::byte> value_of(uint64_t n) {
  Rng rng(n);
  std::vector<std::byte> out(1 + rng.below(12'000));
  for (std::byte& byte : out) byte = static_cast<std::byte>(rng.next());
  return out;
}

Result<std::unique_ptr<Store>> open_folder(const std::string& folder) {
  MC_TRY(disk, open_disk("auto", folder));
  return Store::open(std::move(disk.disk), kOptions);
}

/// The process that is killed: puts the blocks from `first` on, and writes the number behind each durable one.
[[noreturn]] void put_until_killed(const std::string& folder, uint64_t first, int out) {
  auto store = open_folder(folder);
  if (!store) ::_exit(2);
  for (uint64_t n = first; n < kBlocksMax; ++n) {
    const auto value = value_of(n);
    const Put put{.id = id_of(n), .bytes = value};
    if (!(*store)->put({&put, 1}, n % 3 == 0 ? Level::written : Level::durable)) ::_exit(3);
    const uint64_t acked = n + 1;
    if (::write(out, &acked, sizeof acked) != sizeof acked) ::_exit(4);
  }
  for (;;) ::pause();
}

TEST_CASE("store: a killed process loses no block that it acknowledged") {
  const store_test::Folder folder;
  Rng rng(mc::test::seed());
  uint64_t acked = 0, lives = 0;
  const int rounds = mc::test::count(8, 200);
  for (int round = 0; round < rounds && acked < kBlocksMax; ++round, ++lives) {
    auto pipe = make_pipe();
    REQUIRE_OK(pipe);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) put_until_killed(folder.path, acked, pipe->write_end.get());
    pipe->write_end.reset();
    // Killed after so many acknowledgements, and a moment that is short beside a put.
    const uint64_t goal = acked + 1 + rng.below(60);
    while (acked < goal && acked < kBlocksMax) {
      uint64_t number = 0;
      std::byte bytes[8];
      REQUIRE_OK(read_all(pipe->read_end.get(), bytes, SystemClock::instance().now() + 60s));
      std::memcpy(&number, bytes, sizeof number);
      acked = number;
    }
    (void)wait_fd(pipe->read_end.get(), POLLIN, SystemClock::instance().now() + rng.below(300) * 1us);
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    for (std::byte bytes[8]; read_all(pipe->read_end.get(), bytes, SystemClock::instance().now() + 60s);)
      std::memcpy(&acked, bytes, sizeof acked);

    auto store = open_folder(folder.path);
    REQUIRE_OK(store);
    CHECK((*store)->restart().damaged.empty());
    CHECK((*store)->stats().evicted_blocks == 0);
    uint64_t lost = 0, wrong = 0;
    std::vector<std::byte> room(12'000);
    for (uint64_t n = 0; n < acked; ++n) {
      Get get{.id = id_of(n), .room = room};
      (*store)->get({&get, 1});
      const auto value = value_of(n);
      lost += get.code == Code::not_found;
      wrong += get.code != Code::not_found && (get.code != Code::ok || get.bytes != value.size() ||
                                               !std::equal(value.begin(), value.end(), room.begin()));
    }
    INFO("seed ", mc::test::seed(), " round ", round, " acked ", acked);
    CHECK(lost == 0);
    CHECK(wrong == 0);
  }
  MESSAGE(lives, " lives, ", acked, " acknowledged blocks");
}

}  // namespace kill_test

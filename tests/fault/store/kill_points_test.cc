// kill -9 at each point of a store's life. A script of all kinds of calls runs in a process of its own, which is killed
// before a chosen system call that changes the disk, or in the middle of a chosen write. Then the store is opened
// again: every call that had returned must be there, the call under way counts in part at most, and no byte is wrong.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <new>
#include <vector>

#include "base/rng.h"
#include "count.h"
#include "store/disk_memory.h"
#include "store/store.h"
#include "unit/store/folder.h"

using namespace mc;
using namespace mc::store;

namespace kill_points_test {

/// Shared with the process that is killed.
struct Progress {
  std::atomic<uint64_t> calls{0};                  // of the store that have returned
  std::atomic<uint64_t> points{0};                 // system calls that change the disk
  std::array<std::atomic<bool>, 4096> is_write{};  // by point
};
Progress* g_progress = nullptr;  // null: no point is counted
uint64_t g_kill_at = 0;          // the point; 0: none
bool g_kill_within = false;      // after a part of the write

/// Before a system call that changes the disk. True: it is a write, of which a part is to be made before the end.
bool pass_point(bool is_write) {
  if (g_progress == nullptr) return false;
  const uint64_t point = ++g_progress->points;
  g_progress->is_write.at(point) = is_write;
  if (point != g_kill_at) return false;
  if (is_write && g_kill_within) return true;
  ::kill(::getpid(), SIGKILL);
  return false;
}

ssize_t write_part(int fd, std::span<const iovec> parts, off_t offset) {
  uint64_t left = bytes_of(parts) / kPageBytes / 2 * kPageBytes;
  std::vector<iovec> some;
  for (const iovec& part : parts) {
    some.push_back({part.iov_base, std::min<size_t>(part.iov_len, left)});
    left -= some.back().iov_len;
  }
  (void)::syscall(SYS_pwritev, fd, some.data(), some.size(), offset, 0);
  ::kill(::getpid(), SIGKILL);
  return -1;
}

}  // namespace kill_points_test

// In place of the C library's: the program's own definitions are those that are linked.
extern "C" {
ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  if (kill_points_test::pass_point(true))
    return kill_points_test::write_part(fd, {parts, static_cast<size_t>(count)}, offset);
  return ::syscall(SYS_pwritev, fd, parts, count, offset, 0);
}
int fsync(int fd) {
  kill_points_test::pass_point(false);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
int fdatasync(int fd) {
  kill_points_test::pass_point(false);
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  kill_points_test::pass_point(false);
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, bytes));
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  kill_points_test::pass_point(false);
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, 0));
}
int unlinkat(int folder, const char* name, int flags) noexcept {
  kill_points_test::pass_point(false);
  return static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
}
}

namespace kill_points_test {

/// Memory: what was written before a kill is there, flushed or not, and flushes to a real disk would take most of the
/// time.
const std::string kFolders = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : mc::test::binary_dir();
constexpr size_t kIds = 12;
constexpr uint64_t kSegment = 64 << 10;  // 16 pages
constexpr size_t kCalls = 120;
constexpr size_t kRoom = 8192;                // of the largest block
using Versions = std::array<uint32_t, kIds>;  // 0 = no block

Id128 id_of(size_t n) {
  Id128 id;
  id.bytes[0] = static_cast<uint8_t>(n * 31 + 7);
  id.bytes[15] = 2;
  return id;
}

constexpr uint32_t kVersionsMax = 255;  // each has a first byte of its own

std::vector<std::byte> content_of(size_t n, uint32_t version) {
  static constexpr size_t kSizes[] = {1, 4095, 4096, 5000, 8192};
  std::vector<std::byte> out(kSizes[(n + version) % std::size(kSizes)]);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(n + version + i % 251 * (2 * n + 1));
  return out;
}

/// One call of the script. Each block of it makes a state of its own, but for an exchange, which makes one.
struct Call {
  enum class Kind : uint8_t { open, put, drop, exchange, read, flush, maintain } kind;
  Level level = Level::written;
  std::vector<size_t> blocks = {};  // of a put or drop; of an exchange, the first one is put and the others dropped
  uint32_t version = 0;             // of the first block that is put; the next ones follow
};

/// Calls that fill the store several times over, so that segments are sealed and taken back.
std::vector<Call> script_of(uint64_t seed) {
  Rng rng(seed);
  uint32_t version = 0;
  std::vector<Call> out = {{Call::Kind::open}};
  const auto add = [&](Call::Kind kind, size_t blocks) {
    Call call{kind, rng.chance(0.5) ? Level::durable : Level::written};
    // Blocks that are put seldom are in the oldest segment when that is taken back.
    const size_t group = rng.chance(0.1) ? 1 : 0, first = rng.below(kIds / 2);
    for (size_t i = 0; i < blocks; ++i) call.blocks.push_back(group * kIds / 2 + (first + i) % (kIds / 2));
    call.version = version + 1;
    version += static_cast<uint32_t>(blocks);
    out.push_back(std::move(call));
  };
  for (size_t i = 0; i < kCalls; ++i) {
    const uint64_t draw = rng.below(20);
    if (i == kCalls / 2)
      out.push_back({Call::Kind::open});  // the store is closed before
    else if (draw < 11)
      add(Call::Kind::put, 1 + rng.below(3));
    else if (draw < 13)
      add(Call::Kind::drop, 1 + rng.below(2));
    else if (draw < 15)
      add(Call::Kind::exchange, 2 + rng.below(2));
    else if (draw < 17)
      add(Call::Kind::read, 1);
    else
      out.push_back({draw == 17 ? Call::Kind::flush : Call::Kind::maintain});
  }
  return out;
}

Options options_of(bool keeps_all) {
  return {.capacity_bytes = (keeps_all ? 12 : 4) * kSegment,
          .segment_bytes = kSegment,
          .id = {{0x21}},
          .keeps_all = keeps_all};
}

bool put(Store& store, const Call& call) {
  std::vector<std::vector<std::byte>> values;
  std::vector<Put> puts;
  for (size_t i = 0; i < call.blocks.size(); ++i) {
    values.push_back(content_of(call.blocks[i], call.version + static_cast<uint32_t>(i)));
    puts.push_back({.id = id_of(call.blocks[i]), .bytes = values.back()});
    if (call.kind == Call::Kind::exchange) break;
  }
  if (call.kind == Call::Kind::put) return store.put(puts, call.level).has_value();
  std::vector<Id128> dropped;
  for (size_t i = 1; i < call.blocks.size(); ++i) dropped.push_back(id_of(call.blocks[i]));
  return store.exchange(puts[0], dropped).has_value();
}

/// False: the call failed.
bool run_call(std::unique_ptr<Store>& store, const Call& call) {
  switch (call.kind) {
    case Call::Kind::open: return false;  // run by the caller, which has the disk
    case Call::Kind::put:
    case Call::Kind::exchange: return put(*store, call);
    case Call::Kind::drop: {
      std::vector<Id128> ids;
      for (const size_t n : call.blocks) ids.push_back(id_of(n));
      return store->drop(ids, call.level).has_value();
    }
    case Call::Kind::read: {
      std::vector<std::byte> room(kRoom);
      Get get{.id = id_of(call.blocks[0]), .room = room};
      store->get({&get, 1});
      return get.code == Code::ok || get.code == Code::not_found;
    }
    case Call::Kind::flush: return store->flush().has_value();
    case Call::Kind::maintain: return store->maintain().has_value();
  }
  return false;
}

/// The content of a store: for each id the version whose bytes it returns. `wrong` names a block with other bytes.
Versions versions_in(Store& store, uint32_t highest, std::string& wrong) {
  Versions out{};
  std::vector<std::byte> room(kRoom);
  for (size_t n = 0; n < kIds; ++n) {
    Get get{.id = id_of(n), .room = room};
    store.get({&get, 1});
    if (get.code == Code::not_found) continue;
    const auto version = (std::to_integer<uint32_t>(room[0]) - static_cast<uint32_t>(n)) % (kVersionsMax + 1);
    const auto value = content_of(n, version);
    const bool right = get.code == Code::ok && version > 0 && version <= highest && get.bytes == value.size() &&
                       std::equal(value.begin(), value.end(), room.begin());
    if (right) out[n] = version;
    if (!right) wrong = "block " + std::to_string(n) + " has bytes that were never put";
  }
  return out;
}

/// The states that the script goes through: one for each block, those of each call, and the blocks that the store has.
struct Expected {
  std::vector<Versions> states = {{}};
  std::vector<size_t> ends = {0};     // [k]: the last state after k calls
  std::vector<Versions> live = {{}};  // [k]: what the store had after k calls; older blocks may have made room
  uint32_t highest = 0;               // version
};

void add_states(const Call& call, Expected& out) {
  Versions state = out.states.back();
  const bool puts = call.kind == Call::Kind::put || call.kind == Call::Kind::exchange;
  for (size_t i = 0; i < call.blocks.size() && (puts || call.kind == Call::Kind::drop); ++i) {
    const bool is_put = call.kind == Call::Kind::put || (call.kind == Call::Kind::exchange && i == 0);
    const uint32_t version = call.version + static_cast<uint32_t>(i);
    state[call.blocks[i]] = is_put ? version : 0;
    if (is_put) out.highest = std::max(out.highest, version);
    if (call.kind != Call::Kind::exchange) out.states.push_back(state);
  }
  if (call.kind == Call::Kind::exchange) out.states.push_back(state);
  out.ends.push_back(out.states.size() - 1);
}

/// The script on a disk in memory, where nobody is killed.
Expected run_unkilled(const std::vector<Call>& script, bool keeps_all) {
  class Keeper final : public DiskWatcher {
   public:
    DiskImage image;
    int before(const Io& io, const std::string& name) override {
      uint64_t at = io.offset;
      for (const iovec& part : io.parts) {
        if (io.op == Io::Op::write) std::memcpy(image[name].data() + at, part.iov_base, part.iov_len);
        at += part.iov_len;
      }
      return 0;
    }
    int before_create(const std::string& name, uint64_t bytes) override {
      image[name].resize(bytes);
      return 0;
    }
    void removed(const std::string& name) override { image.erase(name); }
  } keeper;
  Expected out;
  std::unique_ptr<Store> store;
  uint64_t taken_back = 0;  // blocks of segments that were used again
  for (const Call& call : script) {
    if (call.kind == Call::Kind::open) {
      if (store) taken_back += store->stats().moved_blocks + store->stats().evicted_blocks;
      store.reset();
      auto opened = Store::open(std::make_unique<MemoryDisk>(keeper.image, &keeper), options_of(keeps_all));
      REQUIRE_OK(opened);
      store = std::move(*opened);
    } else {
      REQUIRE(run_call(store, call));
    }
    add_states(call, out);
    Versions live{};
    for (size_t n = 0; n < kIds; ++n)
      if (store->find(id_of(n))) live[n] = out.states.back()[n];
    out.live.push_back(live);
    if (keeps_all) REQUIRE(live == out.states.back());
  }
  REQUIRE(out.highest < kVersionsMax);
  REQUIRE(taken_back + store->stats().moved_blocks + store->stats().evicted_blocks > 0);
  return out;
}

/// The process that is killed. Exit status 0: the script ended before the point.
[[noreturn]] void run_until_killed(const std::string& folder, const std::vector<Call>& script, bool keeps_all,
                                   Progress& progress) {
  g_progress = &progress;
  std::unique_ptr<Store> store;
  for (const Call& call : script) {
    if (call.kind == Call::Kind::open) {
      store.reset();
      auto disk = open_disk("threads", folder);
      if (!disk) ::_exit(2);
      auto opened = Store::open(std::move(disk->disk), options_of(keeps_all));
      if (!opened) ::_exit(3);
      store = std::move(*opened);
    } else if (!run_call(store, call)) {
      ::_exit(4);
    }
    ++progress.calls;
  }
  store.reset();
  ::_exit(0);
}

/// Empty, or the promise that is broken after `calls` calls and a part of the next one.
std::string judge(const Expected& expected, const Versions& got, size_t calls, bool keeps_all) {
  const size_t next = std::min(calls + 1, expected.ends.size() - 1);
  const Versions& before = expected.states[expected.ends[calls]];
  const Versions& after = expected.states[expected.ends[next]];
  std::string why;
  for (size_t at = expected.ends[calls]; at <= expected.ends[next]; ++at) {
    const Versions& state = expected.states[at];
    why.clear();
    for (size_t n = 0; n < kIds; ++n) {
      // The space of a block may have been taken back, at the latest by the call under way.
      const bool stays = keeps_all || (expected.live[calls][n] == before[n] && expected.live[next][n] == after[n] &&
                                       before[n] == after[n]);
      if (got[n] == state[n] || (got[n] == 0 && !stays)) continue;
      why =
          "block " + std::to_string(n) + " has version " + std::to_string(got[n]) + ", not " + std::to_string(state[n]);
    }
    if (why.empty()) return {};
  }
  return why;
}

class Lives {
 public:
  Lives(uint64_t seed, bool keeps_all) : script_(script_of(seed)), keeps_all_(keeps_all) {
    expected_ = run_unkilled(script_, keeps_all);
    void* memory = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    progress_ = new (memory) Progress;
  }
  ~Lives() { ::munmap(progress_, sizeof(Progress)); }
  Lives(const Lives&) = delete;
  Lives& operator=(const Lives&) = delete;

  struct Kill {
    uint64_t point = 0;
    bool within = false;  // the write at this point
  };
  /// All kills that the script has room for.
  std::vector<Kill> kills() {
    const store_test::Folder folder(kFolders);
    REQUIRE(run(folder.path, {}) == 0);
    CHECK(progress_->calls == script_.size());
    std::vector<Kill> out;
    for (uint64_t point = 1; point <= progress_->points; ++point) {
      out.push_back({point, false});
      if (progress_->is_write.at(point)) out.push_back({point, true});
    }
    return out;
  }

  /// Empty, or what is wrong after a kill at that point.
  std::string check(const Kill& kill) {
    const store_test::Folder folder(kFolders);
    const int status = run(folder.path, kill);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) return "status " + std::to_string(status);
    return check_left(folder.path);
  }

 private:
  int run(const std::string& folder, const Kill& kill) {
    progress_->calls = 0, progress_->points = 0;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      g_kill_at = kill.point, g_kill_within = kill.within;
      run_until_killed(folder, script_, keeps_all_, *progress_);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status;
  }

  std::string check_left(const std::string& folder) {
    for (uint32_t life = 0; life < 2; ++life) {
      auto disk = open_disk("threads", folder);
      if (!disk) return disk.error().what;
      auto store = Store::open(std::move(disk->disk), options_of(keeps_all_));
      if (!store) return store.error().what;
      if (!(*store)->restart().damaged.empty()) return (*store)->restart().damaged.front();
      std::string wrong;
      Versions got = versions_in(**store, expected_.highest + 1, wrong);
      if (!wrong.empty()) return wrong;
      const uint32_t mark = expected_.highest + 1;  // the store goes on: block 0 of the second life
      if (life == 1) return got[0] == mark ? "" : "a block that was put after the kill is lost";
      if (auto why = judge(expected_, got, progress_->calls, keeps_all_); !why.empty()) return why;
      const auto value = content_of(0, mark);
      const Put put{.id = id_of(0), .bytes = value};
      if (auto done = (*store)->put({&put, 1}, Level::durable); !done) return done.error().what;
    }
    return {};
  }

  const std::vector<Call> script_;
  const bool keeps_all_;
  Expected expected_;
  Progress* progress_ = nullptr;
};

TEST_CASE("store: a kill at any system call that changes the disk loses nothing that was acknowledged") {
  uint64_t killed = 0, all = 0;
  Rng rng(mc::test::seed());
  const uint64_t scripts = mc::test::count(1, 5);
  for (uint64_t turn = 0; turn < 2 * scripts; ++turn) {
    const bool keeps_all = turn % 2 == 1;
    Lives lives(turn / 2, keeps_all);
    std::vector<Lives::Kill> kills = lives.kills();
    all += kills.size();
    const size_t wanted = mc::test::count<size_t>(60, kills.size());
    while (kills.size() > wanted) {
      std::swap(kills[rng.below(kills.size())], kills.back());
      kills.pop_back();
    }
    for (const Lives::Kill& kill : kills) {
      INFO("script ", turn / 2, " keeps_all ", keeps_all, " point ", kill.point, " within ", kill.within);
      CHECK(lives.check(kill) == "");
      ++killed;
    }
  }
  MESSAGE(killed, " of ", all, " kills");
}

}  // namespace kill_points_test

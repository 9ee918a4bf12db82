// The two ends of a power cut of a machine with a real file system (scripts/power-cuts).
//
//   power-store write FOLDER DEVICE OFFSET OPERATIONS    inside the machine
//   power-store check FOLDER ACKED...                    outside, on the folder as a power cut left it
//
// Each of kWriters threads makes a sequence of durable puts, overwrites and drops of its own ids. After each operation
// it writes the number of operations that were acknowledged into its own sector of the device. The sector is part of
// the record of the device's writes, so any point of that record shows what had been acknowledged by then. The check
// computes what these operations leave: a writer's ids must be in the state after the last acknowledged operation, or
// after the next one, which was under way.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/rng.h"
#include "store/store.h"

using namespace mc;
using namespace mc::store;

namespace {

constexpr uint32_t kWriters = 4;
constexpr uint64_t kIds = 40;  // of each writer
constexpr uint64_t kSegment = 1 << 20;
constexpr size_t kValueMax = 12'000;
constexpr size_t kRoomBytes = 12'288;  // for a value, in whole pages
constexpr size_t kSector = 512;
constexpr char kMark[8] = {'M', 'C', 'A', 'C', 'K', 'E', 'D', '1'};  // scripts/power-cuts finds sectors by it

// Blocks leave by drop() alone, so that every one of them can be asked for. The space of old versions is used again.
Options options() {
  Options out;
  out.capacity_bytes = 16 * kSegment, out.segment_bytes = kSegment, out.keeps_all = true;
  return out;
}

struct Operation {
  uint64_t id = 0;
  bool drops = false;
};

/// Operation `n` of a writer, from 0.
Operation operation_of(uint32_t writer, uint64_t n) {
  Rng rng(n * 31 + writer);
  return {rng.below(kIds), rng.chance(0.2)};
}

Id128 id_of(uint32_t writer, uint64_t id) {
  Id128 out;
  out.bytes[0] = static_cast<uint8_t>(writer + 1);
  out.bytes[15] = static_cast<uint8_t>(id);
  return out;
}

std::vector<std::byte> value_of(uint32_t writer, uint64_t n) {
  Rng rng(n * 977 + writer);
  std::vector<std::byte> out(1 + rng.below(kValueMax));
  for (std::byte& byte : out) byte = static_cast<std::byte>(rng.next());
  return out;
}

/// [id] = number of the operation whose value the id has, or kNone, after `count` operations.
constexpr uint64_t kNone = UINT64_MAX;
std::array<uint64_t, kIds> state_after(uint32_t writer, uint64_t count) {
  std::array<uint64_t, kIds> out;
  out.fill(kNone);
  for (uint64_t n = 0; n < count; ++n) {
    const Operation operation = operation_of(writer, n);
    out[operation.id] = operation.drops ? kNone : n;
  }
  return out;
}

int fail(const std::string& why) {
  std::fprintf(stderr, "power-store: %s\n", why.c_str());
  return 1;
}

Result<std::unique_ptr<Store>> open_folder(const std::string& folder) {
  MC_TRY(disk, open_disk("auto", folder));
  return Store::open(std::move(disk.disk), options());
}

bool apply(Store& store, uint32_t writer, uint64_t n) {
  const Operation operation = operation_of(writer, n);
  const Id128 id = id_of(writer, operation.id);
  if (operation.drops) return store.drop({&id, 1}, Level::durable).has_value();
  const auto value = value_of(writer, n);
  const Put put{.id = id, .bytes = value};
  return store.put({&put, 1}, Level::durable).has_value();
}

bool write_acked(int device, uint64_t offset, uint32_t writer, uint64_t acked) {
  alignas(4096) std::array<std::byte, kSector> sector{};
  std::memcpy(sector.data(), kMark, sizeof kMark);
  std::memcpy(sector.data() + 8, &writer, sizeof writer);
  std::memcpy(sector.data() + 16, &acked, sizeof acked);
  return ::pwrite(device, sector.data(), kSector, static_cast<off_t>(offset + writer * kSector)) ==
         static_cast<ssize_t>(kSector);
}

int write(const std::string& folder, const std::string& path, uint64_t offset, uint64_t operations) {
  auto store = open_folder(folder);
  if (!store) return fail(store.error().what);
  const Fd device(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
  if (device.get() < 0) return fail("cannot open " + path);
  std::atomic<bool> failed = false;
  std::vector<std::thread> threads;
  for (uint32_t writer = 0; writer < kWriters; ++writer)
    threads.emplace_back([&, writer] {
      for (uint64_t n = 0; n < operations && !failed; ++n)
        if (!apply(**store, writer, n) || !write_acked(device.get(), offset, writer, n + 1)) failed = true;
    });
  for (std::thread& thread : threads) thread.join();
  const Stats stats = (*store)->stats();
  if (failed) return fail("an operation failed: " + stats.last_fault);
  std::printf("groups %llu flushes %llu moved %llu\n", static_cast<unsigned long long>(stats.groups),
              static_cast<unsigned long long>(stats.flushes), static_cast<unsigned long long>(stats.moved_blocks));
  return 0;
}

/// The number of the operation whose value this is, or kNone. Other bytes end the check.
bool find_version(Store& store, uint32_t writer, uint64_t id, uint64_t acked, uint64_t& version) {
  std::vector<std::byte> room(kRoomBytes);
  Get get{.id = id_of(writer, id), .room = room};
  store.get({&get, 1});
  version = kNone;
  if (get.code == Code::not_found) return true;
  if (get.code != Code::ok) return false;
  for (uint64_t n = acked + 1; n-- > 0;) {
    const Operation operation = operation_of(writer, n);
    if (operation.id != id || operation.drops) continue;
    const auto value = value_of(writer, n);
    if (value.size() != get.bytes || !std::equal(value.begin(), value.end(), room.begin())) continue;
    version = n;
    return true;
  }
  return false;
}

int check(const std::string& folder, const std::vector<uint64_t>& acked) {
  auto store = open_folder(folder);
  if (!store) return fail(store.error().what);
  int wrong = 0;
  for (uint32_t writer = 0; writer < kWriters; ++writer) {
    std::array<uint64_t, kIds> found;
    for (uint64_t id = 0; id < kIds; ++id)
      if (!find_version(**store, writer, id, acked[writer], found[id]))
        wrong += fail("wrong bytes of id " + std::to_string(id) + " of writer " + std::to_string(writer));
    if (found != state_after(writer, acked[writer]) && found != state_after(writer, acked[writer] + 1))
      wrong += fail("writer " + std::to_string(writer) + " is not where " + std::to_string(acked[writer]) +
                    " acknowledged operations leave it");
  }
  for (const std::string& damage : (*store)->restart().damaged) std::fprintf(stderr, "damaged: %s\n", damage.c_str());
  return wrong > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "write" && argc == 6)
    return write(argv[2], argv[3], std::strtoull(argv[4], nullptr, 10), std::strtoull(argv[5], nullptr, 10));
  if (mode == "check" && argc == 3 + static_cast<int>(kWriters)) {
    std::vector<uint64_t> acked;
    for (int i = 3; i < argc; ++i) acked.push_back(std::strtoull(argv[i], nullptr, 10));
    return check(argv[2], acked);
  }
  return fail("usage: power-store write FOLDER DEVICE OFFSET OPERATIONS | check FOLDER ACKED...");
}

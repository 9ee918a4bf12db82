// The store against a map in memory, on every kind of disk: random operations that lean to the edges, with restarts,
// and several threads at once.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <thread>

#include "base/rng.h"
#include "count.h"
#include "store/disk_memory.h"
#include "store/store.h"
#include "unit/store/folder.h"

using namespace mc;
using namespace mc::store;

namespace model_test {

constexpr uint64_t kSegment = 256 << 10;

Id128 id_of(uint64_t n) {
  Id128 id;
  id.bytes[0] = static_cast<uint8_t>(n * 53 + 9);
  id.bytes[14] = static_cast<uint8_t>(n >> 8);
  id.bytes[15] = static_cast<uint8_t>(n);
  return id;
}

/// The definition of a store: the last value of every id.
using Model = std::map<uint64_t, std::vector<std::byte>>;

std::vector<std::byte> random_value(Rng& rng) {
  static constexpr size_t kEdges[] = {1, 2, 4095, 4096, 4097, 8191, 8192, 65536, 100'000, 200'000};
  std::vector<std::byte> out(rng.chance(0.7) ? kEdges[rng.below(std::size(kEdges))] : 1 + rng.below(30'000));
  const uint64_t word = rng.next();
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>((word >> i % 57) + i * 31);
  return out;
}

/// Memory that is aligned to pages or not, so that both ways into and out of the store are taken.
struct Room {
  explicit Room(size_t bytes, size_t shift) : memory(bytes + 8192) {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    start = (address + 4095) / 4096 * 4096 - address + shift;
  }
  std::span<std::byte> bytes(size_t count) { return std::span(memory).subspan(start, count); }
  std::vector<std::byte> memory;
  size_t start;
};

/// `whole` = nothing may have been evicted.
void check_all(Store& store, const Model& model, uint64_t ids, bool whole, Rng& rng) {
  std::vector<Room> rooms;
  std::vector<Get> gets;
  for (uint64_t n = 0; n < ids; ++n) rooms.emplace_back(204'800, rng.chance(0.5) ? 0 : 1 + rng.below(100));
  for (uint64_t n = 0; n < ids; ++n) gets.push_back({.id = id_of(n), .room = rooms[n].bytes(204'800)});
  store.get(gets);
  for (uint64_t n = 0; n < ids; ++n) {
    CAPTURE(n);
    const auto expected = model.find(n);
    if (expected == model.end()) {
      CHECK(gets[n].code == Code::not_found);
      continue;
    }
    if (!whole && gets[n].code == Code::not_found) continue;
    REQUIRE(gets[n].code == Code::ok);
    REQUIRE(gets[n].bytes == expected->second.size());
    CHECK(std::equal(expected->second.begin(), expected->second.end(), gets[n].room.begin()));
  }
}

struct World {
  std::string kind, folder;
  uint64_t capacity;
  std::unique_ptr<Store> store;

  void open() {
    store.reset();
    auto disk = open_disk(kind, folder);
    REQUIRE_OK(disk);
    auto opened = Store::open(std::move(disk->disk), {.capacity_bytes = capacity, .segment_bytes = kSegment});
    REQUIRE_OK(opened);
    store = std::move(*opened);
    CHECK(store->restart().damaged.empty());
  }
};

void step(World& world, Model& model, uint64_t ids, Rng& rng) {
  const Level level = rng.chance(0.3) ? Level::durable : Level::written;
  const uint64_t kind = rng.below(10);
  if (kind < 6) {
    std::vector<std::vector<std::byte>> values;
    std::vector<uint64_t> names;
    std::vector<Room> rooms;
    std::vector<Put> puts;
    for (uint64_t i = 0; i < 1 + rng.below(5); ++i) {
      names.push_back(rng.below(ids));
      values.push_back(random_value(rng));
      rooms.emplace_back(values.back().size(), rng.chance(0.5) ? 0 : 1 + rng.below(4000));
    }
    for (size_t i = 0; i < names.size(); ++i) {
      const auto bytes = rooms[i].bytes(values[i].size());
      std::copy(values[i].begin(), values[i].end(), bytes.begin());
      puts.push_back({.id = id_of(names[i]), .bytes = bytes});
    }
    REQUIRE_OK(world.store->put(puts, level));
    for (size_t i = 0; i < names.size(); ++i) model[names[i]] = values[i];
  } else if (kind < 8) {
    const uint64_t n = rng.below(ids + 1);  // one that was never put, too
    const Id128 id = id_of(n);
    REQUIRE_OK(world.store->drop({&id, 1}, level));
    model.erase(n);
  } else if (kind < 9) {
    REQUIRE_OK(world.store->maintain());
  } else {
    const uint64_t n = rng.below(ids);
    std::vector<std::byte> room(1);
    Get get{.id = id_of(n), .room = room};
    world.store->get({&get, 1});
    const auto expected = model.find(n);
    if (expected != model.end() && get.code != Code::not_found) {
      CHECK(get.bytes == expected->second.size());
      CHECK(get.code == (get.bytes > 1 ? Code::no_space : Code::ok));
    }
  }
}

TEST_CASE("store: every kind of disk agrees with a map, over restarts, with and without eviction") {
  for (const DiskEntry* entry : disks()) {
    const std::string kind = entry->name;
    for (const uint64_t capacity : {uint64_t{4} * kSegment, uint64_t{64} * kSegment}) {
      CAPTURE(kind);
      CAPTURE(capacity);
      CAPTURE(mc::test::seed());
      const store_test::Folder folder;
      if (auto usable = open_disk(kind, folder.path); !usable) {
        MESSAGE(usable.error().what);
        continue;
      }
      Rng rng(mc::test::seed() + capacity);
      World world{kind, folder.path, capacity, nullptr};
      world.open();
      Model model;
      const uint64_t ids = 24;
      const int steps = mc::test::count(120, 3000);
      for (int i = 0; i < steps; ++i) {
        step(world, model, ids, rng);
        if (i % 40 == 39) {
          const store::Stats stats = world.store->stats();
          check_all(*world.store, model, ids, stats.evicted_blocks == 0 && capacity > 4 * kSegment && i < 200, rng);
          uint64_t blocks = 0, bytes = 0;
          world.store->for_each([&](const Id128&, uint32_t size) {
            ++blocks;
            bytes += size;
          });
          CHECK(blocks == stats.blocks);
          CHECK(bytes == stats.live_bytes);
          CHECK(stats.faults == 0);
        }
        if (kind != "memory" && i % 50 == 49) {
          const uint64_t before = world.store->stats().blocks;
          world.open();
          CHECK(world.store->restart().blocks == before);
        }
      }
      CHECK(world.store->stats().segments <= std::max<uint64_t>(capacity / kSegment, 4));
    }
  }
}

TEST_CASE("store: threads that put, get and drop at once see their own last value") {
  for (const DiskEntry* entry : disks()) {
    const std::string kind = entry->name;
    CAPTURE(kind);
    const store_test::Folder folder;
    if (!open_disk(kind, folder.path)) continue;
    World world{kind, folder.path, 16 * kSegment, nullptr};
    world.open();
    std::atomic<uint64_t> wrong{0}, found{0};
    {
      std::vector<std::jthread> threads;
      for (uint64_t number = 0; number < 6; ++number)
        threads.emplace_back([&, number] {
          Rng rng(mc::test::seed() * 10 + number);
          const int rounds = mc::test::count(60, 2000);
          for (int i = 0; i < rounds; ++i) {
            const Id128 id = id_of(number * 8 + rng.below(8));  // no other thread writes it
            const std::vector<std::byte> value = random_value(rng);
            const Put put{.id = id, .bytes = value};
            if (!world.store->put({&put, 1}, rng.chance(0.5) ? Level::durable : Level::written)) ++wrong;
            std::vector<std::byte> room(value.size());
            Get get{.id = id, .room = room};
            world.store->get({&get, 1});
            if (get.code == Code::ok && room != value) ++wrong;
            if (get.code != Code::ok && get.code != Code::not_found) ++wrong;
            found += get.code == Code::ok;
            if (rng.chance(0.3)) {
              if (!world.store->drop({&id, 1}, Level::written)) ++wrong;
              if (world.store->find(id)) ++wrong;
            }
            if (rng.chance(0.1) && !world.store->maintain()) ++wrong;
          }
        });
    }
    CHECK(wrong == 0);
    CHECK(found > 100);
    CHECK(world.store->stats().faults == 0);
  }
}

}  // namespace model_test

// The disk of values (host/value_disk.h) over a simulated disk, behind the calls of the door.
#include "host/value_disk.h"

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "count.h"
#include "host/value_check.h"
#include "host/value_ids.h"
#include "store/pages.h"
#include "values_node.h"

using namespace mc;
using namespace mc::node;

namespace value_disk_test {

using test::text;
using Node = test::ValuesNode;

TEST_CASE("host/value_disk: acknowledged values of all sizes are there after a power cut, and removed ones are not") {
  const size_t sizes[] = {0, 1, 4096, 5000, 200'000, 3'000'000};
  store::DiskImage image;
  {
    Node node;
    for (const size_t size : sizes) REQUIRE_OK(node.put("k" + std::to_string(size), text(size)));
    REQUIRE_OK(node.put("gone", text(9000)));
    REQUIRE_OK(node.values->remove({"t", "gone"}));
    image = node.faults.durable;
  }
  Node again(image);
  for (const size_t size : sizes) CHECK(again.get("k" + std::to_string(size)) == text(size));
  CHECK(again.get("gone") == "MC4007");
}

TEST_CASE("host/value_disk: the last acknowledged value of a key wins after a power cut at any time") {
  store::DiskImage image;
  Node node;
  for (char c = 'a'; c < 'k'; ++c) {
    REQUIRE_OK(node.put("k", text(5000, c), {.replaces = true}));
    if (c % 2 == 0) node.values->drop_unneeded();
    Node again(node.faults.durable);
    CHECK(again.get("k") == text(5000, c));
  }
  REQUIRE_OK(node.values->remove({"t", "k"}));
  Node again(node.faults.durable);
  CHECK(again.get("k") == "MC4007");
}

TEST_CASE("host/value_disk: a value that leaves memory is read from disk, and evicts no value that has no copy there") {
  Node node({}, 100'000);
  for (int i = 0; i < 8; ++i) REQUIRE_OK(node.put("k" + std::to_string(i), text(40'000, static_cast<char>('a' + i))));
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 8; ++i) CHECK(node.get("k" + std::to_string(i)) == text(40'000, static_cast<char>('a' + i)));
  CHECK(!node.values->is_in_memory({"t", "k0"}));
  CHECK(node.values->is_in_memory({"t", "k7"}));
}

TEST_CASE("host/value_disk: times to live and pins go on after a restart") {
  VirtualClock clock;
  store::DiskImage image;
  {
    Node node({}, 1 << 20, &clock);
    REQUIRE_OK(node.put("short", "s", {.ttl = 10s}));
    REQUIRE_OK(node.put("long", "l", {.ttl = 100s, .pin = 50s}));
    REQUIRE_OK(node.put("pinned", "p"));
    REQUIRE_OK(node.values->pin({"t", "pinned"}, Duration::max()));
    image = node.faults.durable;
  }
  clock.advance(20s);
  Node again(image, 1 << 20, &clock);
  CHECK(again.get("short") == "MC4007");
  auto info = again.values->find({"t", "long"});
  REQUIRE_OK(info);
  REQUIRE(info->ttl.has_value());
  CHECK(*info->ttl > 79s);
  CHECK(*info->ttl < 81s);
  CHECK(info->pin > 29s);
  info = again.values->find({"t", "pinned"});
  REQUIRE_OK(info);
  CHECK(info->pin == Duration::max());
  clock.advance(81s);
  CHECK(again.get("long") == "MC4007");
  CHECK(again.values->expire());
  again.values->drop_unneeded();
  CHECK(!again.values->expire());
}

TEST_CASE("host/value_disk: copies and moved values outlive their sources, also after a power cut") {
  Node node;
  REQUIRE_OK(node.put("a", text(30'000)));
  REQUIRE_OK(node.values->copy({"t", "a"}, {"t", "b"}, false));
  REQUIRE_OK(node.values->remove({"t", "a"}));
  REQUIRE_OK(node.values->move({"t", "b"}, {"t", "c"}, false));
  REQUIRE_OK(node.values->copy({"t", "c"}, {"t", "d"}, false));
  Node again(node.faults.durable);
  CHECK(again.get("a") == "MC4007");
  CHECK(again.get("b") == "MC4007");
  CHECK(again.get("c") == text(30'000));
  CHECK(again.get("d") == text(30'000));
  REQUIRE_OK(again.values->remove({"t", "c"}));
  CHECK(again.get("d") == text(30'000));
  CHECK(again.values->move({"t", "d"}, {"t", "d"}, false).has_value());
}

TEST_CASE("host/value_disk: damaged bytes are an error with a number and never a wrong value") {
  Node node;
  REQUIRE_OK(node.put("k", text(5000)));
  REQUIRE_OK(node.put("other", text(6000, 'o')));
  const store::DiskImage image = node.faults.durable;
  uint64_t refused = 0, lost = 0;
  const size_t stride = test::count(size_t{2560}, size_t{1024});
  for (const auto& [name, bytes] : image)
    for (size_t at = 100; name.starts_with("seg.") && at < bytes.size() && at < 64 * 4096; at += stride) {
      store::DiskImage bad = image;
      bad[name][at] ^= std::byte{0x10};
      CAPTURE(name);
      CAPTURE(at);
      Node again(bad);
      const std::string got = again.get("k");
      CHECK((got == text(5000) || got == "MC6004" || got == "MC4007"));
      if (got == "MC6004") {
        const auto next = again.values->get({"t", "k"}, {});
        REQUIRE_FALSE(next.has_value());
        CHECK(next.error().mc == err::kNotFound);
        CHECK(next.error().what.find("damaged") != std::string::npos);
      }
      refused += got == "MC6004", lost += got == "MC4007";
      REQUIRE_OK(again.put("k", "new", {.replaces = true}));
      CHECK(again.get("k") == "new");
      REQUIRE_OK(again.values->remove({"t", "k"}));
      CHECK(again.values->get({"t", "k"}, {}).error().what.find("damaged") == std::string::npos);
    }
  CHECK(refused > 0);
  CHECK(lost > 0);
}

TEST_CASE("host/value_disk: a disk that refuses is an error of its own, and the key keeps the value that it had") {
  Node node;
  REQUIRE_OK(node.put("k", "old"));
  node.faults.fail = [](const store::Io& io, const std::string&) { return io.op == store::Io::Op::flush ? EIO : 0; };
  CHECK(node.put("k", "new", {.replaces = true}).error().mc == err::kValueDisk);
  CHECK(node.values->remove({"t", "k"}).error().mc == err::kValueDisk);
  CHECK(node.get("k") == "old");
  node.faults.fail = nullptr;
  REQUIRE_OK(node.values->remove({"t", "k"}));
  CHECK(node.get("k") == "MC4007");
}

TEST_CASE("host/value_disk: a full store refuses, keeps all that it acknowledged, and takes more after a removal") {
  Node node({}, 1 << 20);
  std::vector<std::string> kept;
  for (int i = 0; i < 1000; ++i) {
    const std::string key = "k" + std::to_string(i);
    const auto done = node.put(key, text(100'000, static_cast<char>('a' + i % 20)));
    if (!done) {
      CHECK(done.error().mc == err::kStoreFull);
      break;
    }
    kept.push_back(key);
  }
  REQUIRE(kept.size() > 60);
  REQUIRE(kept.size() < 1000);
  // Space that was freed is found again, round after round.
  for (int round = 0; round < test::count(100, 300); ++round) {
    const std::string& key = kept[static_cast<size_t>(round * 7) % kept.size()];
    REQUIRE_OK(node.values->remove({"t", key}));
    REQUIRE_OK(node.put(key, text(100'000, static_cast<char>('a' + round % 20))));
    CHECK(node.get(key) == text(100'000, static_cast<char>('a' + round % 20)));
  }
  Node again(node.faults.durable);
  for (const std::string& key : kept) CHECK(again.get(key).size() == 100'000);
}

TEST_CASE("host/value_disk: a value of level d1 is on disk once the work behind its answer is done") {
  Node node;
  door::StoredValues::Later later;
  REQUIRE_OK(
      node.values->put({"t", "k"}, std::make_shared<const ValueBytes>("v"), {.durability = Durability::d1}, &later));
  CHECK(Node(node.faults.durable).get("k") == "MC4007");
  REQUIRE(later);
  later();
  later = nullptr;
  CHECK(Node(node.faults.durable).get("k") == "v");
}

TEST_CASE("host/value_disk: a level that the node has not is refused with a number of its own") {
  Node node;
  CHECK(node.put("k", "v", {.durability = Durability::d3}).error().mc == err::kNotDurable);
  VirtualClock clock;
  door::StoredValues values({.memory_bytes = 1 << 20, .value_bytes_max = 1 << 20, .lease_max = 5s}, nullptr, clock);
  CHECK(values.put({"t", "k"}, std::make_shared<const ValueBytes>("v"), {.durability = Durability::d2}).error().mc ==
        err::kNotDurable);
}

TEST_CASE("host/value_disk: random calls and power cuts keep what was acknowledged") {
  const uint64_t seeds = test::count<uint64_t>(8, 2000);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    std::map<std::string, std::string> model;
    auto node = std::make_unique<Node>(store::DiskImage{}, 200'000);
    for (int step = 0; step < 150; ++step) {
      const std::string key = "k" + std::to_string(rng.below(10)), other = "k" + std::to_string(rng.below(10));
      const uint64_t what = rng.below(10);
      if (what < 5) {
        const std::string bytes = text(rng.below(60'000), static_cast<char>('a' + rng.below(20)));
        if (node->put(key, bytes, {.replaces = true})) model[key] = bytes;
      } else if (what == 5) {
        CHECK(node->values->remove({"t", key}).has_value() == (model.erase(key) > 0));
      } else if (what == 6) {
        if (node->values->copy({"t", key}, {"t", other}, true) && key != other) model[other] = model[key];
      } else if (what == 7) {
        if (node->values->move({"t", key}, {"t", other}, true) && key != other)
          model[other] = model[key], model.erase(key);
      } else if (what == 8) {
        node->values->drop_unneeded();
      } else {
        node = std::make_unique<Node>(node->faults.durable, 200'000);
      }
      CHECK(node->get(key) == (model.contains(key) ? model[key] : "MC4007"));
    }
    node = std::make_unique<Node>(node->faults.durable, 200'000);
    for (int i = 0; i < 10; ++i) {
      const std::string key = "k" + std::to_string(i);
      CHECK(node->get(key) == (model.contains(key) ? model[key] : "MC4007"));
    }
  }
}

TEST_CASE("host/value_disk: when the file system is full, a put that has no room is refused and writes nothing") {
  Node node({}, 1 << 20);
  const uint64_t whole = node.disk->capacity_bytes();
  int left = 4;  // segments that still find room
  node.faults.fail_create = [&](const std::string&) { return left-- > 0 ? 0 : ENOSPC; };
  std::vector<std::string> kept;
  for (int i = 0; i < 1000; ++i) {
    const std::string key = "k" + std::to_string(i);
    const auto done = node.put(key, text(100'000, static_cast<char>('a' + i % 20)));
    node.values->drop_unneeded();
    if (!done) {
      CHECK(done.error().mc == err::kStoreFull);
      break;
    }
    kept.push_back(key);
  }
  CHECK(left < 0);
  CHECK(node.disk->capacity_bytes() < whole / 2);
  REQUIRE(kept.size() < 100);
  uint64_t written = 0;
  node.faults.fail = [&](const store::Io& io, const std::string&) {
    for (const iovec& part : io.parts) written += io.op == store::Io::Op::write ? part.iov_len : 0;
    return 0;
  };
  for (int i = 0; i < 20; ++i) CHECK(node.put("more", text(100'000)).error().mc == err::kStoreFull);
  CHECK(written < 20 * 100'000);  // their records are taken back
  node.faults.fail = nullptr;
  while (node.disk->used_bytes() > node.disk->capacity_bytes()) {
    REQUIRE_OK(node.values->remove({"t", kept.back()}));
    kept.pop_back();
  }
  REQUIRE(kept.size() > 10);
  for (int round = 0; round < 50; ++round) {
    const std::string& key = kept[static_cast<size_t>(round * 7) % kept.size()];
    REQUIRE_OK(node.values->remove({"t", key}));
    REQUIRE_OK(node.put(key, text(100'000, 'z')));
  }
  Node again(node.faults.durable);
  for (const std::string& key : kept) CHECK(again.get(key).size() == 100'000);
}

/// The files after the newest record got another version.
store::DiskImage with_record_version(const store::DiskImage& image, std::byte version) {
  test::Faults faults;
  {
    const auto store = test::open_store(image, faults);
    std::vector<Id128> records;
    store->for_each([&](const Id128& id, uint32_t) {
      if (host::kind_of(id) == host::ValueBlock::record) records.push_back(id);
    });
    REQUIRE(!records.empty());
    const auto newest = std::max_element(records.begin(), records.end(), [](const Id128& a, const Id128& b) {
      return host::number_of(a) < host::number_of(b);
    });
    store::PageBuffer memory;
    store::Get get{.id = *newest, .room = memory.room(store::kPageBytes)};
    store->get({&get, 1});
    REQUIRE(get.code == Code::ok);
    get.room[4] = version;
    const store::Put put{.id = get.id, .bytes = get.room.first(get.bytes)};
    REQUIRE_OK(store->put({&put, 1}, store::Level::durable));
  }
  return faults.durable;
}

TEST_CASE("host/value_disk: a start that cannot read a record leaves its bytes for a start that can") {
  Node node;
  REQUIRE_OK(node.put("k", text(5000)));
  Node older(with_record_version(node.faults.durable, std::byte{2}));
  CHECK(older.get("k") == "MC4007");
  REQUIRE_OK(older.put("other", text(100)));
  REQUIRE_OK(older.values->remove({"t", "other"}));
  Node again(with_record_version(older.faults.durable, std::byte{1}));
  CHECK(again.get("k") == text(5000));
}

TEST_CASE("host/value_disk: a start that cannot read the newest record of a key serves no older value of it") {
  Node node;
  REQUIRE_OK(node.put("other", "kept"));
  REQUIRE_OK(node.put("k", "old"));
  REQUIRE_OK(node.put("k", "new", {.replaces = true}));  // the older record stays until upkeep drops it
  Node later(with_record_version(node.faults.durable, std::byte{2}));
  CHECK(later.get("k") == "MC4007");
  CHECK(later.get("other") == "kept");
  Node again(with_record_version(later.faults.durable, std::byte{1}));
  CHECK(again.get("k") == "new");
  CHECK(again.get("other") == "kept");
}

/// The findings of a check, and the files afterwards.
struct Checked {
  host::ValueFindings found;
  store::DiskImage image;
};
Checked check(const store::DiskImage& image, bool repairs) {
  test::Faults faults;
  faults.written = faults.durable = image;
  const auto open = [&](store::Access access) -> Result<std::unique_ptr<store::Disk>> {
    if (access == store::Access::read_only) CHECK(faults.written == image);
    return std::unique_ptr<store::Disk>(new store::MemoryDisk(faults.written, &faults));
  };
  auto found = host::check_values(open, test::kCapacity, repairs);
  REQUIRE_OK(found);
  return {std::move(*found), faults.durable};
}

TEST_CASE("host/value_check: sound values stay as they are, also with repair") {
  Node node;
  REQUIRE_OK(node.put("a", text(3'000'000)));
  REQUIRE_OK(node.put("b", ""));
  REQUIRE_OK(node.values->copy({"t", "a"}, {"t", "c"}, false));
  const store::DiskImage image = node.faults.durable;
  for (const bool repairs : {false, true}) {
    const Checked done = check(image, repairs);
    CHECK(done.found.values == 3);
    CHECK(done.found.bytes == 6'000'000);
    CHECK(done.found.damaged.empty());
    CHECK(done.image == image);
  }
  Node other;
  test::Faults faults;
  CHECK(host::holds_values(*test::open_store(image, faults, store::Access::read_only)));
  CHECK(!host::holds_values(*test::open_store(other.faults.durable, faults, store::Access::read_only)));
}

TEST_CASE("host/value_check: repair drops the values alone whose checksum fails, and no old value comes back") {
  Node node;
  REQUIRE_OK(node.put("k", "old"));
  REQUIRE_OK(node.put("k", text(50'000, 'n'), {.replaces = true}));
  REQUIRE_OK(node.put("sound", text(5000)));
  const store::DiskImage image = node.faults.durable;
  int damaged = 0;
  const size_t stride = test::count(size_t{2}, size_t{1}) * 4096;
  for (const auto& [name, bytes] : image)
    for (size_t at = 100; name.starts_with("seg.") && at < bytes.size() && at < 32 * 4096; at += stride) {
      store::DiskImage bad = image;
      bad[name][at] ^= std::byte{0x10};
      CAPTURE(name);
      CAPTURE(at);
      const Checked looked = check(bad, false);
      CHECK(looked.image == bad);
      const Checked repaired = check(bad, true);
      damaged += !looked.found.damaged.empty();
      CHECK(repaired.found.dropped == looked.found.damaged.size());
      CHECK(check(repaired.image, false).found.damaged.empty());
      const bool sound_is_damaged = std::any_of(looked.found.damaged.begin(), looked.found.damaged.end(),
                                                [](const auto& one) { return one.name == "sound"; });
      Node before(bad), after(repaired.image);
      CHECK(after.get("sound") == (sound_is_damaged ? "MC4007" : before.get("sound")));
      const std::string got = after.get("k"), was = before.get("k");
      CHECK(got == (was == "MC6004" ? "MC4007" : was));
    }
  CHECK(damaged > test::count(5, 10));
}

TEST_CASE("host/value_check: a record of a newer version is named and stays") {
  Node node;
  REQUIRE_OK(node.put("k", text(5000)));
  const Checked done = check(with_record_version(node.faults.durable, std::byte{2}), true);
  REQUIRE(done.found.damaged.size() == 1);
  CHECK(!done.found.damaged.front().is_lost);
  CHECK(done.found.dropped == 0);
  CHECK(Node(with_record_version(done.image, std::byte{1})).get("k") == text(5000));
}

/// The files with one more block, which somebody made who may write the directory.
store::DiskImage with_block(const store::DiskImage& image, const Id128& id, const wire::ValueRecord& record) {
  test::Faults faults;
  {
    const auto store = test::open_store(image, faults);
    const std::vector<std::byte> bytes = wire::encode(record);
    const store::Put put{.id = id, .bytes = bytes};
    REQUIRE_OK(store->put({&put, 1}, store::Level::durable));
  }
  return faults.durable;
}

TEST_CASE("host/value_disk: crafted records with right checksums are lost values, and end neither node nor check") {
  Node node;
  REQUIRE_OK(node.put("k", text(5000)));
  const store::DiskImage image = node.faults.durable;
  constexpr uint64_t kIdNumberMost = (uint64_t{1} << 40) - 1;
  const auto record_of = [](uint64_t number, uint64_t data, uint64_t bytes, int64_t expires_ms = 0) {
    return wire::ValueRecord{
        .tenant = "t", .name = "bad", .number = number, .data = data, .bytes = bytes, .expires_ms = expires_ms};
  };
  const auto id_of = [](uint64_t number, uint64_t chunk = 0) {
    return host::value_block_id(host::ValueBlock::record, number, chunk);
  };
  const std::pair<Id128, wire::ValueRecord> crafted[] = {
      {id_of(50), record_of(50, uint64_t{1} << 40, 100)},
      {id_of(50), record_of(50, uint64_t{1} << 40, 100, 1)},  // expired
      {id_of(50), record_of(50, 50, (uint64_t{64} << 30) + (1 << 20))},
      {id_of(kIdNumberMost), record_of(kIdNumberMost, kIdNumberMost, 0)},
      {id_of(1, 1), record_of(1, 1, 0)},  // the record of k has number 1
  };
  for (const auto& [id, record] : crafted) {
    CAPTURE(record.bytes);
    const store::DiskImage bad = with_block(image, id, record);
    Node again(bad);
    CHECK(again.get("k") == text(5000));
    CHECK(again.get("bad") == "MC4007");
    REQUIRE_OK(again.put("more", text(100)));
    CHECK(Node(check(bad, true).image).get("k") == text(5000));
  }
  const uint64_t last = wire::kValueNumberMost;
  Node full(with_block(image, id_of(last), record_of(last, last, 0)));
  CHECK(full.get("k") == text(5000));
  CHECK(full.put("more", "x").error().mc == err::kValueDisk);
}

}  // namespace value_disk_test

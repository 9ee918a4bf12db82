// The disk of values (host/value_disk.h) over a simulated disk, behind the calls of the door.
#include "host/value_disk.h"

#include <map>

#include "base/rng.h"
#include "count.h"
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
  for (const auto& [name, bytes] : image)
    for (size_t at = 100; name.starts_with("seg.") && at < bytes.size() && at < 64 * 4096; at += 1024) {
      store::DiskImage bad = image;
      bad[name][at] ^= std::byte{0x10};
      CAPTURE(name);
      CAPTURE(at);
      Node again(bad);
      const std::string got = again.get("k");
      CHECK((got == text(5000) || got == "MC6004" || got == "MC4007"));
      if (got == "MC6004") CHECK(again.get("k") == "MC4007");
      refused += got == "MC6004", lost += got == "MC4007";
      REQUIRE_OK(again.put("k", "new", {.replaces = true}));
      CHECK(again.get("k") == "new");
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
  for (int round = 0; round < 300; ++round) {
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
  const uint64_t seeds = test::count<uint64_t>(40, 2000);
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

}  // namespace value_disk_test

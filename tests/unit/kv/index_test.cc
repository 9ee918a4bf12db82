#include "kv/index.h"

#include "kv/pool.h"
#include "test.h"

using namespace mc;
using namespace mc::kv;

namespace {

BlockHash name(uint32_t n) {
  BlockHash hash;
  hash.bytes[0] = static_cast<uint8_t>(n);
  hash.bytes[1] = static_cast<uint8_t>(n >> 8);
  hash.bytes[15] = 1;
  return hash;
}

std::vector<BlockHash> names(uint32_t first, uint32_t count) {
  std::vector<BlockHash> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back(name(first + i));
  return out;
}

std::vector<BlockEvent> stored(uint64_t seq, std::initializer_list<uint32_t> blocks) {
  std::vector<BlockEvent> out;
  for (const uint32_t n : blocks) out.push_back({.seq = seq++, .hash = name(n)});
  return out;
}

constexpr auto kOk = PrefixIndex::Applied::ok;
constexpr auto kGap = PrefixIndex::Applied::need_snapshot;

}  // namespace

TEST_CASE("kv/index: one walk gives each node its own leading match, and a hole ends it") {
  PrefixIndex index;
  const NodeOrdinal p0 = index.add_node("p0"), p1 = index.add_node("p1"), c0 = index.add_node("c0");
  const NodeOrdinal d0 = index.add_node("d0");
  CHECK(index.add_node("p1") == p1);
  CHECK(index.apply(p0, stored(1, {0, 1, 2, 3})) == kOk);
  CHECK(index.apply(p1, stored(1, {0, 1, 3})) == kOk);  // 2 is missing: 3 is useless
  CHECK(index.apply(c0, stored(1, {1, 2, 3})) == kOk);  // no head: nothing matches
  CHECK(index.apply(d0, stored(1, {0})) == kOk);
  const auto found = index.match(names(0, 6));
  REQUIRE(found.size() == 3);
  CHECK(found[0] == NodeMatch{p0, 4, 4, 0, 0});
  CHECK(found[1] == NodeMatch{p1, 2, 2, 0, 0});
  CHECK(found[2] == NodeMatch{d0, 1, 1, 0, 0});
  CHECK(index.match(names(9, 2)).empty());
  CHECK(index.match({}).empty());
  CHECK(index.holders(name(3)) == std::vector<NodeOrdinal>{p0, p1, c0});
  CHECK(index.name_of(c0) == "c0");
  index.check();
}

TEST_CASE("kv/index: pending blocks count as expected, never as readable") {
  PrefixIndex index;
  const NodeOrdinal p0 = index.add_node("p0");
  index.apply(p0, stored(1, {0, 1}));
  index.add_pending(p0, names(0, 4));
  index.add_pending(p0, names(0, 3));
  CHECK(index.match(names(0, 6))[0] == NodeMatch{p0, 2, 4, 0, 0});
  CHECK_FALSE(index.holds(p0, name(2)));
  index.settle_pending(p0, names(0, 4));
  CHECK(index.match(names(0, 6))[0] == NodeMatch{p0, 2, 3, 0, 0});
  index.apply(p0, stored(3, {2}));
  index.settle_pending(p0, names(0, 3));
  CHECK(index.match(names(0, 6))[0] == NodeMatch{p0, 3, 3, 0, 0});
  CHECK(index.block_count() == 3);
  index.check();
}

TEST_CASE("kv/index: a missing event number freezes the node until its snapshot comes") {
  PrefixIndex index;
  const NodeOrdinal p0 = index.add_node("p0");
  CHECK(index.apply(p0, stored(1, {0, 1})) == kOk);
  CHECK(index.apply(p0, stored(1, {0, 1, 2})) == kOk);  // 1 and 2 were seen, 3 is new
  CHECK(index.seq(p0) == 3);
  CHECK(index.apply(p0, stored(5, {4})) == kGap);
  CHECK(index.needs_snapshot(p0));
  CHECK(index.apply(p0, stored(4, {3})) == kGap);  // too late: a snapshot is on its way
  CHECK(index.match(names(0, 5))[0].resident == 3);
  index.replace(p0, 9, std::vector<ResidentBlock>{{.hash = name(0)}, {.hash = name(5)}});
  CHECK_FALSE(index.needs_snapshot(p0));
  CHECK(index.match(names(0, 5))[0].resident == 1);
  CHECK(index.resident_count(p0) == 2);
  CHECK(index.apply(p0, stored(8, {7, 8, 1})) == kOk);  // 8 and 9 are in the snapshot
  CHECK(index.seq(p0) == 10);
  CHECK(index.match(names(0, 5))[0].resident == 2);
  index.check();
}

TEST_CASE("kv/index: a lost node leaves nothing behind, and its successor starts from nothing") {
  PrefixIndex index;
  const NodeOrdinal p0 = index.add_node("p0"), p1 = index.add_node("p1");
  index.apply(p0, stored(1, {0, 1}));
  index.apply(p1, stored(1, {1, 2}));
  index.add_pending(p0, names(5, 2));
  index.remove_node("p0");
  index.remove_node("p0");
  CHECK(index.block_count() == 2);
  CHECK(index.match(names(0, 2)).empty());
  CHECK_FALSE(index.find_node("p0"));
  CHECK(index.add_node("p9") == p0);  // takes the free ordinal
  CHECK(index.seq(p0) == 0);
  CHECK(index.apply(p0, stored(1, {0})) == kOk);
  CHECK(index.holders(name(0)) == std::vector<NodeOrdinal>{p0});
  index.check();
}

TEST_CASE("kv/index: 100,000 requests of one prompt may be on their way to one node") {
  constexpr uint32_t kRequests = 100'000;
  PrefixIndex index;
  const NodeOrdinal p0 = index.add_node("p0");
  for (uint32_t i = 0; i < kRequests; ++i) index.add_pending(p0, names(0, 2));
  CHECK(index.match(names(0, 2))[0] == NodeMatch{p0, 0, 2, 0, 0});
  for (uint32_t i = 0; i < kRequests; ++i) index.settle_pending(p0, names(0, 2));
  CHECK(index.match(names(0, 2)).empty());
  CHECK(index.block_count() == 0);
  index.check();
}

TEST_CASE("kv/index: of one node it takes blocks up to the bound, and again when some have left") {
  PrefixIndex index({.of_node = 3});
  const NodeOrdinal p0 = index.add_node("p0"), p1 = index.add_node("p1");
  CHECK(index.apply(p0, stored(1, {0, 1})) == kOk);
  CHECK_FALSE(index.is_full(p0));
  CHECK(index.apply(p0, stored(3, {2, 3, 2, 4})) == kOk);
  CHECK(index.is_full(p0));
  CHECK(index.resident_count(p0) == 3);
  CHECK(index.block_count() == 3);
  CHECK_FALSE(index.holds(p0, name(3)));
  CHECK(index.apply(p1, stored(1, {3})) == kOk);  // the bound is of each node
  BlockEvent gone;
  gone.seq = 7, gone.kind = BlockEvent::Kind::removed, gone.hash = name(3);  // a block that the index left out
  CHECK(index.apply(p0, {{gone}}) == kOk);
  CHECK(index.resident_count(p0) == 3);
  gone.seq = 8, gone.hash = name(0);
  CHECK(index.apply(p0, {{gone}}) == kOk);
  CHECK(index.apply(p0, stored(9, {5, 6})) == kOk);
  CHECK(index.holds(p0, name(5)));
  CHECK_FALSE(index.holds(p0, name(6)));
  std::vector<ResidentBlock> many;
  for (uint32_t i = 10; i < 20; ++i) many.push_back({name(i), {}, 0, Tier::host});
  index.replace(p0, 20, many);
  CHECK(index.resident_count(p0) == 3);
  CHECK(index.seq(p0) == 20);
  index.check();
}

TEST_CASE("kv/index: of all nodes together it takes blocks up to the bound, and a few of each node beyond it") {
  PrefixIndex index({.of_node = 100, .of_all = 6, .always = 2});
  const NodeOrdinal p0 = index.add_node("p0"), p1 = index.add_node("p1"), p2 = index.add_node("p2");
  CHECK(index.apply(p0, stored(1, {0, 1, 2, 3})) == kOk);
  CHECK_FALSE(index.is_full(p0));
  CHECK(index.apply(p1, stored(1, {0, 1, 2, 3})) == kOk);
  CHECK(index.resident_count() == 6);
  CHECK((index.is_full(p0) && index.is_full(p1) && !index.is_full(p2)));
  CHECK(index.apply(p2, stored(1, {4, 5, 6})) == kOk);
  CHECK(index.resident_count(p2) == 2);
  CHECK(index.is_full(p2));
  index.replace(p2, 10, std::vector<ResidentBlock>(1, {name(7), {}, 0, Tier::host}));
  CHECK(index.resident_count() == 7);
  index.check();
  index.remove_node("p0");
  CHECK(index.resident_count() == 3);
  CHECK(index.apply(p1, stored(5, {8, 9})) == kOk);
  CHECK(index.resident_count(p1) == 4);
  index.check();
}

TEST_CASE("kv/index: tiers are counted along the match") {
  PrefixIndex index;
  const NodeOrdinal c0 = index.add_node("c0");
  auto events = stored(1, {0, 1, 2});
  events[0].tier = Tier::device;
  events[1].tier = Tier::disk;
  index.apply(c0, events);
  CHECK(index.match(names(0, 3))[0] == NodeMatch{c0, 3, 3, 1, 1});
}

TEST_CASE("kv/index: fed by a pool's events it says what the pool says") {
  EventLog log;
  Pool pool({.page_count = 4}, log);
  PrefixIndex index;
  const NodeOrdinal p0 = index.add_node("p0");
  for (uint32_t i = 0; i < 8; ++i) {
    const auto page = pool.allocate(1);
    REQUIRE_OK(page);
    pool.unpin(pool.publish((*page)[0], {.hash = name(i)}).page);
    CHECK(index.apply(p0, log.drain()) == kOk);
    for (uint32_t j = 0; j < 8; ++j) CHECK(index.holds(p0, name(j)) == (pool.find(name(j)) != kNoPage));
  }
  CHECK(index.resident_count(p0) == 4);
  CHECK(index.seq(p0) == log.last_seq());
}

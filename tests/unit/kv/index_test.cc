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

std::vector<IndexEvent> stored(std::initializer_list<uint32_t> blocks) {
  std::vector<IndexEvent> out;
  for (const uint32_t n : blocks) out.push_back({true, name(n), {}});
  return out;
}

}  // namespace

TEST_CASE("kv/index: one walk gives each node its own leading match, and a hole ends it") {
  Index index;
  CHECK(index.apply("p0", 1, stored({0, 1, 2, 3})));
  CHECK(index.apply("p1", 1, stored({0, 1, 3})));  // 2 is missing: 3 is useless
  CHECK(index.apply("c0", 1, stored({1, 2, 3})));  // no head: nothing matches
  CHECK(index.apply("d0", 1, stored({0})));
  const auto found = index.match(names(0, 6));
  REQUIRE(found.size() == 3);
  CHECK(found[0] == NodeMatch{"d0", 1, 1, 0, 0});
  CHECK(found[1] == NodeMatch{"p0", 4, 4, 0, 0});
  CHECK(found[2] == NodeMatch{"p1", 2, 2, 0, 0});
  for (const NodeMatch& match : found) CHECK(index.match(match.node, names(0, 6)) == match.resident);
  CHECK(index.best_holder(names(0, 6))->node == "p0");
  CHECK(index.best_holder(names(0, 2))->node == "p0");  // a tie with p1 goes to the first name
  CHECK_FALSE(index.best_holder(names(9, 2)));
  CHECK(index.match(std::span<const BlockHash>{}).empty());
  CHECK(index.holders(name(3)) == std::vector<NodeId>{"c0", "p0", "p1"});
  index.check();
}

TEST_CASE("kv/index: pending blocks count as expected, never as readable") {
  Index index;
  index.apply("p0", 1, stored({0, 1}));
  index.add_pending("p0", names(0, 4));
  index.add_pending("p0", names(0, 3));
  CHECK(index.match(names(0, 6))[0] == NodeMatch{"p0", 2, 4, 0, 0});
  CHECK_FALSE(index.holds("p0", name(2)));
  index.settle_pending("p0", names(0, 4));
  CHECK(index.match(names(0, 6))[0] == NodeMatch{"p0", 2, 3, 0, 0});
  index.apply("p0", 3, stored({2}));
  index.settle_pending("p0", names(0, 3));
  CHECK(index.match(names(0, 6))[0] == NodeMatch{"p0", 3, 3, 0, 0});
  CHECK(index.block_count() == 3);
  index.settle_pending("p7", names(0, 3));
  index.check();
}

TEST_CASE("kv/index: a missing event number freezes the node until its snapshot comes") {
  Index index;
  CHECK(index.apply("p0", 1, stored({0, 1})));
  CHECK(index.apply("p0", 1, stored({0, 1, 2})));  // 1 and 2 were seen, 3 is new
  CHECK(index.last_seq("p0") == 3);
  CHECK_FALSE(index.apply("p0", 5, stored({4})));
  CHECK(index.needs_snapshot("p0"));
  CHECK_FALSE(index.apply("p0", 4, stored({3})));  // too late: a snapshot is on its way
  CHECK(index.match("p0", names(0, 5)) == 3);
  index.replace("p0", 9, stored({0, 5}));
  CHECK_FALSE(index.needs_snapshot("p0"));
  CHECK(index.match("p0", names(0, 5)) == 1);
  CHECK(index.block_count("p0") == 2);
  CHECK(index.apply("p0", 8, stored({7, 8, 1})));  // 8 and 9 are in the snapshot
  CHECK(index.last_seq("p0") == 10);
  CHECK(index.match("p0", names(0, 5)) == 2);
  index.check();
}

TEST_CASE("kv/index: a lost node leaves nothing behind, and its successor starts from nothing") {
  Index index;
  index.apply("p0", 1, stored({0, 1}));
  index.apply("p1", 1, stored({1, 2}));
  index.add_pending("p0", names(5, 2));
  index.remove("p0");
  index.remove("p0");
  CHECK(index.block_count() == 2);
  CHECK(index.match(names(0, 2)).empty());
  CHECK(index.last_seq("p0") == 0);
  CHECK(index.apply("p9", 1, stored({0})));  // takes the free ordinal
  CHECK(index.holders(name(0)) == std::vector<NodeId>{"p9"});
  CHECK_FALSE(index.holds("p0", name(0)));
  index.check();
}

TEST_CASE("kv/index: tiers are counted along the match") {
  Index index;
  const std::vector<IndexEvent> events = {
      {true, name(0), {}, Tier::device}, {true, name(1), {}, Tier::disk}, {true, name(2), {}, Tier::host}};
  index.apply("c0", 1, events);
  CHECK(index.match(names(0, 3))[0] == NodeMatch{"c0", 3, 3, 1, 1});
}

TEST_CASE("kv/index: fed by a pool's events it says what the pool says") {
  EventLog log;
  Pool pool({.page_count = 4}, log);
  Index index;
  for (uint32_t i = 0; i < 8; ++i) {
    const auto page = pool.allocate(1);
    REQUIRE_OK(page);
    pool.unpin(pool.publish((*page)[0], {.hash = name(i)}).page);
    const auto events = log.drain();
    std::vector<IndexEvent> converted;
    for (const BlockEvent& e : events)
      converted.push_back({e.kind == BlockEvent::Kind::stored, e.hash, e.parent, e.tier});
    CHECK(index.apply("p0", events.front().seq, converted));
    for (uint32_t j = 0; j < 8; ++j) CHECK(index.holds("p0", name(j)) == (pool.find(name(j)) != kNoPage));
  }
  CHECK(index.block_count("p0") == 4);
  CHECK(index.last_seq("p0") == log.last_seq());
}

#include "kv/block_table.h"

#include <bit>
#include <map>

#include "base/rng.h"
#include "kv/kv.h"
#include "test.h"
#include "unit/kv/draw.h"

namespace block_table_test {

using namespace mc;
using namespace mc::kv;
using mc::test::draw;
using wire::HeldIn;

namespace {

struct Table {
  std::vector<uint64_t> memory;
  BlockTable table;
  explicit Table(uint64_t blocks)
      : memory(BlockTable::bytes_for(blocks) / 8), table(std::as_writable_bytes(std::span(memory)), 7) {}
  void apply(BlockEvent::Kind kind, Tier tier, const BlockHash& hash) {
    table.apply({.kind = kind, .tier = tier, .hash = hash});
  }
};
constexpr auto kStored = BlockEvent::Kind::stored, kRemoved = BlockEvent::Kind::removed;

}  // namespace

TEST_CASE("kv/block_table: a block is in the tiers where events put it") {
  Table t(10);
  Rng rng(1);
  const BlockHash a = draw(rng), b = draw(rng);
  CHECK(t.table.find(a) == HeldIn::none);
  t.apply(kStored, Tier::host, a);
  CHECK(t.table.find(a) == HeldIn::memory);
  t.apply(kStored, Tier::disk, a);
  t.apply(kStored, Tier::host, a);  // again
  CHECK(t.table.find(a) == HeldIn::both);
  t.apply(kRemoved, Tier::host, a);
  CHECK(t.table.find(a) == HeldIn::disk);
  t.apply(kStored, Tier::host, b);
  t.apply(kStored, Tier::device, a);  // a copy, which readers of the table cannot read
  t.apply(kRemoved, Tier::device, b);
  CHECK(t.table.find(std::vector<BlockHash>{b, a}) == std::vector<HeldIn>{HeldIn::memory, HeldIn::disk});
  t.apply(kRemoved, Tier::disk, b);  // was not there
  t.apply(kRemoved, Tier::disk, a);
  CHECK(t.table.find(a) == HeldIn::none);
  CHECK(t.table.find(b) == HeldIn::memory);
  CHECK(t.table.blocks() == 1);
}

TEST_CASE("kv/block_table: under random events it agrees with a map") {
  CAPTURE(test::seed());
  Rng rng(test::seed());
  constexpr uint64_t kBlocks = 5000;
  Table t(kBlocks);
  std::vector<BlockHash> hashes;
  for (uint64_t i = 0; i < kBlocks; ++i) hashes.push_back(draw(rng));
  std::map<BlockHash, uint8_t> model;
  for (int i = 0; i < 100'000; ++i) {
    const BlockHash& hash = hashes[rng.below(hashes.size())];
    const bool on_disk = rng.chance(.3), is_stored = rng.chance(.6);
    t.apply(is_stored ? kStored : kRemoved, on_disk ? Tier::disk : Tier::host, hash);
    const auto bit = static_cast<uint8_t>(on_disk ? 2 : 1);
    uint8_t& held = model[hash];
    held = static_cast<uint8_t>(is_stored ? held | bit : held & ~bit);
  }
  CHECK(t.table.left_out() == 0);  // the table is for as many blocks as there are
  uint64_t blocks = 0;
  for (const BlockHash& hash : hashes) {
    CHECK(t.table.find(hash) == static_cast<HeldIn>(model[hash]));
    blocks += model[hash] != 0;
  }
  CHECK(t.table.blocks() == blocks);
}

TEST_CASE("kv/block_table: a full table leaves blocks out, and takes others when there is room again") {
  Table t(1);
  CHECK(t.table.buckets() == 2);
  Rng rng(3);
  std::vector<BlockHash> hashes;
  for (int i = 0; i < 28; ++i) t.apply(kStored, Tier::host, hashes.emplace_back(draw(rng)));
  CHECK(t.table.blocks() == 28);
  const BlockHash late = draw(rng);
  t.apply(kStored, Tier::host, late);
  CHECK(t.table.find(late) == HeldIn::none);
  CHECK(t.table.left_out() == 1);
  t.apply(kRemoved, Tier::host, late);  // which the table does not have
  t.apply(kRemoved, Tier::host, hashes.front());
  t.apply(kStored, Tier::host, late);
  CHECK(t.table.find(late) == HeldIn::memory);
  CHECK(t.table.find(hashes.front()) == HeldIn::none);
}

TEST_CASE("kv/block_table: a reader takes memory of no other size, of no other start, and no garbage") {
  Table t(10);
  Rng rng(4);
  const BlockHash a = draw(rng);
  t.apply(kStored, Tier::host, a);
  const auto memory = std::as_writable_bytes(std::span(t.memory));
  const auto view = BlockTableView::of(memory, 7);
  REQUIRE(view.has_value());
  CHECK(view->find(a) == HeldIn::memory);
  CHECK(BlockTableView::of(memory, 8)->find(a) == HeldIn::none);
  for (const size_t size : {size_t{0}, size_t{8}, size_t{256}, memory.size() - 8})
    CHECK_FALSE(BlockTableView::of(memory.first(size), 7).has_value());
  for (uint64_t& word : t.memory) word = rng.next();
  CHECK(view->find(std::vector<BlockHash>(1000, a)) == std::vector<HeldIn>(1000, HeldIn::none));
}

TEST_CASE("kv/block_table: sizes are powers of two that three quarters of the blocks fill, up to a bound") {
  for (const uint64_t blocks : {uint64_t{0}, uint64_t{1}, uint64_t{20}, uint64_t{1000}, uint64_t{1} << 20}) {
    const uint64_t buckets = BlockTable::bytes_for(blocks) / sizeof(wire::BlockBucket);
    CHECK(std::has_single_bit(buckets));
    CHECK(buckets * wire::kBucketBlocks * 3 >= blocks * 4);
  }
  CHECK(BlockTable::bytes_for(UINT64_MAX) == BlockTable::kBucketsMax * sizeof(wire::BlockBucket));
}

TEST_CASE("kv/block_table: the events of a pool reach the table of its log") {
  Table t(8);
  EventLog log;
  log.publish_to(t.table);
  Pool pool({.page_count = 2}, log);
  Rng rng(5);
  const BlockHash a = draw(rng), b = draw(rng);
  for (const BlockHash& hash : {a, b}) {
    const auto page = pool.allocate(1);
    REQUIRE_OK(page);
    pool.unpin(pool.publish((*page)[0], {.hash = hash}).page);
  }
  CHECK(t.table.find(a) == HeldIn::memory);
  REQUIRE_OK(pool.allocate(1));  // evicts one of them
  CHECK(t.table.blocks() == 1);
  CHECK((t.table.find(a) == HeldIn::none) != (t.table.find(b) == HeldIn::none));
}

}  // namespace block_table_test

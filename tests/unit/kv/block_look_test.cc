#include "kv/block_look.h"

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "kv/block_table.h"
#include "test.h"
#include "unit/kv/draw.h"

namespace block_look_test {

using namespace mc;
using namespace mc::kv;
using mc::test::draw;
using wire::BlockBucket;
using wire::HeldIn;

namespace {

constexpr uint64_t kEpoch = 7;

struct Table {
  std::vector<uint64_t> memory;
  BlockTable table;
  explicit Table(uint64_t blocks)
      : memory(BlockTable::bytes_for(blocks) / 8), table(std::as_writable_bytes(std::span(memory)), kEpoch) {}
  std::vector<BlockBucket> copies(std::span<const uint64_t> buckets) const {
    std::vector<BlockBucket> out(buckets.size());
    for (size_t i = 0; i < buckets.size(); ++i)
      std::memcpy(reinterpret_cast<std::byte*>(&out[i]), &memory.at(buckets[i] * sizeof(BlockBucket) / 8),
                  sizeof(BlockBucket));
    return out;
  }
};

}  // namespace

TEST_CASE("kv/block_look: it finds what the reader of the mapped table finds, in one round without a bucket twice") {
  CAPTURE(test::seed());
  Rng rng(test::seed());
  for (int round = 0; round < 50; ++round) {
    Table t(1 + rng.below(400));
    std::vector<BlockHash> hashes;
    for (uint64_t i = rng.below(300); i > 0; --i) {
      const BlockHash hash = hashes.emplace_back(draw(rng));
      if (rng.chance(.7)) t.table.apply({.tier = rng.chance(.5) ? Tier::disk : Tier::host, .hash = hash});
    }
    hashes.push_back(draw(rng));
    if (rng.chance(.5)) hashes.push_back(hashes.front());
    BlockLook look(hashes, t.table.buckets(), kEpoch);
    CHECK(std::ranges::is_sorted(look.wanted()));
    CHECK(std::ranges::adjacent_find(look.wanted()) == look.wanted().end());
    CHECK(look.wanted().size() <= std::min<size_t>(2 * hashes.size(), t.table.buckets()));
    look.take(t.copies(look.wanted()));
    REQUIRE(look.wanted().empty());
    CHECK_FALSE(look.given_up());
    CHECK(look.torn() == 0);
    CHECK(look.held() == t.table.find(hashes));
  }
}

TEST_CASE("kv/block_look: a torn bucket is wanted again, alone, and its blocks are found then") {
  Table t(20);
  Rng rng(3);
  std::vector<BlockHash> hashes;
  for (int i = 0; i < 12; ++i) t.table.apply({.hash = hashes.emplace_back(draw(rng))});
  BlockLook look(hashes, t.table.buckets(), kEpoch);
  auto copies = t.copies(look.wanted());
  const uint64_t torn = look.wanted().back();
  copies.back().blocks[3].bytes[0] ^= 1;  // a word of another state
  look.take(copies);
  REQUIRE(look.wanted().size() == 1);
  CHECK(look.wanted()[0] == torn);
  CHECK_FALSE(look.given_up());
  CHECK(look.torn() == 1);
  look.take(t.copies(look.wanted()));
  REQUIRE(look.wanted().empty());
  CHECK(look.held() == std::vector<HeldIn>(hashes.size(), HeldIn::memory));
}

TEST_CASE("kv/block_look: a table that is torn each time, of another start or garbage is given up after a few rounds") {
  Table t(20);
  Rng rng(4);
  const std::vector<BlockHash> hashes = {draw(rng), draw(rng)};
  for (const HeldIn tier : {HeldIn::memory, HeldIn::disk})
    t.table.apply({.tier = tier == HeldIn::disk ? Tier::disk : Tier::host, .hash = hashes[0]});
  enum Way { odd, other_start, garbage };
  for (const Way way : {odd, other_start, garbage}) {
    CAPTURE(way);
    BlockLook look(hashes, t.table.buckets(), kEpoch);
    int rounds = 0;
    for (; !look.wanted().empty(); ++rounds) {
      REQUIRE(rounds < BlockLook::kRoundsMax);
      auto copies = t.copies(look.wanted());
      for (BlockBucket& copy : copies) {
        if (way == odd) copy.version += 1, copy.crc = wire::bucket_crc(copy);
        if (way == other_start) copy.epoch += 1, copy.crc = wire::bucket_crc(copy);
        if (way == garbage) copy.crc = static_cast<uint32_t>(rng.next());
      }
      look.take(copies);
    }
    CHECK(rounds == BlockLook::kRoundsMax);
    CHECK(look.given_up());
  }
}

}  // namespace block_look_test

// Which blocks a serving node writes to its disk when they must have been used more than once.

#include "node/disk_writes.h"

#include "node/reuse_counts.h"
#include "tier_bench.h"

namespace disk_writes_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

DiskTierOptions used_twice() {
  return {.capacity_bytes = 1 << 20, .uses_min = 2};
}

/// The blocks leave memory, and the tier is told.
void leave(TierBench& b, const std::vector<BlockHash>& hashes) {
  b.evict(hashes);
  for (const BlockHash& hash : hashes) b.tier.left_memory(hash);
}

}  // namespace

TEST_CASE("node/disk_writes: of blocks that must be used twice, those with a reader are written before they leave") {
  TierBench b(used_twice());
  const auto once = chain_of(1, 5), twice = chain_of(2, 4);
  b.publish(once);
  b.publish(twice);
  CHECK(b.write_all() == 0);
  b.tier.hit(b.shelf.pool, std::span(twice).first(3));
  for (size_t i = 0; i < 2; ++i) leave(b, {once[4 - i]}), b.publish(chain_of(static_cast<uint32_t>(3 + i), 1));
  b.shelf.pool.touch(once);  // now the blocks with a reader are the coldest
  CHECK(b.write_all() > 0);
  for (const BlockHash& hash : once) CHECK_FALSE(b.tier.has(hash));
  CHECK(b.tier.has(twice[2]));
  CHECK_FALSE(b.tier.has(twice[3]));
  CHECK(b.tier.spared_blocks() == 2);
}

TEST_CASE("node/disk_writes: a block that was computed again after it left memory counts as used twice") {
  TierBench b(used_twice());
  const auto cold = chain_of(1, 9);
  b.publish(cold);
  CHECK(b.write_all() == 0);
  leave(b, cold);
  CHECK(b.tier.spared_blocks() == 9);
  b.publish(cold);
  CHECK(b.write_all() > 0);
  CHECK(b.tier.has(cold[8]));
  leave(b, {cold[8]});
  CHECK(b.tier.spared_blocks() == 9);
}

TEST_CASE("node/disk_writes: a node that stops writes blocks whatever their uses") {
  TierBench b(used_twice());
  b.publish(chain_of(1, 4));
  b.tier.start_write_out();
  CHECK(b.write_all() == 4);
}

TEST_CASE("node/reuse_counts: the block that was counted first is forgotten first, and others keep their counts") {
  ReuseCounts counts(2);
  const auto blocks = chain_of(1, 3);
  counts.add(blocks[0]);
  counts.add(blocks[0]);
  counts.add(blocks[1]);
  CHECK(counts.of(blocks[0]) == 2);
  counts.add(blocks[2]);
  CHECK(counts.of(blocks[0]) == 0);
  CHECK(counts.of(blocks[1]) == 1);
  CHECK(counts.of(blocks[2]) == 1);
}

}  // namespace disk_writes_test

// A serving node with --ssd-min-uses writes to its disk only blocks that were used often enough.

#include "node/disk_writes.h"

#include <cstring>

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
  for (const BlockHash& hash : hashes) b.tier.evicted_from_memory(hash), b.tier.left_memory(hash, b.now);
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
  CHECK(b.tier.writes().spared() == 2);
}

TEST_CASE("node/disk_writes: a block that was computed again after it left memory counts as used twice") {
  TierBench b(used_twice());
  const auto cold = chain_of(1, 9);
  b.publish(cold);
  CHECK(b.write_all() == 0);
  leave(b, cold);
  CHECK(b.tier.writes().spared() == 9);
  b.publish(cold);
  CHECK(b.write_all() > 0);
  CHECK(b.tier.has(cold[8]));
  leave(b, {cold[8]});
  CHECK(b.tier.writes().spared() == 9);
}

TEST_CASE("node/disk_writes: a node that stops writes blocks whatever their uses") {
  TierBench b(used_twice());
  b.publish(chain_of(1, 4));
  b.tier.start_write_out();
  CHECK(b.write_all() == 4);
}

TEST_CASE("node/reuse_counts: of blocks that have left the first is forgotten first, and those in memory never are") {
  ReuseCounts counts;
  const auto hash = [](uint64_t n) {
    BlockHash out;
    std::memcpy(out.bytes.data(), &n, sizeof n);
    return out;
  };
  counts.used(hash(1)), counts.used(hash(1));
  counts.left(hash(2));
  counts.left(hash(3));
  counts.left(hash(4)), counts.used(hash(4));  // it has come back
  for (uint64_t n = 0; n < ReuseCounts::kLeftMin - 2; ++n) counts.left(hash(100 + n));
  CHECK(counts.of(hash(1)) == 2);
  CHECK(counts.of(hash(2)) == 0);
  CHECK(counts.of(hash(3)) == 1);
  for (uint64_t n = 0; n < ReuseCounts::kLeftMin; ++n) counts.left(hash(1'000'000 + n));
  CHECK(counts.of(hash(3)) == 0);
  CHECK(counts.of(hash(4)) == 2);
  counts.remember(2 * ReuseCounts::kLeftMin);
  for (uint64_t n = 0; n < ReuseCounts::kLeftMin; ++n) counts.left(hash(2'000'000 + n));
  CHECK(counts.of(hash(1'000'000)) == 1);
}

}  // namespace disk_writes_test

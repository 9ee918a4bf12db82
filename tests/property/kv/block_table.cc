// A table of blocks that is read while it is changed: a reader finds each block in a state that it had, and never an id
// that mixes two blocks. Copies are mixed word by word under a seed: 10^6 torn ones with full counts. Threads read the
// table of a writer as well. Their count stays low, because a find costs up to 64 time slices when the writer has lost
// its processor in the middle of a change, and threads of a busy host meet seldom anyway.
#include "kv/block_table.h"

#include <atomic>
#include <cstring>
#include <thread>

#include "base/rng.h"
#include "count.h"
#include "test.h"

namespace block_table_property {

using namespace mc;
using namespace mc::kv;
using wire::BlockBucket;
using wire::HeldIn;

namespace {

constexpr uint64_t kEpoch = 9;

/// A block whose id has its number in both halves, so that a mixture of two ids shows.
BlockHash block_of(uint64_t number) {
  BlockHash out;
  const std::array<uint64_t, 2> words{number, ~number};
  std::memcpy(out.bytes.data(), words.data(), sizeof words);
  return out;
}

struct Seen {
  uint64_t torn = 0, accepted = 0;
};

/// Each copy takes every word from the bucket before or after changes of it.
Seen read_torn(uint64_t seed, uint64_t reads, bool checks) {
  Rng rng(seed);
  std::vector<uint64_t> memory(2 * sizeof(BlockBucket) / 8);
  BlockTable table(std::as_writable_bytes(std::span(memory)), kEpoch);
  constexpr size_t kWords = sizeof(BlockBucket) / 8;
  Seen seen;
  std::vector<uint64_t> held;
  for (uint64_t next = 1; seen.torn < reads;) {
    const std::vector<uint64_t> before = memory;
    for (uint64_t changes = 1 + rng.below(4); changes > 0; --changes) {
      if (held.size() > 20 || (!held.empty() && rng.chance(.3))) {
        const size_t at = rng.below(held.size());
        for (const Tier tier : {Tier::host, Tier::disk})
          table.apply({.kind = BlockEvent::Kind::removed, .tier = tier, .hash = block_of(held[at])});
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        held.push_back(next);
        table.apply({.kind = BlockEvent::Kind::stored,
                     .tier = rng.chance(.5) ? Tier::disk : Tier::host,
                     .hash = block_of(next++)});
      }
    }
    for (int i = 0; i < 16; ++i) {
      const size_t first = rng.below(2) * kWords;
      const double share = rng.chance(.5) ? .5 : rng.chance(.5) ? .03 : .97;  // words of the earlier state
      std::array<uint64_t, kWords> words;
      for (size_t w = 0; w < kWords; ++w) words.at(w) = rng.chance(share) ? before[first + w] : memory[first + w];
      const bool is_old = std::memcmp(words.data(), &before[first], sizeof words) == 0;
      const bool is_new = std::memcmp(words.data(), &memory[first], sizeof words) == 0;
      if (is_old || is_new) continue;
      ++seen.torn;
      BlockBucket copy;
      std::memcpy(reinterpret_cast<std::byte*>(&copy), words.data(), sizeof copy);
      seen.accepted += checks ? wire::is_sound(copy, kEpoch) : copy.version % 2 == 0 && copy.epoch == kEpoch;
    }
  }
  return seen;
}

}  // namespace

TEST_CASE("kv/block_table: a copy that mixes two states of a bucket is never taken") {
  CAPTURE(test::seed());
  const auto reads = test::count<uint64_t>(100'000, 1'000'000);
  const Seen seen = read_torn(test::seed(), reads, true);
  CHECK(seen.torn >= reads);
  CHECK(seen.accepted == 0);
}

TEST_CASE("kv/block_table: without the checksum mixed copies are taken, so the test sees them") {
  CHECK(read_torn(test::seed(), 10'000, false).accepted > 1000);
}

TEST_CASE("kv/block_table: threads that read while the table changes find no block where it never was") {
  CAPTURE(test::seed());
  std::vector<uint64_t> memory(BlockTable::bytes_for(64) / 8);
  BlockTable table(std::as_writable_bytes(std::span(memory)), kEpoch);
  for (uint64_t i = 1; i <= 32; ++i) table.apply({.hash = block_of(i)});  // they stay
  const auto reads = test::count<uint64_t>(20'000, 50'000);
  std::atomic<uint64_t> wrong{0};
  std::atomic<int> left{2};
  const auto read = [&](uint64_t seed) {
    Rng rng(seed);
    for (uint64_t i = 0; i < reads; ++i) {
      wrong += table.find(block_of(1 + rng.below(32))) == HeldIn::disk;  // none: all copies were mixed
      wrong += table.find(block_of(1000 + rng.below(32))) == HeldIn::memory;
    }
    --left;
  };
  std::thread first(read, test::seed()), second(read, test::seed() + 1);
  Rng rng(test::seed() + 2);
  while (left > 0) {
    const auto kind = rng.chance(.5) ? BlockEvent::Kind::stored : BlockEvent::Kind::removed;
    if (rng.chance(.5))
      table.apply({.kind = kind, .tier = Tier::disk, .hash = block_of(1000 + rng.below(32))});
    else
      table.apply({.kind = kind, .tier = Tier::disk, .hash = block_of(1 + rng.below(32))});
  }
  first.join(), second.join();
  CHECK(wrong == 0);
  for (uint64_t i = 1; i <= 32; ++i) CHECK(table.find(block_of(i)) != HeldIn::none);
}

}  // namespace block_table_property

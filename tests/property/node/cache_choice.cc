// The choice of the cache node for demoted blocks, on seeded clusters of 1 to 12 cache nodes with capacities of 1 to
// 16: shares, and the moves when a node joins, leaves, grows or starts slowly.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/rng.h"
#include "node/demoter.h"
#include "test.h"

using namespace mc;
using namespace mc::node;

namespace {

constexpr uint64_t kGib = uint64_t{1} << 30;
constexpr size_t kBlocks = 500;

std::vector<const wire::Peer*> pointers(const std::vector<wire::Peer>& caches) {
  std::vector<const wire::Peer*> out;
  for (const wire::Peer& cache : caches) out.push_back(&cache);
  return out;
}

std::vector<BlockHash> blocks_of(Rng& rng) {
  std::vector<BlockHash> out(kBlocks);
  for (BlockHash& hash : out)
    for (auto& byte : hash.bytes) byte = static_cast<uint8_t>(rng.below(256));
  return out;
}

wire::Peer cache_of(Rng& rng, size_t number) {
  wire::Peer out;
  out.name = "c" + std::to_string(number), out.role = wire::Role::cache;
  out.cache_bytes = kGib << rng.below(5);
  return out;
}

std::vector<std::string> choices(const std::vector<BlockHash>& blocks, const std::vector<wire::Peer>& caches,
                                 const SlowStart& starts = {}, TimePoint now = {}) {
  const auto list = pointers(caches);
  std::vector<std::string> out;
  for (const BlockHash& block : blocks) out.push_back(cache_for(block, list, starts, now)->name);
  return out;
}

double total(const std::vector<wire::Peer>& caches) {
  double sum = 0;
  for (const wire::Peer& cache : caches) sum += static_cast<double>(cache.cache_bytes);
  return sum;
}

/// Whether `count` of kBlocks draws with the probability p is within 6 standard deviations.
bool is_likely(size_t count, double p) {
  const double n = kBlocks;
  return std::abs(static_cast<double>(count) - n * p) <= 6 * std::sqrt(n * p * (1 - p)) + 1e-9;
}

}  // namespace

TEST_CASE("node/cache_choice: cache nodes keep shares of the blocks that are those of their capacities") {
  for (uint64_t i = 0; i < 40; ++i) {
    Rng rng(test::seed() + i);
    CAPTURE(i);
    std::vector<wire::Peer> caches;
    for (size_t n = 1 + rng.below(12); caches.size() < n;) caches.push_back(cache_of(rng, caches.size()));
    if (rng.chance(0.2))  // of an older version
      for (wire::Peer& cache : caches) cache.cache_bytes = 0;
    std::map<std::string, size_t> counts;
    for (const std::string& name : choices(blocks_of(rng), caches)) ++counts[name];
    for (const wire::Peer& cache : caches) {
      const double share = total(caches) > 0 ? static_cast<double>(cache.cache_bytes) / total(caches)
                                             : 1.0 / static_cast<double>(caches.size());
      CAPTURE(cache.name);
      CAPTURE(share);
      CHECK(is_likely(counts[cache.name], share));
    }
  }
}

TEST_CASE("node/cache_choice: a change of membership moves the blocks of the changed node, and no other") {
  for (uint64_t i = 0; i < 40; ++i) {
    Rng rng(1000 + test::seed() + i);
    CAPTURE(i);
    std::vector<wire::Peer> caches;
    for (size_t n = 2 + rng.below(11); caches.size() < n;) caches.push_back(cache_of(rng, caches.size()));
    const auto blocks = blocks_of(rng);
    const auto all = choices(blocks, caches);
    const size_t changed = rng.below(caches.size());
    const std::string name = caches[changed].name;
    const double share = static_cast<double>(caches[changed].cache_bytes) / total(caches);
    auto others = caches;
    others.erase(others.begin() + static_cast<ptrdiff_t>(changed));
    const auto without = choices(blocks, others);
    size_t moved = 0;
    for (size_t b = 0; b < blocks.size(); ++b) {
      moved += all[b] != without[b];
      if (all[b] != name) CHECK(all[b] == without[b]);
    }
    CHECK(is_likely(moved, share));
    // A node that grows takes blocks and gives none away.
    caches[changed].cache_bytes *= 4;
    const auto grown = choices(blocks, caches);
    for (size_t b = 0; b < blocks.size(); ++b)
      if (grown[b] != all[b]) CHECK(grown[b] == name);
    // The order of the list and the instances mean nothing.
    std::reverse(caches.begin(), caches.end());
    for (wire::Peer& cache : caches) cache.instance.bytes[0] = 9;
    CHECK(choices(blocks, caches) == grown);
  }
}

TEST_CASE(
    "node/cache_choice: the share of a cache node that joins grows from a sixteenth to all of it") {
  for (uint64_t i = 0; i < 20; ++i) {
    Rng rng(2000 + test::seed() + i);
    CAPTURE(i);
    std::vector<wire::Peer> caches;
    for (size_t n = 2 + rng.below(5); caches.size() < n;) {
      caches.push_back(cache_of(rng, caches.size()));
      caches.back().instance.bytes[0] = static_cast<uint8_t>(caches.size());
      caches.back().member_ms = rng.chance(0.5) ? 0 : 60'000 + rng.below(100'000);
    }
    wire::Peer& fresh = caches.back();
    fresh.member_ms = 1 + rng.below(3'000);
    SlowStart starts;
    const TimePoint listed = TimePoint{} + 1s;
    starts.take({1, caches}, listed);
    const auto blocks = blocks_of(rng);
    const auto whole = choices(blocks, caches);
    std::vector<std::string> before;
    for (Duration since = 0s; since <= 60s; since += 3s) {
      CAPTURE(since / 1s);
      const auto now = choices(blocks, caches, starts, listed + since);
      const double age = static_cast<double>((since + std::chrono::milliseconds(fresh.member_ms)) / 1ms) / 60'000;
      const double weight = std::clamp(age, 1.0 / 16, 1.0) * static_cast<double>(fresh.cache_bytes);
      const double others = total(caches) - static_cast<double>(fresh.cache_bytes);
      CHECK(is_likely(static_cast<size_t>(std::ranges::count(now, fresh.name)), weight / (weight + others)));
      // Chains move to the new node alone.
      for (size_t b = 0; b < before.size(); ++b)
        if (now[b] != before[b]) CHECK(now[b] == fresh.name);
      before = now;
    }
    CHECK(before == whole);
  }
}

TEST_CASE(
    "node/cache_choice: cache nodes that joined at one time share the blocks by their capacities from the start") {
  Rng rng(test::seed());
  std::vector<wire::Peer> caches;
  while (caches.size() < 4) {
    caches.push_back(cache_of(rng, caches.size()));
    caches.back().instance.bytes[0] = static_cast<uint8_t>(caches.size()), caches.back().member_ms = 5;
  }
  SlowStart starts;
  starts.take({1, caches}, TimePoint{});
  const auto blocks = blocks_of(rng);
  for (const Duration since : {0s, 10s, 59s})
    CHECK(choices(blocks, caches, starts, TimePoint{} + since) == choices(blocks, caches));
}

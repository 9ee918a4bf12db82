#include "sim/lru.h"

#include <list>
#include <set>
#include <vector>

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

/// Least recently used by walking a list.
struct SlowLru {
  size_t capacity;
  std::list<uint32_t> blocks;  // newest first
  void use(uint32_t block) {
    blocks.remove(block);
    blocks.push_front(block);
    if (blocks.size() > capacity) blocks.pop_back();
  }
  uint32_t match(const std::vector<uint32_t>& ids) const {
    const std::set<uint32_t> held(blocks.begin(), blocks.end());
    uint32_t k = 0;
    while (k < ids.size() && held.contains(ids[k])) ++k;
    return k;
  }
};

}  // namespace

TEST_CASE("sim/lru: the block unused for longest goes, and a use renews") {
  Lru lru(2);
  CHECK(lru.use(1) == Lru::kNone);
  CHECK(lru.use(2) == Lru::kNone);
  CHECK(lru.use(1) == Lru::kNone);
  CHECK(lru.use(3) == 2);
  CHECK(lru.holds(1));
  CHECK_FALSE(lru.holds(2));
}

TEST_CASE("sim/lru: erased blocks leave their room to others, as in a list") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  Lru lru(6);
  SlowLru slow{6, {}};
  for (int round = 0; round < 2000; ++round) {
    const auto block = static_cast<uint32_t>(rng.below(12));
    if (rng.chance(0.4))
      lru.erase(block), slow.blocks.remove(block);
    else
      lru.use(block), slow.use(block);
    REQUIRE(lru.size() == slow.blocks.size());
    for (uint32_t b = 0; b < 12; ++b) REQUIRE(lru.holds(b) == (slow.match({b}) == 1));
  }
}

TEST_CASE("sim/lru: a prompt longer than the cache leaves its head") {
  NodeCaches caches(1, 2, 5);
  const std::vector<uint32_t> prompt = {0, 1, 2, 3, 4};
  std::vector<uint32_t> matches(1);
  caches.use(0, prompt);
  caches.match(prompt, matches);
  CHECK(matches[0] == 2);
}

TEST_CASE("sim/lru: no room keeps nothing, no bound keeps everything") {
  const std::vector<uint32_t> prompt = {0, 1, 2};
  std::vector<uint32_t> matches(3);
  NodeCaches none(3, 0, 3), all(3, kUnlimitedBlocks, 3);
  none.use(1, prompt);
  all.use(1, prompt);
  none.match(prompt, matches);
  CHECK(matches == std::vector<uint32_t>{0, 0, 0});
  all.match(prompt, matches);
  CHECK(matches == std::vector<uint32_t>{0, 3, 0});
}

TEST_CASE("sim/lru: matches of many nodes are those of as many lists") {
  Rng rng(test::seed());
  for (const uint32_t nodes : {1u, 63u, 64u, 65u, 130u}) {
    const uint32_t unique = 40;
    const uint64_t capacity = 1 + rng.below(12);
    NodeCaches caches(nodes, capacity, unique);
    std::vector<SlowLru> slow(nodes, SlowLru{capacity, {}});
    std::vector<uint32_t> matches(nodes);
    for (int round = 0; round < 200; ++round) {
      std::vector<uint32_t> prompt;
      for (uint64_t i = rng.below(8); i > 0; --i) prompt.push_back(static_cast<uint32_t>(rng.below(unique)));
      caches.match(prompt, matches);
      INFO("seed " << test::seed() << " nodes " << nodes << " round " << round);
      for (uint32_t n = 0; n < nodes; ++n) REQUIRE(matches[n] == slow[n].match(prompt));
      const uint32_t node = static_cast<uint32_t>(rng.below(nodes));
      caches.use(node, prompt);
      for (size_t i = prompt.size(); i-- > 0;) slow[node].use(prompt[i]);
    }
  }
}

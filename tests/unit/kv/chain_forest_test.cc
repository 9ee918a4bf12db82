#include "kv/chain_forest.h"

#include "base/rng.h"
#include "test.h"

namespace chain_forest_test {

using namespace mc;
using namespace mc::kv;

namespace {

BlockHash name(uint32_t n) {
  BlockHash hash;
  for (size_t i = 0; i < 4; ++i) hash.bytes[i] = static_cast<uint8_t>(n >> (8 * i));
  hash.bytes[15] = 1;  // never zero
  return hash;
}

struct Forest : ChainForest {
  explicit Forest(uint32_t pages) { resize(pages); }
  ~Forest() { check(); }
  /// Page n holds block n, whose rank is n as well.
  void add(uint32_t n, BlockHash parent = {}) { ChainForest::add(n, name(n), parent, n); }
  void chain(uint32_t first, uint32_t count, BlockHash parent = {}) {
    for (uint32_t n = first; n < first + count; parent = name(n++)) add(n, parent);
  }
};

using Pages = std::vector<PageIndex>;

}  // namespace

TEST_CASE("kv/chain_forest: the tail alone of a chain is a leaf, and its removal makes the block before it one") {
  Forest f(3);
  f.chain(0, 3);
  CHECK(f.unheld() == 3);
  CHECK(f.leaves(9) == Pages{2});
  f.remove(f.first_leaf());
  CHECK(f.leaves(9) == Pages{1});
  CHECK(f.find(name(2)) == kNoPage);
  CHECK(f.size() == 2);
}

TEST_CASE("kv/chain_forest: a used block holds its ancestors until its last use ends") {
  Forest f(6);
  f.chain(0, 3);
  f.chain(4, 2, name(0));
  f.set_used(2, true);
  CHECK((f.is_held(0) && f.is_held(1) && f.is_held(2)));
  CHECK_FALSE(f.is_held(4));
  CHECK(f.unheld() == 2);
  CHECK(f.leaves(9) == Pages{5});
  f.set_used(5, true);
  CHECK(f.unheld() == 0);
  f.set_used(2, false);
  CHECK(f.is_held(0));  // the other branch holds it
  CHECK(f.unheld() == 2);
  f.set_used(5, false);
  CHECK(f.unheld() == 5);
}

TEST_CASE("kv/chain_forest: leaves come by rank, and a block that is no leaf keeps its new rank until it is one") {
  Forest f(4);
  for (uint32_t n = 0; n < 3; ++n) f.add(n);
  f.add(3, name(0));
  CHECK(f.leaves(9) == Pages{1, 2, 3});
  f.set_rank(1, 7);
  f.set_rank(0, 9);
  CHECK(f.leaves(9) == Pages{2, 3, 1});
  f.remove(3);
  CHECK(f.leaves(9) == Pages{2, 1, 0});
}

TEST_CASE("kv/chain_forest: the children of a removed block are orphans, which the block adopts when it comes back") {
  Forest f(5);
  f.chain(0, 2);
  f.chain(2, 2, name(1));
  f.set_used(3, true);
  f.remove(1);
  f.check();
  CHECK_FALSE(f.is_held(0));  // the used block no longer leads to it
  CHECK(f.subtree(name(1)) == Pages{2, 3});
  f.ChainForest::add(4, name(1), name(0), 4);
  CHECK(f.is_held(0));
  CHECK(f.subtree(name(0)) == Pages{0, 4, 2, 3});
}

TEST_CASE("kv/chain_forest: a parent that would close a cycle is cut") {
  Forest f(3);
  CHECK(f.acyclic_parent(name(0), name(0)).is_zero());
  f.add(1, name(0));
  f.add(2, name(1));
  CHECK(f.acyclic_parent(name(0), name(2)).is_zero());
  CHECK(f.acyclic_parent(name(0), name(9)) == name(9));
  CHECK(f.acyclic_parent(name(5), name(2)) == name(2));
}

TEST_CASE("kv/chain_forest: levels list each block once, after its parent and in the order of the hashes") {
  Forest f(8);
  f.chain(4, 2, name(2));
  f.chain(0, 3);
  f.add(7, name(0));
  f.add(3, name(6));  // its parent is absent
  CHECK(f.by_level() == Pages{0, 3, 1, 7, 2, 4, 5});
}

TEST_CASE("kv/chain_forest: whatever is added, used and removed, the links agree and holds are those of the model") {
  INFO("seed ", test::seed());
  Rng rng(test::seed());
  constexpr uint32_t kBlocks = 24;
  Forest f(kBlocks);
  std::vector<int> parent(kBlocks), used(kBlocks, -1);  // used: -1 = not here
  for (uint32_t n = 0; n < kBlocks; ++n) parent[n] = n == 0 || rng.chance(0.2) ? -1 : static_cast<int>(rng.below(n));
  for (int step = 0; step < 2000; ++step) {
    const auto n = static_cast<uint32_t>(rng.below(kBlocks));
    if (used[n] < 0) {
      f.add(n, parent[n] < 0 ? BlockHash{} : name(static_cast<uint32_t>(parent[n])));
      used[n] = 0;
    } else if (rng.chance(0.4)) {
      f.remove(n);
      used[n] = -1;
    } else {
      used[n] = rng.chance(0.5) ? 1 : 0;
      f.set_used(n, used[n] == 1);
    }
    f.check();
    std::vector<bool> held(kBlocks);
    for (uint32_t b = kBlocks; b-- > 0;) {  // children have greater numbers than their parents
      if (used[b] < 0) continue;
      held[b] = held[b] || used[b] == 1;
      const auto above = static_cast<size_t>(parent[b]);
      if (held[b] && parent[b] >= 0 && used[above] >= 0) held[above] = true;
    }
    for (uint32_t b = 0; b < kBlocks; ++b)
      if (used[b] >= 0) REQUIRE(f.is_held(b) == held[b]);
  }
}

}  // namespace chain_forest_test

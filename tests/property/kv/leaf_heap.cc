#include "kv/leaf_heap.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::kv;

TEST_CASE("the leaf heap orders pages as a sorted set does, through every push, erase and change") {
  const uint64_t seed = test::seed();
  INFO("seed " << seed);
  Rng rng(seed);
  constexpr uint32_t kPages = 64;
  LeafHeap heap;
  heap.resize(kPages);
  std::set<std::pair<uint64_t, PageIndex>> expected;
  std::vector<uint64_t> rank(kPages);
  for (int step = 0; step < 20'000; ++step) {
    const auto page = static_cast<PageIndex>(rng.below(kPages));
    const uint64_t next = rng.below(rng.below(2) ? 4 : 1000);  // many ties, and few
    if (!heap.contains(page)) {
      heap.push(page, rank[page] = next);
      expected.emplace(next, page);
    } else if (rng.below(2)) {
      heap.erase(page);
      expected.erase({rank[page], page});
    } else {
      expected.erase({rank[page], page});
      heap.change(page, rank[page] = next);
      expected.emplace(next, page);
    }
    REQUIRE_EQ(heap.empty(), expected.empty());
    if (!expected.empty()) REQUIRE_EQ(heap.front(), expected.begin()->second);
    if (step % 100 != 0) continue;
    heap.check();
    const auto count = static_cast<uint32_t>(rng.below(kPages));
    std::vector<PageIndex> least;
    for (const auto& [r, p] : expected)
      if (least.size() < count) least.push_back(p);
    REQUIRE_EQ(heap.least(count), least);
  }
}

#include "kv/pool.h"

#include <algorithm>

#include "test.h"

namespace pool_test {

using namespace mc;
using namespace mc::kv;

namespace {

BlockHash name(uint32_t n) {
  BlockHash hash;
  for (int i = 0; i < 4; ++i) hash.bytes[static_cast<size_t>(i)] = static_cast<uint8_t>(n >> (8 * i));
  hash.bytes[15] = 1;  // never zero
  return hash;
}

struct Fixture {
  EventLog log;
  Pool pool;
  explicit Fixture(uint32_t pages, const Eviction* eviction = &kLruTail)
      : pool({.page_count = pages, .eviction = eviction}, log) {}
  ~Fixture() { pool.check(); }

  /// Publishes blocks first..first+count-1, each the child of the one before; leaves them pinned.
  std::vector<PageIndex> store(uint32_t first, uint32_t count, BlockHash parent = {}, uint32_t position = 0) {
    std::vector<PageIndex> pages;
    for (uint32_t i = 0; i < count; ++i) {
      const auto page = pool.allocate(1);
      REQUIRE_OK(page);
      pages.push_back(
          pool.publish((*page)[0], {.hash = name(first + i), .parent = parent, .first_position = position + 64 * i})
              .page);
      parent = name(first + i);
    }
    return pages;
  }
  std::vector<PageIndex> cache(uint32_t first, uint32_t count, BlockHash parent = {}, uint32_t position = 0) {
    auto pages = store(first, count, parent, position);
    pool.touch(pages);
    pool.unpin(pages);
    return pages;
  }
  std::vector<BlockHash> evicted() {
    std::vector<BlockHash> out;
    for (const BlockEvent& event : log.drain())
      if (event.kind == BlockEvent::Kind::removed) out.push_back(event.hash);
    return out;
  }
};

}  // namespace

TEST_CASE("kv/pool: a block that is taken out leaves the index with an event, and its page is the caller's") {
  Fixture f(4);
  const auto pages = f.cache(1, 3);
  f.log.drain();
  CHECK(f.pool.take_out(name(2), Removal::dropped) == pages[1]);
  CHECK(f.pool.find(name(2)) == kNoPage);
  CHECK(f.evicted() == std::vector<BlockHash>{name(2)});
  CHECK((f.pool.counts().owned == 1 && f.pool.counts().cached == 2));
  CHECK(f.pool.state(pages[1]) == PageState::owned);
  f.pool.release(pages[1]);
  CHECK(f.pool.counts().free == 2);
}

TEST_CASE("kv/pool: allocation is all or nothing and says what is missing") {
  Fixture f(4);
  const auto three = f.pool.allocate(3);
  REQUIRE_OK(three);
  const auto two = f.pool.allocate(2);
  REQUIRE_FALSE(two);
  CHECK(two.error().code == Code::busy);
  CHECK(two.error().what == "kv: 2 pages wanted, 1 free and 0 evictable of 4");
  CHECK(f.pool.counts().free == 1);
  f.pool.release(*three);
  CHECK(f.pool.counts().free == 4);
  REQUIRE_OK(f.pool.allocate(0));
}

TEST_CASE("kv/pool: a chain is evicted from its tail") {
  Fixture f(4);
  f.cache(0, 4);
  f.evicted();
  for (uint32_t expected : {3u, 2u, 1u, 0u}) {
    REQUIRE_OK(f.pool.allocate(1));
    const auto gone = f.evicted();
    REQUIRE(gone.size() == 1);
    CHECK(gone[0] == name(expected));
  }
}

TEST_CASE("kv/pool: the least recently used of two chains loses its tail first, and the shared head goes last") {
  Fixture f(5);
  f.cache(0, 1);                                                      // head
  f.cache(10, 2, name(0), 64);                                        // old branch
  f.cache(20, 2, name(0), 64);                                        // young branch
  f.pool.touch(std::vector<BlockHash>{name(0), name(10), name(11)});  // the old branch becomes the young one
  f.evicted();
  REQUIRE_OK(f.pool.allocate(4));
  CHECK(f.evicted() == std::vector<BlockHash>{name(21), name(20), name(11), name(10)});
  CHECK(f.pool.find(name(0)) != kNoPage);
}

TEST_CASE("kv/pool: a request that goes on keeps its chain young and counts as no other use") {
  Fixture f(4);
  const PageIndex old = f.cache(1, 1)[0];
  f.cache(2, 1);
  f.pool.touch(std::vector<BlockHash>{name(1)}, 0);
  CHECK(f.pool.use(old).use_count == 2);  // stored and touched
  f.evicted();
  REQUIRE_OK(f.pool.allocate(3));
  CHECK(f.evicted() == std::vector<BlockHash>{name(2)});
}

TEST_CASE("kv/pool: a head older than its children still outlives them") {
  Fixture f(3);
  f.cache(0, 3);
  f.pool.touch(std::vector<BlockHash>{name(2)});
  f.pool.touch(std::vector<BlockHash>{name(1)});
  f.evicted();
  REQUIRE_OK(f.pool.allocate(1));
  CHECK(f.evicted() == std::vector<BlockHash>{name(2)});
}

TEST_CASE("kv/pool: what is pinned or leased is never evicted, nor what leads to it") {
  Fixture f(6);
  f.cache(0, 3);
  f.cache(10, 3);
  f.pool.pin(f.pool.find(name(1)));
  f.pool.add_lease(f.pool.find(name(12)));
  CHECK(f.pool.counts().evictable == 1);
  CHECK(f.pool.candidates(9).size() == 1);
  CHECK_FALSE(f.pool.allocate(2));
  REQUIRE_OK(f.pool.allocate(1));
  CHECK(f.pool.find(name(2)) == kNoPage);
  f.pool.drop_lease(f.pool.find(name(12)));
  CHECK(f.pool.counts().evictable == 3);
  f.pool.unpin(f.pool.find(name(1)));
  CHECK(f.pool.counts().evictable == 5);
}

TEST_CASE("kv/pool: publishing a block that is here already frees the new page and pins the old one") {
  Fixture f(4);
  const PageIndex old = f.cache(0, 1)[0];
  const auto page = f.pool.allocate(1);
  REQUIRE_OK(page);
  const auto published = f.pool.publish((*page)[0], {.hash = name(0)});
  CHECK(published.duplicate);
  CHECK(published.page == old);
  CHECK(f.pool.pins(old) == 1);
  CHECK(f.pool.counts().free == 3);
  CHECK(f.pool.counts().duplicate_total == 1);
  CHECK(f.log.size() == 1);  // one stored event, not two
  f.pool.unpin(old);
}

TEST_CASE("kv/pool: a released page drains while a remote reader holds its lease") {
  Fixture f(2);
  const auto page = f.pool.allocate(1);
  REQUIRE_OK(page);
  f.pool.add_lease((*page)[0]);
  f.pool.release(*page);
  CHECK(f.pool.state((*page)[0]) == PageState::draining);
  CHECK(f.pool.counts().free == 1);
  f.pool.check();
  f.pool.drop_lease((*page)[0]);
  CHECK(f.pool.counts().free == 2);
}

TEST_CASE("kv/pool: a corrupt block leaves the index at once and its page when the last hold ends") {
  Fixture f(3);
  const auto pages = f.store(0, 3);
  f.pool.unpin(pages[2]);
  CHECK(f.pool.remove(name(1), Removal::corrupt));
  CHECK_FALSE(f.pool.remove(name(1), Removal::corrupt));
  CHECK(f.pool.match(std::vector<BlockHash>{name(0), name(1), name(2)}) == 1);
  CHECK(f.pool.state(pages[1]) == PageState::draining);
  f.pool.check();
  CHECK(f.log.drain().back().reason == Removal::corrupt);
  f.pool.unpin(pages[1]);
  CHECK(f.pool.counts().free == 1);
  SUBCASE("its child is reachable again when the block comes back") {
    f.store(1, 1, name(0), 64);
    CHECK(f.pool.match(std::vector<BlockHash>{name(0), name(1), name(2)}) == 3);
    f.pool.unpin(f.pool.find(name(1)));
    f.pool.unpin(pages[0]);
    f.evicted();
    REQUIRE_OK(f.pool.allocate(3));
    CHECK(f.evicted() == std::vector<BlockHash>{name(2), name(1), name(0)});
  }
  SUBCASE("its child is evicted like any leaf when it does not") {
    f.evicted();
    REQUIRE_OK(f.pool.allocate(2));
    CHECK(f.evicted() == std::vector<BlockHash>{name(2)});
    f.pool.unpin(pages[0]);
  }
}

TEST_CASE("kv/pool: children published before their parent are adopted by it") {
  Fixture f(3);
  f.cache(1, 1, name(0), 64);
  f.cache(2, 1, name(0), 64);
  f.pool.pin(f.pool.find(name(2)));
  f.pool.check();
  f.cache(0, 1);
  f.pool.check();
  CHECK(f.pool.counts().evictable == 1);  // name(1); the head leads to the pinned name(2)
  f.pool.unpin(f.pool.find(name(2)));
  CHECK(f.pool.counts().evictable == 3);
}

TEST_CASE("kv/pool: metadata that would make a cycle of parents is cut where it closes") {
  Fixture f(5);
  f.cache(0, 1, name(0));  // its own parent
  f.cache(1, 1, name(3));
  f.cache(2, 1, name(1));
  f.cache(3, 1, name(2));  // descends from name(1), which waits for it
  f.pool.check();
  CHECK(f.pool.counts().evictable == 4);
  f.evicted();
  REQUIRE_OK(f.pool.allocate(5));
  CHECK(f.evicted() == std::vector<BlockHash>{name(0), name(2), name(1), name(3)});
}

TEST_CASE("kv/pool: chains hold together without positions, and with parents that come last") {
  Fixture f(3);
  f.cache(2, 1, name(1));
  f.cache(1, 1, name(0));
  f.cache(0, 1);
  f.pool.touch(std::vector<BlockHash>{name(2)});
  f.evicted();
  REQUIRE_OK(f.pool.allocate(2));
  CHECK(f.evicted() == std::vector<BlockHash>{name(2), name(1)});
}

TEST_CASE("kv/pool: removing a subtree spares what is held and what leads to it") {
  Fixture f(6);
  f.cache(0, 2);
  f.cache(10, 2, name(1), 128);
  f.cache(20, 2, name(1), 128);
  f.pool.pin(f.pool.find(name(10)));
  CHECK(f.pool.remove_subtree(name(1), Removal::dropped) == 3);
  CHECK(f.pool.match(std::vector<BlockHash>{name(0), name(1), name(10), name(11)}) == 3);
  f.pool.unpin(f.pool.find(name(10)));
  CHECK(f.pool.remove_subtree(name(0), Removal::dropped) == 3);
  CHECK(f.pool.counts().free == 6);
  CHECK(f.pool.remove_subtree(name(0), Removal::dropped) == 0);
}

TEST_CASE("kv/pool: candidates name the next victims in order without evicting them") {
  Fixture f(9);
  for (uint32_t i = 0; i < 9; ++i) f.cache(100 * i, 1);
  f.pool.touch(std::vector<BlockHash>{name(0), name(300)});
  const auto next = f.pool.candidates(7);
  f.evicted();
  REQUIRE_OK(f.pool.allocate(7));
  std::vector<BlockHash> expected;
  for (const uint32_t n : {100u, 200u, 400u, 500u, 600u, 700u, 800u}) expected.push_back(name(n));
  CHECK(f.evicted() == expected);
  REQUIRE(next.size() == 7);
}

TEST_CASE("kv/pool: a watermark counts the pages above it") {
  Fixture f(10);
  f.cache(0, 9);
  CHECK(f.pool.pages_over(0.9) == 0);
  CHECK(f.pool.pages_over(0.75) == 2);
  CHECK(f.pool.pages_over(0.0) == 9);
}

TEST_CASE("kv/pool: events and the snapshot tell the same story") {
  Fixture f(4);
  f.cache(0, 3);
  f.cache(10, 2);  // evicts name(2)
  std::vector<ResidentBlock> told;
  uint64_t seq = 0;
  for (const BlockEvent& event : f.log.drain()) {
    CHECK(event.seq == ++seq);
    if (event.kind == BlockEvent::Kind::stored)
      told.push_back({event.hash, event.parent, event.first_position, event.tier});
    else
      std::erase_if(told, [&](const ResidentBlock& block) { return block.hash == event.hash; });
  }
  auto by_hash = [](const ResidentBlock& a, const ResidentBlock& b) { return a.hash < b.hash; };
  auto listed = f.pool.snapshot();
  for (size_t i = 0; i < listed.size(); ++i)  // parents before children
    for (size_t j = 0; j < i; ++j) CHECK(listed[j].parent != listed[i].hash);
  std::sort(told.begin(), told.end(), by_hash);
  std::sort(listed.begin(), listed.end(), by_hash);
  CHECK(listed == told);
  CHECK(f.log.last_seq() == seq);
}

TEST_CASE("kv/pool: an event log nobody drains stays bounded and shows the gap") {
  EventLog log(4);
  for (int i = 0; i < 10; ++i) log.append({});
  CHECK(log.lost_count() == 6);
  const auto rest = log.drain();
  REQUIRE(rest.size() == 4);
  CHECK(rest.front().seq == 7);
  CHECK(log.last_seq() == 10);
}

TEST_CASE("kv/pool: a retired range gives up its cached blocks, unless one of its pages is in use") {
  Fixture f(4);
  const auto pages = f.cache(0, 4);
  f.pool.pin(pages[3]);
  CHECK_FALSE(f.pool.retire(2, 2));
  CHECK(f.pool.counts().cached == 4);
  f.pool.unpin(pages[3]);
  REQUIRE(f.pool.retire(2, 2));
  f.pool.check();
  CHECK(f.pool.counts().total == 2);
  CHECK(f.pool.counts().cached == 2);
  CHECK_FALSE(f.pool.allocate(3));
  f.pool.restore(2, 2);
  CHECK(f.pool.grow(2) == 4);
  CHECK(f.pool.counts().total == 6);
  REQUIRE_OK(f.pool.allocate(6));
}

TEST_CASE("kv/pool: the generation of a page tells its reuse") {
  Fixture f(1);
  const auto page = f.pool.allocate(1);
  REQUIRE_OK(page);
  const uint64_t before = f.pool.generation((*page)[0]);
  f.pool.release(*page);
  REQUIRE_OK(f.pool.allocate(1));
  CHECK(f.pool.generation((*page)[0]) == before + 1);
}

TEST_CASE("kv/eviction: each policy is found by its name, and fifo does not care about use") {
  for (const Eviction* eviction : evictions()) CHECK(find_eviction(eviction->name) == eviction);
  CHECK(find_eviction("clock") == nullptr);
  CHECK(evictions()[0] == &kLruTail);
  Fixture f(2, &kFifo);
  f.cache(0, 1);
  f.cache(1, 1);
  f.pool.touch(std::vector<BlockHash>{name(0)});
  f.evicted();
  REQUIRE_OK(f.pool.allocate(1));
  CHECK(f.evicted() == std::vector<BlockHash>{name(0)});
}

TEST_CASE("kv/eviction: lfu gives up what was used least, and length-aware the deepest of those") {
  for (const Eviction* eviction : {&kLfu, &kLengthAware}) {
    INFO(eviction->name);
    Fixture f(3, eviction);
    f.cache(0, 1);            // used three times
    f.cache(1, 1, {}, 6400);  // used twice, far down its prompt
    f.cache(2, 1);            // used twice, later
    f.pool.touch(std::vector<BlockHash>{name(0)});
    f.evicted();
    REQUIRE_OK(f.pool.allocate(1));
    CHECK(f.evicted() == std::vector<BlockHash>{name(1)});
    REQUIRE_OK(f.pool.allocate(1));
    CHECK(f.evicted() == std::vector<BlockHash>{name(2)});
  }
  Fixture f(2, &kLengthAware);
  f.cache(0, 1, {}, 6400);
  f.cache(1, 1);
  f.pool.touch(std::vector<BlockHash>{name(0)});
  f.pool.touch(std::vector<BlockHash>{name(1)});
  f.evicted();
  REQUIRE_OK(f.pool.allocate(1));
  CHECK(f.evicted() == std::vector<BlockHash>{name(0)});  // the older use does not matter, the place does
}

TEST_CASE("kv/eviction: lru uses a prompt from its front, lru-tail from its end") {
  const auto last_use = [](const Eviction* eviction) {
    Fixture f(3, eviction);
    const auto pages = f.cache(0, 3);
    f.pool.touch(std::span<const PageIndex>(pages));
    return std::pair(f.pool.use(pages[0]).last_use, f.pool.use(pages[2]).last_use);
  };
  const auto [front, end] = last_use(&kLru);
  CHECK(front < end);
  const auto [tail_front, tail_end] = last_use(&kLruTail);
  CHECK(tail_front > tail_end);
}

TEST_CASE("kv/eviction: every policy evicts a block on trial first, until the trial ends") {
  for (const Eviction* eviction : evictions()) {
    INFO(eviction->name);
    Fixture f(2, eviction);
    f.cache(0, 1);
    const auto page = f.cache(1, 1)[0];
    f.pool.touch(std::vector<BlockHash>{name(1)});
    f.pool.set_trial(page, true);
    f.pool.touch(std::vector<BlockHash>{name(1)});
    CHECK(f.pool.candidates(1) == std::vector<PageIndex>{page});
    f.pool.set_trial(page, false);
    CHECK(f.pool.candidates(1) != std::vector<PageIndex>{page});
    f.pool.set_trial(page, true);
    f.evicted();
    REQUIRE_OK(f.pool.allocate(1));
    CHECK(f.evicted() == std::vector<BlockHash>{name(1)});
    CHECK_FALSE(f.pool.on_trial(page));
  }
}

}  // namespace pool_test

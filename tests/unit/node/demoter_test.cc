// The demoter that asks a cache node by lookups before it offers blocks. lender_test.cc has the offers themselves.
#include "node/demoter.h"

#include <cstdlib>

#include "bench.h"

namespace demoter_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;
using wire::HeldIn;

namespace {

const InstanceId kCache = instance(3);

/// A node whose pool is full of one chain, and the cache node c0.
struct Demoting {
  kv::EventLog log;
  Shelf shelf;
  std::vector<BlockHash> hashes;
  NamespaceBook names;
  Demoter demoter;
  wire::Peer cache{"c0", kCache, wire::Role::cache, "", {}};
  TimePoint now{};
  uint64_t numbers = 0;
  std::vector<BlockHash> touched;  // by the last answer

  explicit Demoting(uint32_t blocks)
      : shelf(layout_of(2), blocks, blocks, kv::kLruTail, log),
        hashes(kv::chain(NamespaceId{}, std::vector<uint32_t>(size_t{64} * blocks, 5), 64)),
        demoter(shelf, 0.2, "text", names, true) {
    shelf.slabs.push_back(0);
    for (uint32_t i = 0; i < blocks; ++i) {
      const auto page = shelf.pool.allocate(1);
      REQUIRE_OK(page);
      kv::BlockMeta meta{hashes[i], i == 0 ? BlockHash{} : hashes[i - 1], {}, i * 64, {1, 2}};
      shelf.pool.unpin(shelf.pool.publish((*page)[0], std::move(meta)).page);
    }
  }
  Actions next() {
    Actions out;
    now += 20ms;
    if (demoter.due(now)) demoter.offer({&cache}, {}, ++numbers, now, out);
    return out;
  }
  Lookup asked() {
    const auto lookups = all<Lookup>(next());
    REQUIRE(lookups.size() == 1);
    CHECK(lookups[0].instance == kCache);
    return lookups[0];
  }
  std::vector<BlockHash> offered() {
    std::vector<BlockHash> out;
    for (const auto& offer : sent<wire::DemoteOffer>(next(), "c0"))
      for (const auto& block : offer.blocks) out.push_back(block.hash);
    return out;
  }
  void answer(const Lookup& asked, uint32_t first, uint32_t end, Code code = Code::ok) {
    LookedUp answer{asked.lookup, code, {}};
    for (size_t i = 0; code == Code::ok && i < asked.hashes.size(); ++i)
      answer.held.push_back(i >= first && i < end ? HeldIn::memory : HeldIn::none);
    touched.clear();
    Actions out;
    demoter.on_looked_up(answer, now, out);
    for (const Touch& touch : all<Touch>(out)) touched = touch.hashes;
  }
};

}  // namespace

TEST_CASE("node/demoter: blocks that the cache node has are asked about once and not offered") {
  Demoting d(40);
  const Lookup asked = d.asked();
  CHECK(asked.hashes == d.hashes);  // more than one offer takes
  CHECK(d.next().empty());          // one question at a time
  d.answer(asked, 0, 38);
  CHECK(d.touched == std::vector<BlockHash>(d.hashes.begin(), d.hashes.begin() + 38));
  CHECK(d.offered() == std::vector<BlockHash>{d.hashes[38], d.hashes[39]});
  d.demoter.on_done(instance(3), {d.numbers, {d.hashes[38], d.hashes[39]}, wire::DemoteEnd::complete}, d.now);
  CHECK(d.next().empty());
  CHECK(d.shelf.leases.size() == 0);
}

TEST_CASE("node/demoter: a chain that the cache node lacks is offered in parts after one question") {
  Demoting d(40);
  d.answer(d.asked(), 0, 0);
  const auto first = d.offered(), second = d.offered();
  CHECK(first.size() == 32);
  CHECK(second.size() == 8);
  d.demoter.drop(kCache);
}

TEST_CASE("node/demoter: what a cache node said is forgotten after a time, and blocks that it lost are offered again") {
  Demoting d(4);
  d.answer(d.asked(), 0, 4);
  CHECK(d.next().empty());
  d.now += 10s;
  const Lookup again = d.asked();
  CHECK(again.hashes == d.hashes);
  d.answer(again, 0, 1);
  CHECK(d.touched.empty());  // an answer that is no news is no use
  CHECK(d.offered() == std::vector<BlockHash>(d.hashes.begin() + 1, d.hashes.end()));
  d.demoter.drop(kCache);
}

TEST_CASE("node/demoter: without an answer the blocks are offered") {
  Demoting d(4);
  d.answer(d.asked(), 0, 0, Code::busy);
  CHECK(d.offered() == d.hashes);
  Actions out;
  d.demoter.on_looked_up({99, Code::ok, {}}, d.now, out);  // an answer to nothing
  CHECK(out.empty());
  d.demoter.drop(kCache);
}

TEST_CASE("node/demoter: blocks that were evicted or leased during the question are not offered") {
  Demoting d(4);
  const Lookup asked = d.asked();
  CHECK(d.shelf.pool.remove(d.hashes[3], kv::Removal::dropped));
  const auto page = d.shelf.pool.find(d.hashes[0]);
  const auto lease = d.shelf.leases.grant("d0", std::span(&page, 1), d.now + 1s);
  REQUIRE_OK(lease);
  d.answer(asked, 0, 0);
  CHECK(d.offered() == std::vector<BlockHash>{d.hashes[1], d.hashes[2]});
  REQUIRE_OK(d.shelf.leases.release(*lease));
  d.demoter.drop(kCache);
}

TEST_CASE("node/demoter: a cache node that has just joined gets few chains, and its whole share after a minute") {
  Demoting d(1);
  wire::Peer fresh{"c1", instance(4), wire::Role::cache, "", {}};
  fresh.member_ms = 1;
  d.demoter.on_peers({1, {d.cache, fresh}}, d.now);
  constexpr int kChains = 300;
  const auto taken = [&](Duration age) {
    int count = 0;
    for (int i = 0; i < kChains; ++i) {
      kv::EventLog log;
      Shelf shelf(layout_of(2), 1, 1, kv::kLruTail, log);
      shelf.slabs.push_back(0);
      const auto page = shelf.pool.allocate(1);
      REQUIRE_OK(page);
      const auto hash = kv::chain(NamespaceId{}, std::vector<uint32_t>(64, static_cast<uint32_t>(i)), 64)[0];
      shelf.pool.unpin(shelf.pool.publish((*page)[0], {hash, {}, {}, 0, {1, 2}}).page);
      Demoter demoter(shelf, 0.2, "text", d.names, false);
      demoter.on_peers({1, {d.cache, fresh}}, d.now);
      Actions out;
      demoter.offer({&d.cache, &fresh}, {}, 1, d.now + age, out);
      const bool to_fresh = !sent<wire::DemoteOffer>(out, "c1").empty();
      CHECK(to_fresh == sent<wire::DemoteOffer>(out, "c0").empty());
      count += to_fresh;
      demoter.drop(kCache), demoter.drop(fresh.instance);
    }
    return count;
  };
  // Both have the same capacity, so the parts are 1/17, 1/3 and 1/2 of the chains, within 5 standard deviations.
  CHECK(std::abs(taken(0s) - kChains / 17) <= 21);
  CHECK(std::abs(taken(30s) - kChains / 3) <= 41);
  CHECK(std::abs(taken(60s) - kChains / 2) <= 44);
}

}  // namespace demoter_test

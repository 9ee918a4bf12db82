// The demoter that asks a cache node by lookups before it offers blocks. lender_test.cc has the offers themselves.
#include "node/demoter.h"

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
  d.demoter.on_done(instance(3), {d.numbers, {d.hashes[38], d.hashes[39]}, ""}, d.now);
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

}  // namespace demoter_test

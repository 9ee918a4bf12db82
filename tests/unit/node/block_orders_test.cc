// Orders of operators about the blocks of a node: evictions, pins and reads, on a pool with a disk below it.

#include "node/block_orders.h"

#include <algorithm>

#include "base/errors.h"
#include "base/rng.h"
#include "base/units.h"
#include "node/prefill.h"
#include "order_bench.h"

namespace block_orders_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

TEST_CASE("node/orders: an eviction without conditions frees every block that nothing holds, in memory and on disk") {
  OrderBench b;
  const auto a = b.publish(1, 4), c = b.publish(2, 3);
  b.put_on_disk(a);
  b.leave_memory({a[3]});
  const EvictReport report = b.evict({});
  CHECK(report.memory.blocks == 6);
  CHECK(report.memory.bytes == 6 * kPage);
  CHECK(report.disk.blocks == 4);
  CHECK(b.shelf.pool.counts().cached == 0);
  CHECK(b.shelf.pool.counts().evicted_total == 7);  // one left memory before
  CHECK(b.disk.blocks().empty());
  std::vector<BlockHash> dropped;
  for (const DiskDrop& drop : all<DiskDrop>(b.out))
    dropped.insert(dropped.end(), drop.hashes.begin(), drop.hashes.end());
  CHECK(dropped.size() == 4);
}

TEST_CASE("node/orders: a dry run frees nothing and reports what the eviction then frees") {
  OrderBench b;
  const auto a = b.publish(1, 4);
  b.publish(2, 3);
  b.put_on_disk(a);
  b.leave_memory({a[2], a[3]});
  b.lease(a[1]);
  const EvictReport dry = b.evict({}, true);
  CHECK(b.shelf.pool.counts().cached == 5);
  CHECK(b.disk.blocks().size() == 4);
  CHECK(all<DiskDrop>(b.out).empty());
  const EvictReport real = b.evict({});
  CHECK(real.memory.blocks == dry.memory.blocks);
  CHECK(real.memory.blocks == 3);
  CHECK(real.disk.blocks == dry.disk.blocks);
  CHECK(real.disk.blocks == 2);
  for (size_t why = 0; why < kStayedCount; ++why) CHECK(real.stayed[why].blocks == dry.stayed[why].blocks);
}

TEST_CASE("node/orders: leased, pinned and used blocks stay with their ancestors, each for its own reason") {
  OrderBench b;
  const auto leased = b.publish(1, 3), pinned = b.publish(2, 2), used = b.publish(3, 3), free = b.publish(4, 2);
  b.lease(leased[1]);
  CHECK(b.pin(pinned[1]).chain.blocks == 2);
  b.shelf.pool.pin(b.shelf.pool.find(used[2]));
  const EvictReport report = b.evict({});
  CHECK(report.memory.blocks == 3);  // both free ones, and the block behind the leased one
  CHECK(b.stayed(report, Stayed::leased) == 1);
  CHECK(b.stayed(report, Stayed::pinned) == 2);
  CHECK(b.stayed(report, Stayed::in_use) == 1);
  CHECK(b.stayed(report, Stayed::needed) == 3);
  CHECK(b.in_memory(leased[0]));
  CHECK_FALSE(b.in_memory(leased[2]));
  CHECK_FALSE(b.in_memory(free[0]));
  b.shelf.pool.unpin(b.shelf.pool.find(used[2]));
}

TEST_CASE("node/orders: a block on disk that a block in memory continues stays") {
  OrderBench b;
  const auto a = b.publish(1, 4);
  b.put_on_disk(a);
  b.lease(a[3]);
  b.leave_memory({a[0], a[1]});
  const EvictReport report = b.evict({});
  CHECK(report.disk.blocks == 0);
  CHECK(b.stayed(report, Stayed::needed) == 3);
  CHECK(b.stayed(report, Stayed::leased) == 1);
  CHECK(b.disk.has(a[0]));
}

TEST_CASE("node/orders: a block that is being written or loaded stays") {
  OrderBench b;
  const auto a = b.publish(1, 15);
  Actions writes;
  b.disk.tend(b.shelves, b.now, writes);
  REQUIRE(!all<DiskWrite>(writes).empty());
  const BlockHash writing = all<DiskWrite>(writes)[0].block.hash;
  const EvictReport report = b.evict({});
  CHECK(b.in_memory(writing));
  CHECK(b.stayed(report, Stayed::in_use) == all<DiskWrite>(writes).size());
  for (const DiskWrite& write : all<DiskWrite>(writes)) {
    Actions more;
    b.disk.on_event(DiskWritten{write.op, Code::ok, ""}, {}, b.now, more);
  }
  b.evict({});
  CHECK(b.shelf.pool.counts().cached == 0);
  CHECK(b.disk.blocks().empty());
}

TEST_CASE("node/orders: a prefix means its block and the prompts that continue it, over both tiers") {
  OrderBench b;
  const auto a = b.publish(1, 5), other = b.publish(2, 2);
  b.put_on_disk(a);
  b.leave_memory({a[3], a[4]});
  const EvictReport report = b.evict({.prefix = a[2]});
  CHECK(report.memory.blocks == 1);
  CHECK(report.disk.blocks == 3);
  CHECK(b.in_memory(a[1]));
  CHECK(b.disk.has(a[1]));
  CHECK_FALSE(b.disk.has(a[4]));
  CHECK(b.in_memory(other[1]));
  BlockHash absent;
  absent.bytes[3] = 9;
  CHECK(b.evict({.prefix = absent}).memory.blocks == 0);
}

TEST_CASE("node/orders: a tenant's and a model's blocks are those of their namespaces, and unknown ones are counted") {
  OrderBench b;
  const kv::Namespace alice = kKv.with_salt("5:alice"), narrowed = kKv.with_salt("5:aliceown"),
                      bob = kKv.with_salt("3:bob"), unknown = kKv.with_salt("4:carl");
  b.book.names().add(alice.id(), alice, "m");
  b.book.names().add(narrowed.id(), narrowed, "m");
  b.book.names().add(bob.id(), bob, "other");
  b.publish(1, 1, alice), b.publish(2, 2, narrowed), b.publish(3, 3, bob), b.publish(4, 4, unknown), b.publish(5, 1);
  const EvictReport dry = b.evict({.tenant = "alice"}, true);
  CHECK(dry.memory.blocks == 3);
  CHECK(b.stayed(dry, Stayed::unknown) == 4);
  CHECK(b.evict({.model = "other"}, true).memory.blocks == 3);
  CHECK(b.evict({.tenant = "alice", .model = "other"}, true).memory.blocks == 0);
  CHECK(b.evict({.tenant = "alice"}).memory.blocks == 3);
  CHECK(b.evict({.tenant = "default"}).memory.blocks == 1);
  CHECK(b.evict({}).memory.blocks == 7);
}

TEST_CASE(
    "node/orders: blocks that were imported under a salt are of an unknown tenant, and others of the default one") {
  OrderBench b;
  const kv::Namespace alice = kKv.with_salt("5:alice");
  WriteBlocks salted = writing(1, 3);
  salted.name_space = alice.id();
  for (kv::BlockMeta& block : salted.blocks) block.name_space = alice.id();
  b.end(b.give(salted));
  b.end(b.give(writing(2, 2)));
  const EvictReport of_alice = b.evict({.tenant = "alice"}, true), of_default = b.evict({.tenant = "default"}, true);
  CHECK(of_alice.memory.blocks == 0);
  CHECK(b.stayed(of_alice, Stayed::unknown) == 3);
  CHECK(of_default.memory.blocks == 2);
  CHECK(b.stayed(of_default, Stayed::unknown) == 3);
  CHECK(b.evict({.model = "m"}, true).memory.blocks == 5);
  b.book.names().add(alice.id(), alice, "m");  // a prompt of the tenant arrives
  CHECK(b.evict({.tenant = "alice"}).memory.blocks == 3);
}

TEST_CASE("node/orders: an eviction says whether the node knows the tenant and the model that it names") {
  OrderBench b;
  b.publish(1, 1);
  const EvictReport none = b.evict({.tenant = "alicia", .model = "w"});
  CHECK_FALSE(none.knows_tenant);
  CHECK_FALSE(none.knows_model);
  const EvictReport known = b.evict({.tenant = "default", .model = "m", .older = 3600s});
  CHECK(known.memory.blocks == 0);
  CHECK(known.knows_tenant);
  CHECK(known.knows_model);
  CHECK(b.evict({}).knows_tenant);
}

TEST_CASE("node/orders: a model is named by at least eight digits of its weights' digest too") {
  OrderBench b;
  kv::Namespace kv = kKv;
  kv.weights = "0123456789abcdef";
  b.book.names().add(kv.id(), kv, "");
  b.publish(1, 2, kv);
  CHECK(b.evict({.model = "0123456"}).memory.blocks == 0);
  CHECK(b.evict({.model = "01234567"}).memory.blocks == 2);
}

TEST_CASE("node/orders: only blocks that were not used for so long are old, and those on disk count from their write") {
  OrderBench b;
  const auto old = b.publish(1, 3), touched = b.publish(2, 2);
  const auto cold = kv::chain(kKv.id(), tokens_of(3, 2), 64);
  b.put_on_disk(cold);
  b.wait(1s);
  CHECK(b.evict({.older = 3600s}).memory.blocks == 0);
  b.wait(3600s);
  b.shelf.pool.touch(touched);
  b.wait(3600s);
  const auto fresh = b.publish(4, 2);
  b.wait(1s);
  const EvictReport report = b.evict({.older = 5400s});
  CHECK(report.memory.blocks == 3);
  CHECK(report.disk.blocks == 2);
  CHECK_FALSE(b.in_memory(old[0]));
  CHECK(b.in_memory(touched[0]));
  CHECK(b.in_memory(fresh[1]));
}

TEST_CASE("node/orders: an eviction goes on in bounded steps, ends at its deadline, and others wait behind it") {
  OrderBench b(8 * Evicting::kLooksAStep);
  for (uint32_t seed = 0; seed < 4 * Evicting::kLooksAStep; ++seed) b.publish(seed, 1);
  const uint64_t first = b.give(EvictBlocks{}), second = b.give(EvictBlocks{}, 1s);
  b.tick();
  CHECK(all<OrderAnswer>(b.out).empty());
  for (int i = 0; i < 40; ++i) b.tick();
  CHECK(b.answer<EvictReport>(first).memory.blocks == 4 * Evicting::kLooksAStep);
  CHECK(b.answer<EvictReport>(second).memory.blocks == 0);
  CHECK(b.orders.idle());
  const uint64_t late = b.give(EvictBlocks{}, 0s);
  b.tick();
  CHECK(b.answer<Error>(late).mc == err::kDeadlineExceeded);
  for (size_t i = 0; i <= BlockOrders::kWaitingMax; ++i) b.give(EvictBlocks{});
  CHECK(b.answer<Error>(b.count).mc == err::kQueueFull);
  for (uint64_t id = 1; id <= b.count; ++id) b.orders.on_order({id, b.now, CancelOrder{}}, b.now, b.out);
  CHECK(b.orders.idle());
}

TEST_CASE("node/orders: an eviction that waits behind another ends at its own deadline") {
  OrderBench b(8 * Evicting::kLooksAStep);
  b.publish(1, 1);
  const uint64_t under_way = b.give(EvictBlocks{}, 10s), waiting = b.give(EvictBlocks{}, 1s),
                 patient = b.give(EvictBlocks{}, 10s);
  b.wait(2s);
  b.tick();
  CHECK(b.answer<Error>(waiting).mc == err::kDeadlineExceeded);
  for (int i = 0; i < 60; ++i) b.tick();
  CHECK(b.answer<EvictReport>(under_way).memory.blocks == 1);
  CHECK(b.answer<EvictReport>(patient).memory.blocks == 0);
}

TEST_CASE("node/orders: an eviction counts each block once, though the table of the disk grows meanwhile") {
  constexpr uint32_t kBlocks = 5000, kMore = 300;
  for (const bool dry_run : {true, false}) {
    OrderBench b;
    const kv::Namespace unknown = kKv.with_salt("4:carl");
    const auto fill = [&](uint32_t from, uint32_t count) {
      for (uint32_t seed = from; seed < from + count; ++seed)
        b.put_on_disk(kv::chain(kKv.id(), tokens_of(seed, 1), 64), seed % 2 == 0 ? kKv : unknown);
    };
    fill(0, kBlocks);
    const size_t buckets = b.disk.blocks().buckets();
    const uint64_t id = b.give(EvictBlocks{{.tenant = "default"}, dry_run});
    // The memory takes two steps, and each look at the disk one for 1,024 buckets.
    for (size_t i = 0; i < 2 + (buckets + Evicting::kLooksAStep - 1) / Evicting::kLooksAStep + 3; ++i) b.tick();
    REQUIRE_FALSE(b.orders.idle());
    fill(kBlocks, dry_run ? kMore : 2 * kBlocks);
    REQUIRE(b.disk.blocks().buckets() > buckets);
    for (int i = 0; i < 100; ++i) b.tick();
    const auto report = b.answer<EvictReport>(id);
    const uint64_t known = (kBlocks + (dry_run ? kMore : 2 * kBlocks)) / 2;
    CHECK(report.disk.blocks == known);
    CHECK(b.stayed(report, Stayed::unknown) == known);
  }
}

TEST_CASE("node/orders: evictions among random holds free nothing held and keep every chain whole") {
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  for (int round = 0; round < 60; ++round) {
    OrderBench b(64);
    std::vector<BlockHash> blocks;
    for (uint32_t seed = 0; seed < 6; ++seed) {
      const auto chain = b.publish(seed, 1 + rng.below(8));
      if (rng.chance(0.5)) b.put_on_disk(chain);
      blocks.insert(blocks.end(), chain.begin(), chain.end());
    }
    std::vector<BlockHash> held;
    for (const BlockHash& hash : blocks) {
      if (!b.in_memory(hash)) continue;
      if (rng.chance(0.1))
        b.lease(hash), held.push_back(hash);
      else if (rng.chance(0.2) && b.disk.has(hash))
        b.leave_memory({hash});
    }
    BlockFilter filter;
    if (rng.chance(0.5)) filter.prefix = blocks[rng.below(blocks.size())];
    const EvictReport dry = b.evict(filter, true), real = b.evict(filter);
    CHECK(dry.memory.blocks == real.memory.blocks);
    CHECK(dry.disk.blocks == real.disk.blocks);
    for (const BlockHash& hash : held) CHECK(b.in_memory(hash));
    for (const BlockHash& hash : blocks) {  // a block that stayed has its parent, if both were there
      const kv::PageIndex page = b.shelf.pool.find(hash);
      if (page == kv::kNoPage) continue;
      const BlockHash parent = b.shelf.pool.meta(page).parent;
      CHECK((parent.is_zero() || b.in_memory(parent) || b.disk.has(parent)));
    }
  }
}

TEST_CASE("node/orders: a pinned chain outlives the pressure of other prompts until its time is over") {
  OrderBench b;
  const auto a = b.publish(1, 3);
  const PinReport report = b.pin(a[2], 3600s);
  CHECK(report.chain.blocks == 3);
  CHECK(report.chain.bytes == 3 * kPage);
  CHECK(report.pinned_bytes == 3 * kPage);
  CHECK(report.pinned_bytes_max == 8 * kPage);
  for (uint32_t seed = 10; seed < 30; ++seed) b.publish(seed, 2);
  for (const BlockHash& hash : a) CHECK(b.in_memory(hash));
  CHECK(b.orders.idle());
  b.wait(3540s);
  CHECK(b.orders.pins().count(b.shelf) == 1);
  b.wait(60s);
  CHECK(b.orders.pins().count(b.shelf) == 0);
  CHECK(b.orders.pins().bytes() == 0);
  for (uint32_t seed = 30; seed < 50; ++seed) b.publish(seed, 2);
  CHECK_FALSE(b.in_memory(a[2]));
}

TEST_CASE("node/orders: a pin beyond half of the memory is refused with the numbers, and shared blocks count once") {
  OrderBench b;
  const auto a = b.publish(1, 6);
  CHECK(b.pin(a[5]).pinned_bytes == 6 * kPage);
  CHECK(b.pin(a[3]).pinned_bytes == 6 * kPage);
  const auto c = b.publish(2, 3);
  const Error refused = b.answer<Error>(b.give(PinBlocks{c[2], 3600s}));
  CHECK(refused.mc == err::kNotEnoughMemory);
  CHECK(refused.what.find("3 blocks") != std::string::npos);
  CHECK(refused.what.find(human_bytes(6 * kPage)) != std::string::npos);
  CHECK(refused.what.find(human_bytes(8 * kPage)) != std::string::npos);
  CHECK(b.pin(c[1]).pinned_bytes == 8 * kPage);
  CHECK(b.answer<UnpinReport>(b.give(UnpinBlocks{a[5]})).blocks == 6);
  CHECK(b.orders.pins().bytes() == 6 * kPage);  // four of the shorter pin, and two
  CHECK(b.answer<Error>(b.give(UnpinBlocks{a[5]})).mc == err::kNotFound);
}

TEST_CASE("node/orders: a second pin of a chain takes the place of the first, shorter or longer") {
  OrderBench b;
  const auto a = b.publish(1, 2);
  b.pin(a[1], 3600s);
  b.pin(a[1], 7200s);
  CHECK(b.shelf.leases.size() == 1);
  b.wait(5400s);
  CHECK(b.orders.pins().until(b.shelf, b.shelf.pool.find(a[0])) == b.now + 1800s);
  b.pin(a[1], 60s);
  b.wait(60s);
  CHECK(b.shelf.leases.size() == 0);
}

TEST_CASE("node/orders: a pin brings blocks from disk first, and a broken chain is refused by the block that lacks") {
  OrderBench b;
  const auto a = b.publish(1, 4);
  b.put_on_disk(a);
  b.leave_memory({a[1], a[2], a[3]});
  const uint64_t id = b.give(PinBlocks{a[3], 3600s});
  CHECK_FALSE(b.orders.idle());
  b.tick();
  CHECK(all<OrderAnswer>(b.out).empty());
  b.load_all();
  CHECK(b.orders.next_wakeup() <= b.now);
  b.tick();
  const auto report = b.answer<PinReport>(id);
  CHECK(report.chain.blocks == 4);
  CHECK(report.loaded_blocks == 3);
  const auto c = b.publish(2, 3);
  b.leave_memory({c[0]});
  const Error broken = b.answer<Error>(b.give(PinBlocks{c[2], 3600s}));
  CHECK(broken.mc == err::kNotFound);
  CHECK(broken.what.find(c[0].hex()) != std::string::npos);
}

TEST_CASE("node/orders: a pin whose blocks do not come from disk in time ends with an error and holds nothing") {
  OrderBench b;
  const auto a = b.publish(1, 2);
  b.put_on_disk(a);
  b.leave_memory({a[1]});
  const uint64_t id = b.give(PinBlocks{a[1], 3600s}, 1s);
  b.wait(1s);
  b.tick();
  CHECK(b.answer<Error>(id).mc == err::kDeadlineExceeded);
  CHECK(b.orders.idle());
  CHECK(b.shelf.leases.size() == 0);
  b.load_all();
}

TEST_CASE("node/orders: a read leases a bounded run of a chain until it is ended, and nothing of the run is evicted") {
  OrderBench b;
  const auto a = b.publish(1, 6);
  const uint64_t id = b.give(ReadBlocks{a[5], 2, 3 * kPage});
  const auto run = b.answer<BlockRun>(id);
  CHECK(run.first == 2);
  CHECK(run.chain_blocks == 6);
  REQUIRE(run.blocks.size() == 3);
  CHECK(run.blocks[0].hash == a[2]);
  CHECK(run.blocks[2].tokens == std::vector<uint32_t>(64, 1));
  CHECK(run.kv_namespace == kKv.text());
  CHECK_FALSE(b.orders.idle());
  b.give(EvictBlocks{});
  for (int i = 0; i < 4; ++i) b.tick();
  CHECK(b.stayed(b.answer<EvictReport>(b.count), Stayed::leased) == 3);
  b.end(id);
  CHECK(b.orders.idle());
  CHECK(b.shelf.leases.size() == 0);
  CHECK(b.answer<Error>(b.give(ReadBlocks{a[4], 9, kPage})).mc == err::kInvalidField);
}

TEST_CASE("node/orders: blocks of a read that failed their checksums leave memory and are counted") {
  OrderBench b;
  const auto a = b.publish(1, 4);
  b.put_on_disk({a[0], a[1]});
  const uint64_t id = b.give(ReadBlocks{a[3], 1, 3 * kPage});
  REQUIRE(b.answer<BlockRun>(id).pages.size() == 3);
  b.orders.on_order({id, b.now, EndOrder{{0, 2}}}, b.now, b.out);
  CHECK_FALSE(b.in_memory(a[1]));
  CHECK(b.disk.has(a[1]));  // and a read finds it there
  CHECK(b.in_memory(a[2]));
  CHECK_FALSE(b.in_memory(a[3]));
  CHECK(b.book.memory().was_rotten(a[3]));
  CHECK(b.orders.checksum_failures() == 2);
  CHECK(b.shelf.leases.size() == 0);
  CHECK(b.shelf.pool.counts().draining == 0);
  CHECK(b.orders.idle());
}

TEST_CASE("node/orders: a stream of another attention is stored, and one of other weights is refused by its field") {
  OrderBench b;
  WriteBlocks other = writing(1, 2);
  other.kv.attention = "moba:block=64,top_k=3";
  b.end(b.give(other));
  CHECK(b.evict({}, true).memory.blocks == 2);
  WriteBlocks foreign = other;
  foreign.kv.weights = "0123456789abcdef";
  const Error refused = b.answer<Error>(b.give(foreign));
  CHECK(refused.mc == err::kKvFileForeign);
  CHECK(refused.where == "field weights");
}

TEST_CASE("node/orders: the leader of a pipeline evicts and pins, but gives and takes no blocks") {
  OrderBench b;
  const auto a = b.publish(1, 2);
  b.source.leads = true;
  CHECK(b.answer<Error>(b.give(ReadBlocks{a[1], 0, kPage})).mc == err::kNotFound);
  const Error refused = b.answer<Error>(b.give(writing(2, 1)));
  CHECK(refused.mc == err::kKvFileForeign);
  CHECK(refused.next == "import into a node outside the pipeline, or into a cache node");
  CHECK(b.pin(a[1]).chain.blocks == 2);
  b.give(UnpinBlocks{a[1]});
  CHECK(b.evict({}).memory.blocks == 2);
}

TEST_CASE(
    "node/orders: a cache node that forgot a namespace gives its blocks in memory, and says why not those on disk") {
  OrderBench b(16, kv::Namespace());  // a cache node
  const auto a = b.publish(1, 2);
  b.put_on_disk(a);
  b.source.forgets = true;
  const uint64_t id = b.give(ReadBlocks{a[1], 0, kPage});
  CHECK(b.answer<BlockRun>(id).pages.size() == 1);
  b.end(id);
  b.leave_memory(a);
  const Error gone = b.answer<Error>(b.give(ReadBlocks{a[1], 0, kPage}));
  CHECK(gone.what.find("no longer knows their layout") != std::string::npos);
  CHECK(gone.next.find("pipeline") == std::string::npos);
}

TEST_CASE("node/orders: a read that nobody ends gives its lease back when its time is over") {
  OrderBench b;
  const auto a = b.publish(1, 2);
  b.give(ReadBlocks{a[1], 0, 0});
  CHECK(b.shelf.leases.page_count() == 1);  // one block at least
  b.wait(BlockOrders::kLeaseTime);
  CHECK(b.orders.idle());
  CHECK(b.shelf.leases.size() == 0);
}

TEST_CASE("node/orders: pins neither keep a node from draining nor count as leases of readers") {
  Bench<Prefill, PrefillOptions> b(wire::Role::prefill, 16, PrefillOptions{});
  std::vector<BlockHash> hashes = kv::chain(kKv.id(), tokens_of(1, 2), 64);
  auto& pool = b.machine.shelves()[0]->pool;
  for (size_t i = 0; i < 2; ++i) {
    const auto page = pool.allocate(1);
    REQUIRE_OK(page);
    pool.unpin(
        pool.publish(page->front(), {hashes[i], i ? hashes[0] : BlockHash{}, kKv.id(), 64 * uint32_t(i), {7, 8}}).page);
  }
  const auto pinned = all<OrderAnswer>(b.give(BlockOrder{1, b.now + 1s, PinBlocks{hashes[1], 3600s}}));
  REQUIRE(pinned.size() == 1);
  CHECK(std::holds_alternative<PinReport>(pinned[0].what));
  CHECK(b.machine.idle());
  CHECK(b.machine.load().leases == 0);
  b.give(BlockOrder{2, b.now + 1s, EvictBlocks{}});
  Actions evicted;
  for (int i = 0; i < 6; ++i)
    for (const auto& action : b.wait(1ms)) evicted.push_back(action);
  const auto answers = all<OrderAnswer>(evicted);
  REQUIRE(answers.size() == 1);
  CHECK(std::get<EvictReport>(answers[0].what).memory.blocks == 0);
}

TEST_CASE("node/orders: the conductor hears of evicted blocks, and the node knows later that it evicted them") {
  Bench<Prefill, PrefillOptions> b(wire::Role::prefill, 16, PrefillOptions{});
  const auto hashes = kv::chain(kKv.id(), tokens_of(1, 1), 64);
  auto& pool = b.machine.shelves()[0]->pool;
  const auto page = pool.allocate(1);
  REQUIRE_OK(page);
  pool.unpin(pool.publish(page->front(), {hashes[0], {}, kKv.id(), 0, {7, 8}}).page);
  b.wait(1ms);
  b.give(BlockOrder{1, b.now + 1s, EvictBlocks{{.prefix = hashes[0]}, false}});
  std::vector<wire::BlockEvents> told;
  for (int i = 0; i < 6; ++i)
    for (const auto& events : sent<wire::BlockEvents>(b.wait(1ms), std::string(kConductor))) told.push_back(events);
  REQUIRE(told.size() == 1);
  REQUIRE(told[0].events.size() == 1);
  CHECK_FALSE(told[0].events[0].stored);
  CHECK(told[0].events[0].evicted);
  CHECK(told[0].events[0].block.hash == hashes[0]);
  wire::LeaseRequest request;
  request.lease = 5, request.ns = kKv.id(), request.hashes = hashes;
  b.now += 3s;
  const auto grants = sent<wire::LeaseGrant>(b.from("p0", 1, request), "p0");
  REQUIRE(grants.size() == 1);
  CHECK(grants[0].reason == wire::Fallback::evicted);
  CHECK(grants[0].age_ms >= 3000);
}

TEST_CASE("node/orders: the clock of uses stays within its bound and never dates a use too early") {
  OrderBench b(2);
  UseClock clock;
  Rng rng(test::seed());
  INFO("seed " << test::seed());
  std::vector<std::pair<TimePoint, uint64_t>> uses;
  const auto chain = b.publish(1, 1);
  for (size_t i = 0; i < 3 * UseClock::kSamplesMax; ++i) {
    b.now += 1s;
    b.shelf.pool.touch(chain);
    uses.emplace_back(b.now, b.shelf.pool.counts().uses_total);
    clock.look(b.shelves, b.now);
  }
  for (int i = 0; i < 1000; ++i) {
    const auto& [at, stamp] = uses[rng.below(uses.size())];
    CHECK(clock.stamp_at(0, at) <= stamp);  // what was used later is not taken for older
    CHECK(clock.stamp_at(0, at - 1ns) < stamp);
    const TimePoint over = clock.time_of(0, stamp).value_or(kNever);
    CHECK(over >= at);
    CHECK(over - at <= std::max<Duration>(UseClock::kEvery, (b.now - at) / UseClock::kAgeParts) + UseClock::kEvery);
  }
  CHECK(clock.stamp_at(0, b.now) == uses.back().second);
  CHECK(clock.stamp_at(7, b.now) == 0);
  CHECK(clock.time_of(0, uses.back().second) == b.now);
  CHECK_FALSE(clock.time_of(0, uses.back().second + 1));
  CHECK_FALSE(clock.time_of(7, 1));
}

}  // namespace block_orders_test

// Blocks that operators import into a node, and whose blocks they are.

#include "base/errors.h"
#include "node/cache.h"
#include "order_bench.h"

namespace block_writes_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

TEST_CASE("node/orders: blocks that are written become visible when their pages are filled, and not before") {
  OrderBench b;
  const auto order = writing(1, 4);
  const uint64_t id = b.give(order);
  const auto fill = b.answer<PagesToFill>(id);
  CHECK(fill.pages.size() == 4);
  CHECK(b.orders.owned(b.shelf.pool) == 4);
  CHECK_FALSE(b.in_memory(order.blocks[0].hash));
  b.end(id);
  const auto report = b.answer<WriteReport>(id);
  CHECK(report.stored == 4);
  CHECK(b.in_memory(order.blocks[3].hash));
  CHECK(b.shelf.pool.counts().pinned == 0);
  const uint64_t again = b.give(order);
  b.end(again);
  CHECK(b.answer<WriteReport>(again).known == 4);
  const uint64_t gone = b.give(writing(2, 3));
  b.orders.on_order({gone, b.now, CancelOrder{}}, b.now, b.out);
  CHECK(b.shelf.pool.counts().owned == 0);
  CHECK(b.orders.idle());
}

TEST_CASE("node/orders: a full node takes the front of a chain, and never the pages of the chain itself") {
  OrderBench b;
  const auto held = b.publish(9, 6);
  b.lease(held[5]);
  const uint64_t first = b.give(writing(1, 8));
  b.end(first);
  CHECK(b.answer<WriteReport>(first).stored == 8);
  const uint64_t second = b.give(writing(1, 5, 8));
  b.end(second);
  const auto report = b.answer<WriteReport>(second);
  CHECK(report.stored == 2);
  CHECK(report.omitted == 3);
  for (const auto& block : writing(1, 10).blocks) CHECK(b.in_memory(block.hash));
  const Error orphan = b.answer<Error>(b.give(writing(2, 1, 3)));
  CHECK(orphan.mc == err::kNotFound);
}

TEST_CASE("node/orders: a full node takes no page from blocks of the import that it had already") {
  OrderBench b(4);
  const auto known = b.publish(1, 2);
  b.publish(9, 2);  // used later than the known blocks
  const uint64_t id = b.give(writing(1, 4));
  CHECK(b.in_memory(known[1]));
  CHECK(b.shelf.pool.counts().pinned == 2);
  b.end(id);
  const auto report = b.answer<WriteReport>(id);
  CHECK(report.known == 2);
  CHECK(report.stored == 2);
  for (const auto& block : writing(1, 4).blocks) CHECK(b.in_memory(block.hash));
  CHECK(b.shelf.pool.counts().pinned == 0);
  const uint64_t gone = b.give(writing(1, 6));
  b.orders.on_order({gone, b.now, CancelOrder{}}, b.now, b.out);
  CHECK(b.shelf.pool.counts().pinned == 0);
}

TEST_CASE("node/orders: blocks of another model, data type or block size are refused by the name of the field") {
  const std::pair<void (*)(kv::Namespace&), const char*> changes[] = {
      {[](kv::Namespace& kv) { kv.weights = "v"; }, "weights"},
      {[](kv::Namespace& kv) { kv.kv_dtype = "bf16"; }, "kv_dtype"},
      {[](kv::Namespace& kv) { kv.block_tokens = 128; }, "block_tokens"},
      {[](kv::Namespace& kv) { kv.layers = 3; }, "layers"},
  };
  OrderBench b;
  for (const auto& [change, field] : changes) {
    WriteBlocks order = writing(1, 1);
    change(order.kv);
    order.model = "m2";
    const Error refused = b.answer<Error>(b.give(order));
    CHECK(refused.mc == err::kKvFileForeign);
    CHECK_MESSAGE(refused.what.find("is of model m2, and this node serves model m: " + std::string(field) +
                                    " of the stream is ") != std::string::npos,
                  refused.what);
  }
  WriteBlocks other_plan = writing(1, 1);
  other_plan.kv.attention = "moba:block=128";
  CHECK(b.answer<PagesToFill>(b.give(other_plan)).pages.size() == 1);
  b.end(b.count);
  CHECK(b.answer<WriteReport>(b.count).attention == "moba:block=128");
  CHECK(b.answer<WriteReport>(b.count).node_attention == "full");
  b.end(b.give(writing(2, 1)));
  CHECK(b.answer<WriteReport>(b.count).attention.empty());
}

TEST_CASE("node/orders: a cache node takes blocks of any layout, and a prompt of a peer finds them") {
  CacheOptions options;
  options.slab_bytes = 8 * kPage;
  options.segment_bytes = 2 * options.slab_bytes;
  Bench<Cache, CacheOptions> b(wire::Role::cache, 0, options);
  const WriteBlocks order = writing(1, 3);
  const auto pages = all<OrderAnswer>(b.give(BlockOrder{1, b.now + 1s, order}));
  REQUIRE(pages.size() == 1);
  CHECK(std::get<PagesToFill>(pages[0].what).pages.size() == 3);
  const auto done = all<OrderAnswer>(b.give(BlockOrder{1, b.now + 1s, EndOrder{}}));
  REQUIRE(done.size() == 1);
  CHECK(std::get<WriteReport>(done[0].what).stored == 3);
  wire::LeaseRequest request;
  request.lease = 5, request.ns = kKv.id(), request.with_tokens = true;
  for (const auto& block : order.blocks) request.hashes.push_back(block.hash);
  const auto grants = sent<wire::LeaseGrant>(b.from("p0", 1, request), "p0");
  REQUIRE(grants.size() == 1);
  REQUIRE(grants[0].blocks.size() == 3);
  CHECK(grants[0].blocks[1].tokens == order.blocks[1].tokens);
  CHECK(sound_tokens(grants[0].blocks[1], kKv.id(), kLayout) == order.blocks[1].tokens);
  wire::LeasedBlock lie = grants[0].blocks[1];
  lie.tokens[0] ^= 1;
  CHECK(sound_tokens(lie, kKv.id(), kLayout).empty());
}

TEST_CASE("node/orders: a salt names its tenant, and other texts are of the default one") {
  CHECK(tenant_of("5:alice") == "alice");
  CHECK(tenant_of("5:aliceand more") == "alice");
  for (const char* salt : {"", "alice", ":alice", "9:alice", "0:", "-1:a", "5x:alice", "99999999999999999999:a"})
    CHECK(tenant_of(salt) == kDefaultTenant);
}

TEST_CASE("node/orders: the book of namespaces forgets the least recently used one, and never the node's own") {
  NamespaceBook book(2);
  book.add_own(kKv, "m");
  NamespaceId ids[3];
  for (uint8_t i = 0; i < 3; ++i) ids[i].bytes[0] = static_cast<uint8_t>(i + 1);
  book.add(ids[0], kKv, "m", "bob");
  book.add(ids[1], kKv, "m", "bob");
  book.add(ids[0], kKv, "m", "bob");
  book.add(ids[2], kKv, "m", "bob");
  CHECK(book.find(ids[1]) == nullptr);
  for (const NamespaceId& id : {ids[0], ids[2]}) {
    REQUIRE(book.find(id) != nullptr);
    CHECK(book.find(id)->tenant == "bob");
    CHECK(book.find(id)->kv_namespace == kKv.text());
  }
  REQUIRE(book.find(kKv.id()) != nullptr);
  book.add(kKv.id(), kKv, "m");
  CHECK(book.find(ids[0]) != nullptr);
}

}  // namespace block_writes_test

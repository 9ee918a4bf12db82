// Pins that end when every block of their chain is on disk.

#include <algorithm>

#include "base/errors.h"
#include "node/block_orders.h"
#include "node/prefill.h"
#include "order_bench.h"

namespace durable_pin_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {
/// Lets the writes that are due end, and returns their number.
size_t write_all(OrderBench& b, Code code = Code::ok) {
  size_t count = 0;
  for (int idle = 0; idle < 3; b.now += 10ms) {
    Actions writes, more;
    b.disk.tend(b.shelves, b.now, writes);
    idle = all<DiskWrite>(writes).empty() ? idle + 1 : 0;
    for (const DiskWrite& write : all<DiskWrite>(writes)) {
      b.disk.on_event(DiskWritten{write.op, code, "a disk error"}, {}, b.now, more);
      ++count;
    }
  }
  return count;
}
}  // namespace

TEST_CASE("node/orders: a durable pin ends when every block of its chain is on disk, though memory is not full") {
  OrderBench b(100);
  const auto chain = b.publish(1, 40);
  b.put_on_disk({chain.begin(), chain.begin() + 5});
  const uint64_t id = b.give(PinBlocks{chain.back(), 3600s, true});
  b.tick();
  CHECK(all<OrderAnswer>(b.out).empty());
  CHECK_FALSE(b.orders.idle());
  CHECK(write_all(b) == 35);  // more than the 32 that may be under way at once
  CHECK(b.orders.next_wakeup() <= b.now);
  b.tick();
  const auto report = b.answer<PinReport>(id);
  CHECK(report.durable);
  CHECK(report.chain.blocks == 40);
  CHECK(b.disk.match(b.shelf.pool, chain) == 40);
  CHECK_FALSE(b.pin(chain.back()).durable);
}

TEST_CASE("node/orders: a durable pin whose blocks the disk does not take, or not in time, says how many are there") {
  OrderBench b(100);
  const auto chain = b.publish(1, 4);
  const uint64_t refused = b.give(PinBlocks{chain.back(), 3600s, true});
  CHECK(write_all(b, Code::no_space) == 4);
  b.tick();
  CHECK(b.answer<Error>(refused).mc == err::kNotDurable);
  CHECK(b.answer<Error>(refused).what.find("0 of the chain's 4 blocks are on disk") != std::string::npos);
  const uint64_t late = b.give(PinBlocks{chain.back(), 3600s, true}, 1s);
  b.now += 1s;
  CHECK(b.orders.next_wakeup() <= b.now);
  b.tick();
  CHECK(b.answer<Error>(late).mc == err::kDeadlineExceeded);
  CHECK(b.answer<Error>(late).what.find("0 of the chain's 4 blocks are on disk") != std::string::npos);
  CHECK_FALSE(b.disk.writes().is_to_come(chain[0]));  // nobody waits for it any more
  const uint64_t gone = b.give(PinBlocks{chain.back(), 3600s, true});
  b.orders.on_order({gone, b.now, CancelOrder{}}, b.now, b.out);
  CHECK(b.orders.idle());
  CHECK(b.disk.idle());
}

TEST_CASE("node/orders: a durable pin goes on when the disk gives up blocks of its chain for others of it") {
  OrderBench b(100);
  const auto chain = b.publish(1, 6);
  b.put_on_disk({chain.begin(), chain.begin() + 3});
  const uint64_t id = b.give(PinBlocks{chain.back(), 3600s, true});
  Actions writes, more;
  b.disk.tend(b.shelves, b.now, writes);
  REQUIRE(all<DiskWrite>(writes).size() == 3);
  b.disk.on_event(DiskEvicted{{chain[0], chain[1]}}, {}, b.now, more);  // before their writes end
  for (const DiskWrite& write : all<DiskWrite>(writes))
    b.disk.on_event(DiskWritten{write.op, Code::ok, ""}, {}, b.now, more);
  b.tick();
  CHECK(all<OrderAnswer>(b.out).empty());
  CHECK(write_all(b) == 2);
  b.tick();
  CHECK(b.answer<PinReport>(id).durable);
  CHECK(b.disk.match(b.shelf.pool, chain) == 6);
}

TEST_CASE("node/orders: a disk that is lost, and blocks that leave memory, end a durable pin with an error") {
  OrderBench b(100);
  const auto chain = b.publish(1, 40);
  const uint64_t lost = b.give(PinBlocks{chain.back(), 3600s, true});
  for (int failed = 0; failed < 8; ++failed, b.now += 1s) {
    Actions writes, more;
    b.disk.tend(b.shelves, b.now, writes);
    const auto due = all<DiskWrite>(writes);
    if (failed == 0) b.shelf.pool.remove(chain[39], kv::Removal::corrupt);  // it waits
    for (const DiskWrite& write : due) b.disk.on_event(DiskWritten{write.op, Code::io, "gone"}, {}, b.now, more);
  }
  b.tick();
  CHECK(b.answer<Error>(lost).mc == err::kNotDurable);
  CHECK(b.orders.idle());
}

TEST_CASE("node/orders: a node that an operator drains sleeps while a durable pin waits, and still writes its blocks") {
  Bench<Prefill, PrefillOptions> b(wire::Role::prefill, 16, PrefillOptions{}, 2, 1 << 20);
  const auto hashes = kv::chain(kKv.id(), tokens_of(1, 2), 64);
  auto& pool = b.machine.shelves()[0]->pool;
  for (size_t i = 0; i < 2; ++i) {
    const auto page = pool.allocate(1);
    REQUIRE_OK(page);
    pool.unpin(
        pool.publish(page->front(), {hashes[i], i ? hashes[0] : BlockHash{}, kKv.id(), 64 * uint32_t(i), {7, 8}}).page);
  }
  b.give(Received{NodeId(kConductor), instance(kConductorNumber), wire::Drain{true}});
  const auto writes = all<DiskWrite>(b.give(BlockOrder{1, b.now + 60s, PinBlocks{hashes[1], 3600s, true}}));
  REQUIRE(writes.size() == 2);
  b.give(Tick{});  // a heartbeat is due
  CHECK(b.machine.next_wakeup() > b.now);
  b.give(DiskWritten{writes[0].op, Code::ok, ""});
  b.give(Tick{});
  CHECK(b.machine.next_wakeup() > b.now);
  b.give(DiskWritten{writes[1].op, Code::ok, ""});
  const auto answers = all<OrderAnswer>(b.give(Tick{}));
  REQUIRE(answers.size() == 1);
  CHECK(std::get<PinReport>(answers[0].what).durable);
}

}  // namespace durable_pin_test

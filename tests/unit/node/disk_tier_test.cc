// The tier on a node's disk: what is written, loaded, promoted, forgotten and given up, without a node around it.

#include "node/disk_tier.h"

#include "node/disk_block.h"
#include "node/prefill.h"
#include "tier_bench.h"

namespace disk_tier_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

TEST_CASE("node/disk: nothing is written until memory fills up, and then the ends of cold chains go first") {
  TierBench b;
  const auto cold = chain_of(1, 4), hot = chain_of(2, 3);
  b.publish(cold);
  b.publish(hot);
  CHECK(b.tend().empty());  // 7 of 10 pages
  b.publish(chain_of(3, 1));
  const auto writes = all<DiskWrite>(b.tend());
  REQUIRE(writes.size() >= 2);
  CHECK(writes[0].block.hash == cold[3]);
  CHECK(writes[1].block.hash == cold[2]);
  CHECK(writes[0].block.parent == cold[2]);
  CHECK(writes[0].block.first_position == 192);
  CHECK(writes.size() == 2);  // a quarter of the pool at a time
  for (const auto& write : writes) b.written(write.op);
  CHECK(b.write_all() == 2);
  for (const auto& hash : cold) CHECK(b.tier.has(hash));
  for (const auto& hash : hot) CHECK_FALSE(b.tier.has(hash));
  CHECK(b.tend().empty());  // what is next to go is on disk already
}

TEST_CASE("node/disk: a disk that is smaller than the cold blocks in memory comes to rest, until a reader comes") {
  TierBench b;
  const auto cold = chain_of(1, 6);
  b.publish(cold);
  b.publish(chain_of(2, 3));
  std::vector<BlockHash> on_disk;
  const auto write_within = [&](size_t blocks_max) {  // the disk gives up its oldest block for each one beyond them
    size_t writes = 0;
    for (int round = 0; round < 50; ++round)
      for (const DiskWrite& write : all<DiskWrite>(b.tend())) {
        b.written(write.op), ++writes;
        on_disk.push_back(write.block.hash);
        if (on_disk.size() <= blocks_max) continue;
        CHECK(b.tier.on_event(DiskEvicted{{on_disk.front()}}, {}, b.now, b.out));
        on_disk.erase(on_disk.begin());
      }
    return writes;
  };
  CHECK(write_within(3) == 9);  // each block once
  CHECK(b.tier.blocks().size() == 3);
  CHECK(write_within(3) == 0);
  b.tier.hit(b.shelf.pool, cold);
  CHECK(write_within(3) > 0);
  CHECK(write_within(3) == 0);
  b.evict(cold);
  for (const BlockHash& hash : cold) b.tier.left_memory(hash, b.now);
  b.publish(cold);
  CHECK(write_within(3) > 0);
}

TEST_CASE("node/disk: writes leave half of the pages that could be evicted to those who need one now") {
  TierBench b;
  auto own = b.shelf.pool.allocate(8);
  REQUIRE_OK(own);
  b.publish(chain_of(1, 1));
  b.publish(chain_of(2, 1));
  const auto writes = all<DiskWrite>(b.tend());
  REQUIRE(writes.size() == 1);
  CHECK(b.shelf.pool.available() == 1);
  CHECK(b.tend().empty());
  b.written(writes[0].op);
  CHECK(b.write_all() == 1);
  b.shelf.pool.release(*own);
}

TEST_CASE("node/disk: a page stays while it is written, and a block that changed in memory never reaches the disk") {
  TierBench b;
  const auto chain = chain_of(1, 10);
  b.publish(chain);
  const auto writes = all<DiskWrite>(b.tend());
  REQUIRE_FALSE(writes.empty());
  CHECK(b.shelf.pool.pins(writes[0].page) == 1);
  CHECK(b.tier.pins(b.shelf.pool) == writes.size());
  b.written(writes[0].op, Code::corrupt);
  CHECK_FALSE(b.in_memory(writes[0].block.hash));
  CHECK_FALSE(b.tier.has(writes[0].block.hash));
  CHECK(b.tier.stats().checksum_failures == 1);
  // Another block is found wrong by a reader while its write is under way: the disk must forget what it wrote.
  b.shelf.pool.remove(writes[1].block.hash, kv::Removal::corrupt);
  const auto drops = all<DiskDrop>(b.written(writes[1].op));
  REQUIRE(drops.size() == 1);
  CHECK(drops[0].hashes == std::vector<BlockHash>{writes[1].block.hash});
  CHECK_FALSE(b.tier.has(writes[1].block.hash));
}

TEST_CASE("node/disk: a chain on disk is loaded with all reads at once, and pinned until its reader is done") {
  TierBench b;
  const auto chain = chain_of(1, 9);
  b.publish(chain);
  REQUIRE(b.write_all() == 9);
  b.evict({chain.begin() + 2, chain.end()});
  const auto id = b.load(chain);
  REQUIRE(id != 0);
  const auto loads = all<DiskLoad>(b.out);
  REQUIRE(loads.size() == 7);
  CHECK(loads[0].hash == chain[2]);
  CHECK(b.shelf.pool.pins(b.shelf.pool.find(chain[0])) == 1);  // the part that was here may not leave meanwhile
  for (size_t i = loads.size(); i-- > 0;) {
    CHECK_FALSE(b.tier.done(id));
    b.loaded(loads[i]);
  }
  CHECK(b.tier.done(id));
  CHECK(b.shelf.pool.match(chain) == 9);
  CHECK(b.tier.pins(b.shelf.pool) == 9);
  b.tier.end(id);
  CHECK(b.tier.idle());
  CHECK(b.tier.pins(b.shelf.pool) == 0);
}

TEST_CASE("node/disk: two readers of one block share its read") {
  TierBench b;
  const auto chain = chain_of(1, 8);
  b.publish(chain);
  b.write_all();
  b.evict(chain);
  const auto first = b.load(chain);
  const auto loads = all<DiskLoad>(b.out);
  const auto second = b.load(chain);
  CHECK(all<DiskLoad>(b.out).empty());
  for (const auto& load : loads) b.loaded(load);
  CHECK(b.tier.done(first));
  CHECK(b.tier.done(second));
  b.tier.end(first);
  CHECK(b.shelf.pool.pins(b.shelf.pool.find(chain[0])) == 1);
  b.tier.end(second);
}

TEST_CASE("node/disk: a load of another shelf ends before a block that is under way for the first one") {
  TierBench b;
  Shelf other{layout_of(2), 10, 10, kv::kLruTail, b.log};
  other.number = 1;
  const auto chain = chain_of(1, 8);
  b.publish(chain);
  b.write_all();
  b.evict(chain);
  const auto first = b.load(chain);
  const auto loads = all<DiskLoad>(b.out);
  REQUIRE(loads.size() == 8);
  Actions out;
  const auto second = b.tier.load(other, kNs, chain, b.now, out);
  REQUIRE(second != 0);
  CHECK(out.empty());
  CHECK(b.tier.done(second));
  for (const auto& load : loads) b.loaded(load);
  CHECK(b.tier.pins(other.pool) == 0);
  b.tier.end(second);
  CHECK(b.tier.done(first));
  CHECK(b.shelf.pool.match(chain) == 8);
  b.tier.end(first);
  other.pool.check();
}

TEST_CASE("node/disk: a block is loaded for its own namespace alone") {
  TierBench b;
  const auto chain = chain_of(1, 3);
  NamespaceId other;
  other.bytes[3] = 7;
  DiskFound found;
  for (size_t i = 0; i < 3; ++i)
    found.blocks.push_back({chain[i],
                            i == 0 ? BlockHash{} : chain[i - 1],
                            i == 2 ? other : kNs,
                            static_cast<uint32_t>(i * 64),
                            layout_of(2),
                            {7, 8}});
  REQUIRE(b.tier.on_event(
      found, [](const DiskBlock&) { return true; }, b.now, b.out));
  Actions out;
  CHECK(b.tier.load(b.shelf, other, chain, b.now, out) == 0);
  CHECK(out.empty());
  const auto id = b.load(chain);
  const auto loads = all<DiskLoad>(b.out);
  REQUIRE(loads.size() == 2);
  for (const auto& load : loads) b.loaded(load);
  REQUIRE(b.tier.done(id));
  b.tier.end(id);
  CHECK(b.shelf.pool.match(chain) == 2);
  CHECK(b.tier.has(chain[2]));
}

TEST_CASE("node/disk: a load ends before the first block that fails, and a wrong block is forgotten") {
  TierBench b;
  const auto chain = chain_of(1, 8);
  b.publish(chain);
  b.write_all();
  b.evict(chain);
  const auto id = b.load(chain);
  const auto loads = all<DiskLoad>(b.out);
  REQUIRE(loads.size() == 8);
  for (const auto& load : loads) b.loaded(load, load.hash == chain[5] ? Code::corrupt : Code::ok);
  CHECK(b.tier.done(id));
  CHECK(b.shelf.pool.match(chain) == 5);
  CHECK_FALSE(b.tier.has(chain[5]));
  CHECK(b.tier.stats().checksum_failures == 1);
  CHECK(b.tier.state() == DiskTier::State::on);
  b.tier.end(id);
}

TEST_CASE("node/disk: a block that was loaded once is the first to leave, and a second reader keeps it") {
  TierBench b;
  const auto chain = chain_of(1, 8);
  b.publish(chain);
  b.write_all();
  b.evict(chain);
  const auto load_all = [&] {
    const auto id = b.load(chain);
    for (const auto& load : all<DiskLoad>(b.out)) b.loaded(load);
    REQUIRE(b.tier.done(id));
    b.tier.end(id);
  };
  load_all();
  const auto other = chain_of(2, 2);
  b.publish(other);
  b.shelf.pool.touch(std::span(chain));  // its use does not matter while it is on trial
  const auto victims = [&] { return b.shelf.pool.meta(b.shelf.pool.candidates(1).front()).hash; };
  CHECK(victims() == chain[7]);
  SUBCASE("the second reader finds it in memory") {
    b.tier.hit(b.shelf.pool, chain);
  }
  SUBCASE("the second reader finds it on disk") {
    b.evict(chain);
    load_all();
  }
  b.shelf.pool.touch(std::span(chain));
  CHECK(b.tier.stats().promoted_blocks == 8);
  CHECK(victims() == other[1]);
}

TEST_CASE("node/disk: a disk that keeps failing is given up, and its blocks are reported as unreadable") {
  TierBench b;
  const auto chain = chain_of(1, 9);
  b.publish(chain);
  b.write_all();
  b.evict(chain);
  b.log.drain();
  const auto id = b.load(chain);
  for (const auto& load : all<DiskLoad>(b.out)) b.loaded(load, Code::io);
  CHECK(b.tier.state() == DiskTier::State::lost);
  CHECK(b.tier.take_trouble().find("goes on without it: a disk error") != std::string::npos);
  b.tier.end(id);
  const auto events = b.log.drain();
  REQUIRE(events.size() == 9);
  for (const auto& event : events) {
    CHECK(event.kind == kv::BlockEvent::Kind::removed);
    CHECK(event.reason == kv::Removal::unreadable);
  }
  b.publish(chain);
  CHECK(b.tend().empty());
  CHECK(b.load(chain) == 0);
  wire::Load load;
  b.tier.fill_load(load);
  CHECK(load.disk_lost);
}

TEST_CASE("node/disk: writes that fail together count as one failure") {
  TierBench b;
  b.publish(chain_of(1, 10));
  for (int round = 0; round < 6; ++round)  // twelve failures within 60 ms
    for (const auto& write : all<DiskWrite>(b.tend())) b.written(write.op, Code::io);
  CHECK(b.tier.stats().write_failures >= 8);
  CHECK(b.tier.state() == DiskTier::State::on);
}

TEST_CASE("node/disk: a single success between failures keeps the disk") {
  TierBench b;
  const auto chain = chain_of(1, 10);
  b.publish(chain);
  for (int round = 0; round < 3; ++round) {
    const auto writes = all<DiskWrite>(b.tend());
    REQUIRE(writes.size() >= 2);
    for (size_t i = 0; i < std::min<size_t>(writes.size(), 7); ++i) {
      b.now += 100ms;
      b.written(writes[i].op, Code::io);
    }
    for (size_t i = 7; i < writes.size(); ++i) b.written(writes[i].op);
    if (writes.size() <= 7) break;
  }
  CHECK(b.tier.state() == DiskTier::State::on);
  CHECK(b.tier.stats().write_failures > 0);
}

TEST_CASE("node/disk: while the oldest load is older than five seconds no new one begins") {
  TierBench b;
  const auto chain = chain_of(1, 8);
  b.publish(chain);
  b.write_all();
  b.evict(chain);
  const auto id = b.load({chain.begin(), chain.begin() + 1});
  const auto stuck = all<DiskLoad>(b.out);
  REQUIRE(stuck.size() == 1);
  b.now += 6s;
  CHECK(b.load(chain) == 0);
  b.loaded(stuck[0]);
  b.tier.end(id);
  const auto again = b.load(chain);
  CHECK(again != 0);
  for (const auto& load : all<DiskLoad>(b.out)) b.loaded(load);
  b.tier.end(again);
}

TEST_CASE("node/disk: a load without free pages brings what fits") {
  TierBench b;
  const auto chain = chain_of(1, 9);
  b.publish(chain);
  b.write_all();
  b.evict(chain);
  auto own = b.shelf.pool.allocate(7);
  REQUIRE_OK(own);
  const auto id = b.load(chain);
  for (const auto& load : all<DiskLoad>(b.out)) b.loaded(load);
  CHECK(b.tier.done(id));
  CHECK(b.shelf.pool.match(chain) == 3);
  b.tier.end(id);
  b.shelf.pool.release(*own);
}

TEST_CASE("node/disk: blocks of an earlier process are found, and those of another layout are left alone") {
  TierBench b;
  const auto chain = chain_of(1, 3);
  DiskFound found;
  for (size_t i = 0; i < 3; ++i)
    found.blocks.push_back({chain[i], i == 0 ? BlockHash{} : chain[i - 1], kNs, static_cast<uint32_t>(i * 64),
                            layout_of(i == 2 ? 5 : 2), std::vector<uint32_t>(i == 2 ? 5 : 2, 1)});
  CHECK(b.tier.on_event(
      found, [](const DiskBlock& block) { return block.layout == layout_of(2); }, b.now, b.out));
  CHECK(b.tier.match(b.shelf.pool, chain) == 2);
  CHECK(b.tier.stats().found_blocks == 2);
  CHECK(b.tier.stats().foreign_blocks == 1);
  CHECK(b.tier.blocks().snapshot().size() == 2);
  CHECK(b.tier.on_event(DiskEvicted{{chain[1]}}, {}, b.now, b.out));
  CHECK_FALSE(b.tier.on_event(Tick{}, {}, b.now, b.out));
  CHECK(b.tier.match(b.shelf.pool, chain) == 1);
}

TEST_CASE("node/disk: the bound on writes spends no more than a second's worth at once") {
  const double value = static_cast<double>(disk_value_bytes(layout_of(2)));
  TierBench b({.capacity_bytes = 1 << 20, .write_bytes_per_s = 2 * value});
  b.publish(chain_of(1, 10));
  const auto writes = all<DiskWrite>(b.tend());
  REQUIRE(writes.size() == 2);
  for (const auto& write : writes) b.written(write.op);
  CHECK(b.tend().empty());
  b.now += 500ms;
  CHECK(all<DiskWrite>(b.tend()).size() == 1);
}

namespace {
/// Lets the writes of a tier whose node stops end, and returns their blocks in order.
std::vector<BlockHash> write_out(TierBench& b, Code code = Code::ok) {
  std::vector<BlockHash> blocks;
  b.tier.start_write_out();
  for (int idle = 0; idle < 15;) {  // a list of the blocks is made ten times a second
    const auto writes = all<DiskWrite>(b.tend());
    idle = writes.empty() ? idle + 1 : 0;
    for (const DiskWrite& write : writes) {
      blocks.push_back(write.block.hash);
      b.written(write.op, code);
    }
  }
  return blocks;
}

/// A disk of segments of one block, with room for so many beside those that the store keeps free.
DiskTierOptions disk_for(size_t blocks) {
  const uint64_t bytes = disk_value_bytes(layout_of(2));
  return {.capacity_bytes = bytes * (blocks + 3), .value_bytes_max = bytes};
}
}  // namespace

TEST_CASE("node/disk: a node that stops writes the chains used last first, each block behind its parent") {
  TierBench b(disk_for(9));
  const auto cold = chain_of(1, 3), hot = chain_of(2, 3);
  b.publish(cold);
  b.publish(hot);
  CHECK(b.tier.idle());
  b.tier.start_write_out();
  CHECK_FALSE(b.tier.idle());
  auto expected = hot;
  expected.insert(expected.end(), cold.begin(), cold.end());
  CHECK(write_out(b) == expected);
  CHECK(b.tier.idle());
  CHECK(b.tier.next_wakeup() == kNever);
}

TEST_CASE("node/disk: a node that stops writes a chain first that was used again") {
  TierBench b(disk_for(9));
  const auto first = chain_of(1, 3), second = chain_of(2, 3);
  b.publish(first);
  b.publish(second);
  b.shelf.pool.touch(std::span(first));
  auto expected = first;
  expected.insert(expected.end(), second.begin(), second.end());
  CHECK(write_out(b) == expected);
}

TEST_CASE("node/disk: the shelves of a node that stops take turns") {
  TierBench b(disk_for(9));
  Shelf other{layout_of(2), 10, 10, kv::kLruTail, b.log};
  other.slabs.push_back(1 << 20), other.number = 1;
  const auto here = chain_of(1, 2), there = chain_of(2, 2);
  b.publish(here);
  for (size_t i = 0; i < there.size(); ++i) {
    kv::BlockMeta meta{there[i], i == 0 ? BlockHash{} : there[0], kNs, static_cast<uint32_t>(i * 64), {7, 8}};
    other.pool.unpin(other.pool.publish(other.pool.allocate(1)->front(), std::move(meta)).page);
  }
  other.pool.touch(std::span(there));
  Shelf* const shelves[] = {&b.shelf, &other};
  Actions out;
  b.tier.start_write_out();
  b.tier.tend(shelves, b.now, out);
  std::vector<BlockHash> written;
  for (const DiskWrite& write : all<DiskWrite>(out)) written.push_back(write.block.hash), b.written(write.op);
  CHECK(written == std::vector<BlockHash>{here[0], there[0]});  // a quarter of a pool of ten at a time
}

TEST_CASE("node/disk: a page that has another block by the time of its write is not written as the first one") {
  TierBench b(disk_for(9));
  const auto old = chain_of(1, 9), next = chain_of(2, 9);
  b.publish(old);
  b.tier.start_write_out();
  const auto begun = all<DiskWrite>(b.tend());
  REQUIRE(begun.size() == 2);
  for (size_t i = old.size(); i-- > begun.size();) b.shelf.pool.remove(old[i], kv::Removal::evicted);
  for (const DiskWrite& write : begun) b.written(write.op);
  b.publish({next.begin(), next.begin() + 7});
  for (const BlockHash& hash : write_out(b)) CHECK(std::count(next.begin(), next.end(), hash) == 1);
  CHECK(b.tier.blocks().size() == 9);
}

TEST_CASE("node/disk: a block that the disk removes for space while the node stops is written again") {
  TierBench b(disk_for(9));
  const auto hot = chain_of(1, 2), cold = chain_of(2, 3);
  b.publish(hot);
  b.tier.start_write_out();
  CHECK(write_out(b) == hot);
  b.publish(cold);
  Actions out;
  CHECK(b.tier.on_event(DiskEvicted{{hot[0]}}, {}, b.now, out));
  const auto written = write_out(b);
  CHECK(std::count(written.begin(), written.end(), hot[0]) == 1);
  CHECK(b.tier.has(hot[0]));
}

TEST_CASE("node/disk: a node that stops writes blocks that the disk had removed before") {
  TierBench b(disk_for(9));
  const auto chain = chain_of(1, 8);
  b.publish(chain);
  CHECK(b.write_all() > 0);
  Actions out;
  CHECK(b.tier.on_event(DiskEvicted{{chain[7]}}, {}, b.now, out));
  CHECK(b.write_all() == 0);  // it waits for a reader
  const auto written = write_out(b);
  CHECK(std::count(written.begin(), written.end(), chain[7]) == 1);
}

TEST_CASE("node/disk: a node that stops with a full disk replaces half of it") {
  TierBench b(disk_for(6));
  DiskFound found;
  for (const BlockHash& hash : chain_of(3, 6)) found.blocks.push_back({hash, {}, kNs, 0, layout_of(2), {7, 8}, {}});
  Actions out;
  CHECK(b.tier.on_event(
      found, [](const DiskBlock&) { return true; }, b.now, out));
  const auto chain = chain_of(1, 9);
  b.publish(chain);
  CHECK(write_out(b) == std::vector<BlockHash>(chain.begin(), chain.begin() + 3));
}

TEST_CASE("node/disk: large blocks count with the rest of their segment, which no other one fits into") {
  const uint64_t bytes = disk_value_bytes(layout_of(2));
  TierBench b({.capacity_bytes = 6 * (bytes + bytes / 2), .value_bytes_max = bytes + bytes / 2});
  const auto chain = chain_of(1, 9);
  b.publish(chain);
  CHECK(write_out(b) == std::vector<BlockHash>(chain.begin(), chain.begin() + 3));  // of six segments three stay free
}

TEST_CASE("node/disk: a beginning whose write fails while the node stops is written again") {
  TierBench b(disk_for(9));
  const auto chain = chain_of(1, 3);
  b.publish(chain);
  b.tier.start_write_out();
  for (const DiskWrite& write : all<DiskWrite>(b.tend()))
    b.written(write.op, write.block.hash == chain[0] ? Code::io : Code::ok);
  CHECK_FALSE(b.tier.idle());
  (void)write_out(b);
  for (const BlockHash& hash : chain) CHECK(b.tier.has(hash));
}

TEST_CASE("node/disk: a block that is published while the node stops goes to disk before the tier is idle") {
  TierBench b(disk_for(9));
  b.publish(chain_of(1, 3));
  CHECK(write_out(b).size() == 3);
  const auto late = chain_of(2, 2);
  b.publish(late);
  Actions out;
  b.tier.tend(b.shelves, b.now, out);  // a node tends after each event, and looks then whether it may end
  CHECK_FALSE(b.tier.idle());
  for (const DiskWrite& write : all<DiskWrite>(out)) b.written(write.op);
  (void)write_out(b);
  for (const BlockHash& hash : late) CHECK(b.tier.has(hash));
  CHECK(b.tier.idle());
}

TEST_CASE("node/disk: a node that stops writes no more than the disk holds, and the beginnings of chains") {
  TierBench b(disk_for(6));
  const auto chain = chain_of(1, 9);
  b.publish(chain);
  CHECK(write_out(b) == std::vector<BlockHash>(chain.begin(), chain.begin() + 6));
  CHECK(b.tier.idle());
}

TEST_CASE("node/disk: a node that stops writes pinned blocks too") {
  TierBench b(disk_for(9));
  const auto chain = chain_of(1, 9);
  b.publish(chain);
  const auto pinned = b.shelf.pool.pin_prefix(chain);
  CHECK(write_out(b) == chain);
  b.shelf.pool.unpin(pinned);
}

TEST_CASE("node/disk: a disk that fails does not keep a node that stops") {
  TierBench b(disk_for(9));
  b.publish(chain_of(1, 9));
  b.tier.start_write_out();
  for (int i = 0; i < 100 && !b.tier.idle(); ++i) {
    for (const DiskWrite& write : all<DiskWrite>(b.tend())) b.written(write.op, Code::io);
    b.now += 200ms;
  }
  CHECK(b.tier.idle());
}

TEST_CASE("node/disk: the bound on the rate of writes holds for a node that stops") {
  const double block = static_cast<double>(disk_value_bytes(layout_of(2)));
  DiskTierOptions options = disk_for(9);
  options.write_bytes_per_s = block;
  TierBench b(options);
  b.publish(chain_of(1, 3));
  b.tier.start_write_out();
  const TimePoint began = b.now;
  size_t written = 0;
  while (!b.tier.idle() && b.now < began + 60s) {
    for (const DiskWrite& write : all<DiskWrite>(b.tend())) b.written(write.op), ++written;
    if (!b.tier.idle()) CHECK(b.tier.next_wakeup() < b.now + 1s);  // nothing else wakes the node
  }
  CHECK(written == 3);
  CHECK(b.now - began > 1900ms);
  CHECK(b.now - began < 2200ms);
}

TEST_CASE("node/disk: the front of a value gives the block back, and no damaged front is taken") {
  DiskBlock block{chain_of(1, 2)[1], chain_of(1, 2)[0], kNs, 64, layout_of(3), {1, 2, 3}};
  std::vector<std::byte> front(kDiskFrontBytes);
  encode_disk_front(block, front);
  auto parsed = parse_disk_front(front);
  REQUIRE_OK(parsed);
  CHECK(parsed->hash == block.hash);
  CHECK(parsed->parent == block.parent);
  CHECK(parsed->name_space == block.name_space);
  CHECK(parsed->first_position == 64);
  CHECK(parsed->layout == block.layout);
  CHECK(parsed->layer_crcs == block.layer_crcs);
  for (size_t at = 0; at < 140; ++at) {
    front[at] ^= std::byte{4};
    CHECK_FALSE(parse_disk_front(front).has_value());
    front[at] ^= std::byte{4};
  }
  CHECK_FALSE(parse_disk_front(std::span(front).first(100)).has_value());
}

TEST_CASE("node/disk_tier: a failure to drop or to make room is counted and told, and the disk stays") {
  TierBench b;
  using Work = DiskUpkeepFailed::Work;
  for (int i = 0; i < 20; ++i) CHECK(b.tier.on_event(DiskUpkeepFailed{Work::maintain, "no room"}, {}, b.now, b.out));
  CHECK(b.tier.on_event(DiskUpkeepFailed{Work::drop, "forgetting blocks failed"}, {}, b.now, b.out));
  CHECK(b.tier.stats().maintain_failures == 20);
  CHECK(b.tier.stats().drop_failures == 1);
  CHECK(b.tier.take_trouble() == "disk: forgetting blocks failed");
  CHECK(b.tier.state() == DiskTier::State::on);
}

TEST_CASE("node/disk: the front of a block keeps its token ids, and other ids than those of the block are ignored") {
  const ExtentLayout layout = layout_of(2);
  const std::vector<uint32_t> tokens(64, 5);
  DiskBlock block{kv::chain_next({}, kNs, tokens), {}, kNs, 0, layout, {7, 8}, tokens};
  std::vector<std::byte> front(kDiskFrontBytes);
  encode_disk_front(block, front);
  auto parsed = parse_disk_front(front);
  REQUIRE_OK(parsed);
  CHECK(parsed->tokens == tokens);
  front[front.size() - 100] ^= std::byte{1};
  parsed = parse_disk_front(front);
  REQUIRE_OK(parsed);
  CHECK(parsed->tokens.empty());
  block.tokens.clear();
  encode_disk_front(block, front);
  CHECK(parse_disk_front(front)->tokens.empty());
}

}  // namespace disk_tier_test

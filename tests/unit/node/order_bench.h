// A pool over a disk, and orders about its blocks, for tests.
#pragma once

#include <vector>

#include "bench.h"
#include "node/block_orders.h"

namespace mc::node::bench {

inline const ExtentLayout kLayout = layout_of(2);
inline const kv::Namespace kKv = namespace_of(kLayout);
inline const uint64_t kPage = kLayout.page_bytes();

inline std::vector<uint32_t> tokens_of(uint32_t seed, size_t blocks) {
  return std::vector<uint32_t>(64 * blocks, seed);
}

struct Source final : BlockSource {
  explicit Source(Shelf& s) : shelf(s) {}
  Shelf* shelf_of(const NamespaceId&) override { return leads || forgets ? nullptr : &shelf; }
  bool is_pending(const BlockHash&) const override { return false; }
  Shelf& shelf;
  bool leads = false, forgets = false;
};

/// A pool over a disk, and orders about its blocks.
struct OrderBench {
  explicit OrderBench(uint32_t pages = 16, const kv::Namespace& own = kKv)
      : shelf(kLayout, pages, pages, kv::kLruTail, book.log()),
        disk({.capacity_bytes = 1 << 20}, book.log(), numbers),
        source(shelf),
        orders(source, shelves, disk, book, {own, pages * kPage}) {
    shelf.slabs.push_back(0);
    book.names().add(kKv.id(), kKv, "m");
  }
  ~OrderBench() {
    shelf.pool.check();
    shelf.leases.check();
    disk.check();
  }

  std::vector<BlockHash> publish(uint32_t seed, size_t blocks, const kv::Namespace& kv = kKv) {
    const auto tokens = tokens_of(seed, blocks);
    const auto hashes = kv::chain(kv.id(), tokens, 64);
    for (size_t i = 0; i < hashes.size(); ++i) {
      if (shelf.pool.find(hashes[i]) != kv::kNoPage) continue;
      const auto page = shelf.pool.allocate(1);
      REQUIRE_OK(page);
      kv::BlockMeta meta{
          hashes[i], i == 0 ? BlockHash{} : hashes[i - 1], kv.id(), static_cast<uint32_t>(i * 64), {7, 8}};
      meta.tokens.assign(64, seed);
      shelf.pool.unpin(shelf.pool.publish(page->front(), std::move(meta)).page);
    }
    shelf.pool.touch(std::span(hashes));
    return hashes;
  }
  void put_on_disk(const std::vector<BlockHash>& hashes, const kv::Namespace& kv = kKv) {
    DiskFound found;
    for (size_t i = 0; i < hashes.size(); ++i)
      found.blocks.push_back(
          {hashes[i], i == 0 ? BlockHash{} : hashes[i - 1], kv.id(), static_cast<uint32_t>(64 * i), kLayout, {7, 8}});
    Actions out;
    CHECK(disk.on_event(
        found, [](const DiskBlock&) { return true; }, now, out));
  }
  void leave_memory(const std::vector<BlockHash>& hashes) {
    for (const auto& hash : hashes) shelf.pool.remove(hash, kv::Removal::evicted);
  }
  bool in_memory(const BlockHash& hash) const { return shelf.pool.find(hash) != kv::kNoPage; }
  kv::LeaseId lease(const BlockHash& hash) {
    const std::vector<kv::PageIndex> pages{shelf.pool.find(hash)};
    const auto granted = shelf.leases.grant("d0", pages, now + 10s);
    REQUIRE_OK(granted);
    return *granted;
  }

  uint64_t give(decltype(BlockOrder::what) what, Duration time = 10s) {
    const uint64_t id = ++count;
    orders.on_order({id, now + time, std::move(what)}, now, out);
    return id;
  }
  void end(uint64_t id) { orders.on_order({id, now, EndOrder{}}, now, out); }
  void tick() { orders.on_tick(now, out); }
  /// The answer to an order that has ended.
  template <class T>
  T answer(uint64_t id) const {
    std::vector<T> found;
    for (const OrderAnswer& a : all<OrderAnswer>(out))
      if (a.id == id && std::holds_alternative<T>(a.what)) found.push_back(std::get<T>(a.what));
    REQUIRE(found.size() == 1);
    return found[0];
  }
  EvictReport evict(const BlockFilter& filter, bool dry_run = false) {
    const uint64_t id = give(EvictBlocks{filter, dry_run});
    for (int i = 0; !orders.idle(); ++i) {
      REQUIRE(i < 100);
      CHECK(orders.next_wakeup() <= now);
      tick();
    }
    return answer<EvictReport>(id);
  }
  PinReport pin(const BlockHash& last, Duration time = 3600s) { return answer<PinReport>(give(PinBlocks{last, time})); }
  void wait(Duration time) {
    now += time;
    book.uses().look(shelves, now);
    for (const auto& lease : shelf.leases.expire(now)) orders.expired(shelf, lease.id);
  }
  void load_all() {
    for (const DiskLoad& load : all<DiskLoad>(Actions(out))) {
      Actions more;
      disk.on_event(DiskLoaded{load.op, Code::ok, "", {7, 8}}, {}, now, more);
    }
  }
  uint64_t stayed(const EvictReport& report, Stayed why) const {
    return report.stayed[static_cast<size_t>(why)].blocks;
  }

  Numbers numbers;
  BlockBook book;
  Shelf shelf;
  std::vector<Shelf*> shelves{&shelf};
  DiskTier disk;
  Source source;
  BlockOrders orders;
  TimePoint now = TimePoint{} + 360000s;
  Actions out;
  uint64_t count = 0;
};

inline WriteBlocks writing(uint32_t seed, size_t blocks, size_t from = 0) {
  WriteBlocks order{kKv, kKv.id(), "m", kLayout, {}};
  const auto tokens = tokens_of(seed, from + blocks);
  const auto hashes = kv::chain(kKv.id(), tokens, 64);
  for (size_t i = from; i < hashes.size(); ++i)
    order.blocks.push_back({hashes[i],
                            i == 0 ? BlockHash{} : hashes[i - 1],
                            kKv.id(),
                            static_cast<uint32_t>(64 * i),
                            {7, 8},
                            std::vector<uint32_t>(64, seed)});
  return order;
}

}  // namespace mc::node::bench

// A tier on a node's disk, without a node around it.
#pragma once

#include "bench.h"
#include "node/disk_block.h"
#include "node/disk_tier.h"

namespace mc::node::bench {

inline const NamespaceId kNs = namespace_of(layout_of(2)).id();

inline std::vector<BlockHash> chain_of(uint32_t seed, size_t blocks) {
  return kv::chain(NamespaceId{}, std::vector<uint32_t>(64 * blocks, seed), 64);
}

/// A pool of ten pages over a disk.
struct TierBench {
  explicit TierBench(DiskTierOptions options = {.capacity_bytes = 1 << 20}) : tier(options, log, numbers) {
    shelf.slabs.push_back(0);
  }
  ~TierBench() {
    shelf.pool.check();
    tier.check();
  }

  /// Makes the blocks cached, from the first on.
  void publish(const std::vector<BlockHash>& hashes) {
    for (size_t i = 0; i < hashes.size(); ++i) {
      const auto page = shelf.pool.allocate(1);
      REQUIRE_OK(page);
      kv::BlockMeta meta{hashes[i], i == 0 ? BlockHash{} : hashes[i - 1], kNs, static_cast<uint32_t>(i * 64), {7, 8}};
      shelf.pool.unpin(shelf.pool.publish(page->front(), std::move(meta)).page);
    }
    shelf.pool.touch(std::span(hashes));
  }
  Actions tend() {
    Actions out;
    tier.tend(shelves, now, out);
    tier.check();
    now += 10ms;
    return out;
  }
  Actions written(uint64_t op, Code code = Code::ok) {
    Actions out;
    CHECK(tier.on_event(DiskWritten{op, code, "a disk error"}, {}, now, out));
    tier.check();
    return out;
  }
  /// Writes whatever is due and lets it end well.
  size_t write_all() {
    size_t count = 0;
    for (auto writes = all<DiskWrite>(tend()); !writes.empty(); writes = all<DiskWrite>(tend()))
      for (const DiskWrite& write : writes) written(write.op), ++count;
    return count;
  }
  DiskTier::LoadId load(const std::vector<BlockHash>& hashes) {
    out.clear();
    return tier.load(shelf, kNs, hashes, now, out);
  }
  void loaded(const DiskLoad& load, Code code = Code::ok) {
    Actions more;
    DiskLoaded done{load.op, code, "a disk error", {}};
    if (code == Code::ok) done.layer_crcs = {7, 8};
    CHECK(tier.on_event(done, {}, now, more));
    out.insert(out.end(), more.begin(), more.end());
    tier.check();
  }
  /// The blocks leave memory.
  void evict(const std::vector<BlockHash>& hashes) {
    for (const auto& hash : hashes) shelf.pool.remove(hash, kv::Removal::evicted);
  }
  bool in_memory(const BlockHash& hash) const { return shelf.pool.find(hash) != kv::kNoPage; }

  kv::EventLog log;
  Numbers numbers;
  Shelf shelf{layout_of(2), 10, 10, kv::kLruTail, log};
  Shelf* const shelves[1] = {&shelf};
  DiskTier tier;
  TimePoint now = TimePoint{} + 100s;
  Actions out;
};

}  // namespace mc::node::bench

// A node that fetches missing prefix blocks, without the request that waits for them.
#pragma once

#include "bench.h"
#include "node/prefix_fetches.h"

namespace mc::node::bench {

struct NoBlocks final : BlockSource {
  Shelf* shelf_of(const NamespaceId&) override { return nullptr; }
  bool is_pending(const BlockHash&) const override { return false; }
};

/// A node that wants the first three blocks of a prompt. p0 (1), p1 (4) and c0 (7) are peers.
struct FetchBench {
  kv::EventLog log;
  Shelf shelf{layout_of(2), 8, 8, kv::kLruTail, log};
  Peers peers{instance(50)};
  Numbers numbers;
  uint32_t loads_max = 32;
  DiskTier disk{{.capacity_bytes = 1 << 20, .loads_max = loads_max}, log, numbers};
  NoBlocks none;
  BlockReads reads{none, numbers, peers};
  uint64_t by_layer_bytes = UINT64_MAX;
  PrefixFetches fetches{shelf, peers, disk, reads, numbers, 5s, by_layer_bytes};
  std::vector<BlockHash> hashes = kv::chain(NamespaceId{}, std::vector<uint32_t>(64 * 3, 5), 64);
  std::vector<uint32_t> ids = std::vector<uint32_t>(64 * 3 + 1, 5);
  HeldPages pages;
  TimePoint now = TimePoint{} + 100s;
  Actions out;

  explicit FetchBench(uint64_t bytes = UINT64_MAX, uint32_t loads = 32) : loads_max(loads), by_layer_bytes(bytes) {
    shelf.slabs.push_back(0);
    wire::Peers list{1, {}};
    list.peers = {{"p0", instance(1), wire::Role::prefill, "", {}},
                  {"p1", instance(4), wire::Role::prefill, "", {}},
                  {"c0", instance(7), wire::Role::cache, "", {}}};
    peers.take(list);
  }
  ~FetchBench() { shelf.pool.check(); }

  /// The first `count` blocks are on this node's disk.
  void find_on_disk(size_t count) {
    DiskFound found;
    for (size_t i = 0; i < count; ++i) {
      const BlockHash parent = i == 0 ? BlockHash{} : hashes[i - 1];
      found.blocks.push_back({hashes[i], parent, {}, static_cast<uint32_t>(i * 64), layout_of(2), {11, 12}});
    }
    CHECK(disk.on_event(
        found, [](const DiskBlock&) { return true; }, now, out));
  }
  void loaded(const DiskLoad& load, Code code = Code::ok) {
    CHECK(disk.on_event(
        DiskLoaded{load.op, code, "", {11, 12}}, [](const DiskBlock&) { return true; }, now, out));
    fetches.on_disk(now, out);
    fetches.check();
  }
  void start(std::vector<wire::Source> sources) {
    fetches.start("r", {NamespaceId{}, hashes, ids, std::move(sources), now + 60s, &pages}, now, out);
    fetches.check();
  }
  void ends(const Read& read, Code code = Code::ok) {
    CHECK(fetches.on_read({read.read, code, ""}, now, out));
    fetches.check();
  }
  wire::LeaseRequest asked(const std::string& node) {
    const auto requests = sent<wire::LeaseRequest>(std::exchange(out, {}), node);
    REQUIRE(requests.size() == 1);
    return requests[0];
  }
  wire::LeaseGrant grant_for(const wire::LeaseRequest& request, size_t count) const {
    wire::LeaseGrant grant{request.lease, {}, 1000};
    for (size_t i = 0; i < count; ++i) grant.blocks.push_back({request.hashes[i], {}, 1, 0, {11, 12}});
    return grant;
  }
  /// Every peer sends the grant. That of the node that was asked is taken.
  bool on_grant(const wire::LeaseGrant& grant) {
    bool is_known = false;
    for (const auto& [name, peer] : peers.all()) is_known |= fetches.on_grant(peer.instance, grant, now, out);
    return is_known;
  }
  Read read_of(const wire::LeaseGrant& grant) {
    CHECK(on_grant(grant));
    const auto reads = all<Read>(out);
    REQUIRE(reads.size() == 1);
    fetches.check();
    return reads[0];
  }
  uint32_t owned() const { return shelf.pool.counts().owned; }
};

}  // namespace mc::node::bench

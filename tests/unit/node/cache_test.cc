// The cache machine alone: two layouts in one segment, slabs that change hands, drain.

#include "node/cache.h"

#include "bench.h"

namespace cache_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

const ExtentLayout kSmall = layout_of(2), kLarge = layout_of(8);

struct CacheBench : Bench<Cache, CacheOptions> {
  /// Slabs of eight small pages.
  explicit CacheBench(uint64_t slabs) : Bench(wire::Role::cache, 0, options(slabs)) {}
  static CacheOptions options(uint64_t slabs) {
    CacheOptions o;
    o.slab_bytes = 8 * kSmall.page_bytes();
    o.segment_bytes = slabs * o.slab_bytes;
    return o;
  }

  static std::vector<BlockHash> hashes(uint32_t seed, uint32_t count) {
    return kv::chain(NamespaceId{}, std::vector<uint32_t>(count * 64, seed), 64);
  }
  Actions offer(const ExtentLayout& layout, const std::vector<BlockHash>& blocks, const std::string& salt = "") {
    wire::DemoteOffer message;
    const kv::Namespace ns = namespace_of(layout).with_salt(salt);
    message.lease = ++leases;
    message.ns = ns.id();
    message.kv_namespace = namespace_of(layout).text();
    message.page_bytes = layout.page_bytes();
    message.extent_bytes = layout.layer_bytes();
    message.ttl_ms = 5000;
    BlockHash parent;
    for (const auto& hash : blocks) {
      message.blocks.push_back({hash, parent, 1, 0, std::vector<uint32_t>(layout.layers, 1)});
      parent = hash;
    }
    return from("p0", 1, message);
  }
  /// Offers and lets the read end well; the answer.
  wire::DemoteDone store(const ExtentLayout& layout, const std::vector<BlockHash>& blocks) {
    Actions out = offer(layout, blocks);
    const auto reads = all<Read>(out);
    if (!reads.empty()) out = give(ReadDone{reads[0].read, Code::ok, ""});
    return sent<wire::DemoteDone>(out, "p0").at(0);
  }
  uint32_t leased(const ExtentLayout& layout, const std::vector<BlockHash>& blocks) {
    wire::LeaseRequest request;
    request.lease = ++leases, request.ns = namespace_of(layout).id(), request.hashes = blocks;
    request.ttl_ms = 10000;
    return static_cast<uint32_t>(sent<wire::LeaseGrant>(from("d0", 2, request), "d0").at(0).blocks.size());
  }

  uint64_t leases = 0;
};

}  // namespace

TEST_CASE("node/cache: a slab goes from the layout that has most to one that needs it, and back") {
  REQUIRE(kLarge.page_bytes() * 2 <= 8 * kSmall.page_bytes());
  CacheBench b(3);
  const auto a = CacheBench::hashes(1, 24), c = CacheBench::hashes(2, 2), d = CacheBench::hashes(3, 16);
  CHECK(b.store(kSmall, a).stored.size() == 24);
  CHECK(b.store(kLarge, c).stored.size() == 2);
  CHECK(b.machine.stats().slabs_moved == 1);
  CHECK(b.leased(kLarge, c) == 2);
  CHECK(b.leased(kSmall, a) < 24);             // eight of them gave way, tails first
  CHECK(b.store(kSmall, d).reason == "full");  // what is leased stays, and a layout keeps its last slab
  b.wait(11s);                                 // the leases are over
  CHECK(b.store(kSmall, d).stored.size() == 16);
  const auto e = CacheBench::hashes(4, 4);
  CHECK(b.store(kLarge, e).stored.size() == 4);  // takes a second slab
  CHECK(b.machine.stats().slabs_moved == 2);
  CHECK(b.store(kSmall, CacheBench::hashes(5, 16)).stored.size() == 16);  // and the first layout takes it back
  CHECK(b.machine.stats().slabs_moved == 3);
  CHECK(b.leased(kSmall, CacheBench::hashes(5, 16)) == 16);
}

TEST_CASE("node/cache: blocks known already are not read again; blocks that fail their checksum are not kept") {
  CacheBench b(2);
  const auto hashes = CacheBench::hashes(1, 4);
  auto reads = all<Read>(b.offer(kSmall, hashes));
  REQUIRE(reads.size() == 1);
  CHECK_FALSE(reads[0].urgent);  // nobody waits for a copy
  const auto failed = sent<wire::DemoteDone>(b.give(ReadDone{reads[0].read, Code::corrupt, "crc"}), "p0");
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].stored.empty());
  CHECK(failed[0].reason == "corrupt");
  CHECK(b.leased(kSmall, hashes) == 0);
  CHECK(b.store(kSmall, hashes).stored.size() == 4);
  CHECK(all<Read>(b.offer(kSmall, hashes)).empty());
  CHECK(b.machine.stats().blocks_known == 4);
}

TEST_CASE("node/cache: an offer that contradicts its own layout, or comes from a stranger, is refused") {
  CacheBench b(2);
  const auto hashes = CacheBench::hashes(1, 1);
  wire::DemoteOffer offer;
  offer.lease = 1;
  offer.kv_namespace = namespace_of(kSmall).text();
  offer.page_bytes = kSmall.page_bytes() + 4096;
  offer.extent_bytes = kSmall.layer_bytes();
  offer.blocks.push_back({hashes[0], {}, 1, 0, {1, 1}});
  const auto reason = [&](const std::string& name, uint8_t n) {
    return sent<wire::DemoteDone>(b.from(name, n, offer), name).at(0).reason;
  };
  CHECK(reason("p0", 1) == "layout");
  offer.page_bytes = kSmall.page_bytes();
  offer.blocks[0].layer_crcs.push_back(3);
  CHECK(reason("p0", 1) == "layout");
  offer.kv_namespace = "nonsense";
  CHECK(reason("p0", 1) != "");
  CHECK(reason("x", 77) == "unknown_peer");
  offer.kv_namespace = namespace_of(kSmall).text();
  offer.blocks.assign(2000, {hashes[0], {}, 1, 0, {1, 1}});
  CHECK(reason("p0", 1) == "full");
  CHECK(b.machine.idle());
}

TEST_CASE("node/cache: while it drains it serves what it has and takes nothing more") {
  CacheBench b(2);
  const auto hashes = CacheBench::hashes(1, 4);
  b.store(kSmall, hashes);
  b.from_conductor(wire::Drain{true});
  CHECK(b.store(kSmall, CacheBench::hashes(2, 1)).reason == "draining");
  CHECK(b.leased(kSmall, hashes) == 4);
  CHECK_FALSE(b.machine.idle());
  b.wait(11s);
  CHECK(b.machine.idle());
}

TEST_CASE("node/cache: a node that dies while its offer is read leaves nothing behind") {
  CacheBench b(2);
  const auto reads = all<Read>(b.offer(kSmall, CacheBench::hashes(1, 4)));
  REQUIRE(reads.size() == 1);
  CHECK(all<CancelRead>(b.give(PeerLost{"p0", instance(1), "killed"})).size() == 1);
  CHECK(sent<wire::DemoteDone>(b.give(ReadDone{reads[0].read, Code::cancelled, ""}), "p0").empty());
  CHECK(b.machine.idle());
}

TEST_CASE("node/cache: however many namespaces come, those in use stay within reach") {
  CacheBench b(3);
  const auto kept = CacheBench::hashes(1, 2);
  CHECK(b.store(kSmall, kept).stored.size() == 2);
  for (uint32_t i = 0; i < 5000; ++i) {
    b.offer(kSmall, {}, "tenant-" + std::to_string(i));
    if (i % 1000 == 0) CHECK(b.leased(kSmall, kept) == 2);
  }
  CHECK(b.leased(kSmall, kept) == 2);
}

}  // namespace cache_test

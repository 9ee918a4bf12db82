// The cache machine alone: two layouts in one segment, slabs that change hands, drain.

#include "node/cache.h"

#include <map>
#include <optional>
#include <set>

#include "bench.h"

namespace cache_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;
using wire::DemoteEnd;

namespace {

const ExtentLayout kSmall = layout_of(2), kLarge = layout_of(8);

struct CacheBench : Bench<Cache, CacheOptions> {
  /// Slabs of eight small pages.
  explicit CacheBench(uint64_t slabs, uint64_t disk_bytes = 0)
      : Bench(wire::Role::cache, 0, options(slabs), 2, disk_bytes) {}
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
      const auto position = static_cast<uint32_t>(64 * message.blocks.size());
      message.blocks.push_back({hash, parent, 1, 0, std::vector<uint32_t>(layout.layers, 1), position});
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
  CHECK(b.leased(kSmall, a) < 24);                      // eight of them gave way, tails first
  CHECK(b.store(kSmall, d).reason == DemoteEnd::full);  // what is leased stays, and a layout keeps its last slab
  b.wait(11s);                                          // the leases are over
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
  CHECK(failed[0].reason == DemoteEnd::corrupt);
  CHECK(b.machine.load().last_error == "reading from p0: crc");
  CHECK(b.leased(kSmall, hashes) == 0);
  CHECK(b.store(kSmall, hashes).stored.size() == 4);
  CHECK(b.machine.load().last_error == "");  // it has served since
  CHECK(all<Read>(b.offer(kSmall, hashes)).empty());
  CHECK(b.machine.stats().blocks_known == 4);
}

TEST_CASE("node/cache: a read that outlasts the lease of its offer renews it, and counts if the node agrees") {
  for (const bool grants : {true, false}) {
    CAPTURE(grants);
    CacheBench b(2);
    const auto hashes = CacheBench::hashes(1, 4);
    const auto reads = all<Read>(b.offer(kSmall, hashes));
    REQUIRE(reads.size() == 1);
    CHECK(reads[0].budget > 5s);
    Actions out;
    for (int i = 0; i < 3; ++i) {
      CHECK(b.machine.next_wakeup() <= b.now + 2500ms);
      out = b.wait(2500ms);
      const auto renewals = sent<wire::LeaseRenew>(out, "p0");
      if (!grants && i > 0) break;
      REQUIRE(renewals.size() == 1);
      CHECK(renewals[0].lease == b.leases);
      const wire::LeaseRenewed answer{renewals[0].lease, renewals[0].round, 5000};
      b.from("d0", 2, wire::LeaseRenewed{answer.lease, answer.round, 0});  // which offered nothing
      if (grants) b.from("p0", 1, answer);
    }
    CHECK(all<CancelRead>(out).size() == (grants ? 0u : 1u));
    const auto done = sent<wire::DemoteDone>(b.give(ReadDone{reads[0].read, Code::ok, ""}), "p0").at(0);
    CHECK(done.stored.size() == (grants ? 4u : 0u));
    CHECK(done.reason == (grants ? DemoteEnd::complete : DemoteEnd::failed));
    CHECK(b.leased(kSmall, hashes) == (grants ? 4u : 0u));
  }
}

TEST_CASE("node/cache: blocks that a peer touched outlive others, and strangers touch nothing") {
  for (const bool is_peer : {true, false}) {
    CAPTURE(is_peer);
    CacheBench b(1);  // 8 pages
    const auto older = CacheBench::hashes(1, 4), newer = CacheBench::hashes(2, 4);
    CHECK(b.store(kSmall, older).stored.size() == 4);
    CHECK(b.store(kSmall, newer).stored.size() == 4);
    std::vector<BlockHash> touched = older;
    touched.push_back(CacheBench::hashes(9, 1)[0]);  // which the node lacks
    b.give(Touched{is_peer ? "p1" : "x", instance(is_peer ? 4 : 77), touched});
    CHECK(b.store(kSmall, CacheBench::hashes(3, 4)).stored.size() == 4);
    CHECK(b.leased(kSmall, older) == (is_peer ? 4 : 0));
    CHECK(b.leased(kSmall, newer) == (is_peer ? 0 : 4));
  }
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
  CHECK(reason("p0", 1) == DemoteEnd::layout);
  offer.page_bytes = kSmall.page_bytes();
  offer.blocks[0].layer_crcs.push_back(3);
  CHECK(reason("p0", 1) == DemoteEnd::layout);
  offer.kv_namespace = "nonsense";
  CHECK(reason("p0", 1) == DemoteEnd::layout);
  CHECK(reason("x", 77) == DemoteEnd::unknown_peer);
  offer.kv_namespace = namespace_of(kSmall).text();
  offer.blocks.assign(2000, {hashes[0], {}, 1, 0, {1, 1}});
  CHECK(reason("p0", 1) == DemoteEnd::full);
  CHECK(b.machine.idle());
}

TEST_CASE("node/cache: while it drains it serves what it has and takes nothing more") {
  CacheBench b(2);
  const auto hashes = CacheBench::hashes(1, 4);
  b.store(kSmall, hashes);
  b.from_conductor(wire::Drain{true});
  CHECK(b.store(kSmall, CacheBench::hashes(2, 1)).reason == DemoteEnd::draining);
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

TEST_CASE("node/cache: a block that leaves memory for the disk is reported there, and a reader gets it back") {
  CacheBench b(2, 64 << 20);  // sixteen pages
  const auto a = CacheBench::hashes(1, 12), other = CacheBench::hashes(2, 12);
  std::map<BlockHash, std::optional<kv::Tier>> index;  // as the conductor has it
  const auto take = [&](const Actions& out) {
    for (const auto& events : sent<wire::BlockEvents>(out, "conductor"))
      for (const auto& event : events.events)
        index[event.block.hash] = event.stored ? std::optional(event.block.tier) : std::nullopt;
  };
  const auto settle = [&](Actions out) {  // the disk does everything that it is asked
    while (!out.empty()) {
      take(out);
      Actions next;
      const auto give_all = [&](const Event& event) {
        const Actions more = b.give(event);
        next.insert(next.end(), more.begin(), more.end());
      };
      for (const auto& write : all<DiskWrite>(out)) give_all(DiskWritten{write.op, Code::ok, ""});
      for (const auto& load : all<DiskLoad>(out)) give_all(DiskLoaded{load.op, Code::ok, "", {1, 1}});
      out = std::move(next);
    }
  };
  const auto store = [&](const std::vector<BlockHash>& blocks) {
    const Actions offered = b.offer(kSmall, blocks);
    const auto reads = all<Read>(offered);
    REQUIRE(reads.size() == 1);
    settle(offered);
    settle(b.give(ReadDone{reads[0].read, Code::ok, ""}));
  };
  store(a);
  for (int round = 0; round < 2; ++round) {
    b.now += 10ms;
    settle(b.give(Tick{}));
  }
  for (const auto& hash : a) CHECK(index[hash] == kv::Tier::host);
  store(other);
  CHECK(index[a[11]] == kv::Tier::disk);  // its page was taken
  CHECK(index[other[11]] == kv::Tier::host);
  wire::LeaseRequest request;
  request.lease = 77, request.ns = namespace_of(kSmall).id(), request.hashes = a, request.ttl_ms = 10000;
  Actions out = b.from("d0", 2, request);
  const auto loads = all<DiskLoad>(out);
  REQUIRE_FALSE(loads.empty());
  CHECK(sent<wire::LeaseGrant>(out, "d0").empty());
  std::vector<wire::LeaseGrant> grants;
  for (const auto& load : loads) {
    out = b.give(DiskLoaded{load.op, Code::ok, "", {1, 1}});
    take(out);
    for (const auto& grant : sent<wire::LeaseGrant>(out, "d0")) grants.push_back(grant);
  }
  REQUIRE(grants.size() == 1);
  CHECK(grants[0].blocks.size() == 12);
  CHECK(index[a[11]] == kv::Tier::host);
}

TEST_CASE("node/cache: what an earlier process left on disk is reported and served under its own namespace") {
  CacheBench b(2, 64 << 20);
  const auto a = CacheBench::hashes(1, 3);
  DiskFound found;
  for (size_t i = 0; i < 3; ++i)
    found.blocks.push_back({a[i],
                            i == 0 ? BlockHash{} : a[i - 1],
                            namespace_of(kSmall).id(),
                            static_cast<uint32_t>(i * 64),
                            kSmall,
                            {1, 1}});
  const auto events = sent<wire::BlockEvents>(b.give(found), "conductor");
  REQUIRE(events.size() == 1);
  REQUIRE(events[0].events.size() == 3);
  for (const auto& event : events[0].events) CHECK((event.stored && event.block.tier == kv::Tier::disk));
  wire::LeaseRequest request;
  request.lease = 1, request.ns = namespace_of(kSmall).id(), request.hashes = a, request.ttl_ms = 10000;
  const auto loads = all<DiskLoad>(b.from("d0", 2, request));
  CHECK(loads.size() == 3);
  for (const auto& load : loads) b.give(DiskLoaded{load.op, Code::ok, "", {1, 1}});
  // A new conductor gets the whole of it, and each block once.
  size_t listed = 0;
  for (const auto& part : sent<wire::BlockSnapshot>(b.from_conductor(wire::IndexSync{}), "conductor"))
    listed += part.blocks.size();
  CHECK(listed == 3);
}

TEST_CASE("node/cache: a block that is read from disk for one layout is not lent under another") {
  CacheBench b(3, 64 << 20);
  b.store(kLarge, CacheBench::hashes(9, 1));
  const auto a = CacheBench::hashes(1, 1);
  b.give(DiskFound{{{a[0], BlockHash{}, namespace_of(kSmall).id(), 0, kSmall, {1, 1}}}, true});
  wire::LeaseRequest request;
  request.lease = 71, request.ns = namespace_of(kSmall).id(), request.hashes = a, request.ttl_ms = 10000;
  const auto loads = all<DiskLoad>(b.from("d0", 2, request));
  REQUIRE(loads.size() == 1);
  request.lease = 72, request.ns = namespace_of(kLarge).id();
  const auto refused = sent<wire::LeaseGrant>(b.from("d0", 2, request), "d0");
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].blocks.empty());
  const auto granted = sent<wire::LeaseGrant>(b.give(DiskLoaded{loads[0].op, Code::ok, "", {1, 1}}), "d0");
  REQUIRE(granted.size() == 1);
  CHECK(granted[0].lease == 71);
  CHECK(granted[0].blocks.size() == 1);
}

TEST_CASE("node/cache: a node that an operator drains begins no writes, and one that stops writes all it has") {
  CacheBench b(2, 64 << 20);  // sixteen pages
  const auto chain = CacheBench::hashes(1, 11);
  const Actions offered = b.offer(kSmall, chain);
  b.from_conductor(wire::Drain{true});
  b.now += 10ms;
  CHECK(all<DiskWrite>(b.give(ReadDone{all<Read>(offered).at(0).read, Code::ok, ""})).empty());
  CHECK(b.machine.idle());
  Actions out;
  b.machine.start_draining(b.now, out);
  CHECK_FALSE(b.machine.idle());
  std::vector<BlockHash> written;
  for (int i = 0; i < 100 && !b.machine.idle(); ++i) {
    const auto writes = all<DiskWrite>(out);
    out.clear();
    b.now += 10ms;
    for (const auto& write : writes) {
      written.push_back(write.block.hash);
      const Actions more = b.give(DiskWritten{write.op, Code::ok, ""});
      out.insert(out.end(), more.begin(), more.end());
    }
  }
  CHECK(written == chain);
  CHECK(b.machine.idle());
}

TEST_CASE("node/cache: a node that stops wakes itself for the writes that its budget delays") {
  CacheBench b(2, 64 << 20);
  b.give(ReadDone{all<Read>(b.offer(kSmall, CacheBench::hashes(1, 11))).at(0).read, Code::ok, ""});
  Actions out;
  b.machine.start_draining(b.now, out);
  for (const auto& write : all<DiskWrite>(out)) b.give(DiskWritten{write.op, Code::io, "a disk error"});
  CHECK_FALSE(b.machine.idle());
  CHECK(b.machine.next_wakeup() < b.now + 1s);
}

TEST_CASE("node/cache: a block that the disk gave up is written again when it has left memory and is offered again") {
  CacheBench b(2, 64 << 20);  // sixteen pages
  const auto a = CacheBench::hashes(1, 16);
  const auto write_all = [&](Actions out) {  // until the disk has what the node wants to have there
    std::set<BlockHash> written;
    for (auto writes = all<DiskWrite>(out); !writes.empty(); writes = all<DiskWrite>(out)) {
      out.clear();
      const auto give = [&](const Event& event) {
        const Actions more = b.give(event);
        out.insert(out.end(), more.begin(), more.end());
      };
      for (const DiskWrite& write : writes) written.insert(write.block.hash), give(DiskWritten{write.op, Code::ok, ""});
      b.now += 10ms;
      give(Tick{});
    }
    return written;
  };
  const auto store = [&](const std::vector<BlockHash>& blocks) {
    const auto reads = all<Read>(b.offer(kSmall, blocks));
    REQUIRE(reads.size() == 1);
    b.now += 10ms;
    return write_all(b.give(ReadDone{reads[0].read, Code::ok, ""}));
  };
  const auto first = store(a);
  REQUIRE(first.contains(a[15]));
  b.now += 10ms;
  CHECK(write_all(b.give(DiskEvicted{{first.begin(), first.end()}})).empty());  // nothing has changed in memory
  store(CacheBench::hashes(2, 16));
  CHECK(store(a) == first);
}

TEST_CASE("node/cache: a block whose bytes changed before it was written is remembered as damaged") {
  CacheBench b(2, 64 << 20);
  const auto a = CacheBench::hashes(1, 16);
  const Actions offered = b.offer(kSmall, a);
  b.now += 10ms;
  const auto writes = all<DiskWrite>(b.give(ReadDone{all<Read>(offered).at(0).read, Code::ok, ""}));
  REQUIRE_FALSE(writes.empty());
  REQUIRE(writes[0].block.hash == a[15]);
  b.give(DiskWritten{writes[0].op, Code::corrupt, ""});
  wire::LeaseRequest request;
  request.lease = 71, request.ns = namespace_of(kSmall).id(), request.hashes = {a[15]}, request.ttl_ms = 10000;
  const auto grants = sent<wire::LeaseGrant>(b.from("d0", 2, request), "d0");
  REQUIRE(grants.size() == 1);
  CHECK(grants[0].reason == wire::Fallback::corrupt);
}

}  // namespace cache_test

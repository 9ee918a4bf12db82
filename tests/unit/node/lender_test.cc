// Leases to readers, the list of peers, and offers to cache nodes: the parts of a worker, each alone.

#include "node/lender.h"

#include "bench.h"
#include "node/demoter.h"
#include "node/peers.h"

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;
using wire::DemoteEnd;
using wire::Fallback;

namespace {

struct Source final : BlockSource {
  kv::EventLog log;
  Shelf shelf{layout_of(2), 16, 16, kv::kLruTail, log};
  bool has_shelf = true, pending = false;
  std::vector<BlockHash> hashes = kv::chain(NamespaceId{}, std::vector<uint32_t>(64 * 4, 5), 64);

  Source() { shelf.slabs.push_back(0); }
  Shelf* shelf_of(const NamespaceId&) override { return has_shelf ? &shelf : nullptr; }
  bool is_pending(const BlockHash&) const override { return pending; }
  /// Makes the first `count` blocks resident.
  void publish(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (shelf.pool.find(hashes[i]) != kv::kNoPage) continue;
      const auto page = shelf.pool.allocate(1);
      REQUIRE_OK(page);
      kv::BlockMeta meta{hashes[i], i == 0 ? BlockHash{} : hashes[i - 1], {}, static_cast<uint32_t>(i * 64), {1, 2}};
      shelf.pool.unpin(shelf.pool.publish((*page)[0], std::move(meta)).page);
    }
  }
};

struct LenderBench {
  Source source;
  BlockMemory memory;
  Numbers numbers;
  DiskTier disk{{.capacity_bytes = 1 << 20}, source.log, numbers};
  Lender lender{source, memory, disk, 30s};
  TimePoint now{};

  wire::LeaseRequest request(uint64_t lease, uint32_t wait_ms = 0) const {
    wire::LeaseRequest out;
    out.lease = lease, out.hashes = source.hashes, out.ttl_ms = 1000, out.wait_ms = wait_ms;
    return out;
  }
  std::vector<wire::LeaseGrant> ask(const wire::LeaseRequest& asked, bool known = true) {
    Actions out;
    lender.on_request("p1", instance(4), asked, known, now, out);
    return sent<wire::LeaseGrant>(out, "p1");
  }
  std::vector<wire::LeaseGrant> serve() {
    Actions out;
    lender.serve_waiting(now, out);
    return sent<wire::LeaseGrant>(out, "p1");
  }
};

}  // namespace

TEST_CASE("node/lender: the leading run that is here is leased, and the grant says why the next block is not") {
  LenderBench b;
  b.source.publish(2);
  b.memory.evicted(b.source.hashes[2], b.now);
  b.now += 250ms;
  const auto grant = b.ask(b.request(1)).at(0);
  CHECK(grant.blocks.size() == 2);
  CHECK(grant.ttl_ms == 1000);
  CHECK(grant.reason == Fallback::evicted);
  CHECK(grant.age_ms == 250);
  CHECK(b.source.shelf.leases.size() == 1);
  b.lender.on_release(instance(4), 1, b.now);
  CHECK(b.source.shelf.leases.size() == 0);
}

TEST_CASE("node/lender: a stranger, a number used twice, and a namespace of no shelf get nothing") {
  LenderBench b;
  b.source.publish(4);
  CHECK(b.ask(b.request(1), false).at(0).reason == Fallback::unknown_peer);
  CHECK(b.ask(b.request(1)).at(0).blocks.size() == 4);
  auto shorter = b.request(1);
  shorter.hashes.pop_back();
  CHECK(b.ask(shorter).at(0).blocks.empty());
  auto other = b.request(1);
  other.hashes.back() = other.hashes.front();
  CHECK(b.ask(other).at(0).reason == Fallback::unknown_peer);
  CHECK(b.source.shelf.leases.size() == 1);
  b.source.has_shelf = false;
  CHECK(b.ask(b.request(2)).at(0).reason == Fallback::layout);
  b.lender.drop(instance(4));
  CHECK(b.source.shelf.leases.size() == 0);
}

TEST_CASE("node/lender: a renewed lease lasts, but no longer than its total, and one that has ended is refused") {
  LenderBench b;
  b.source.publish(4);
  const TimePoint start = b.now;
  const auto renew = [&](uint64_t lease, uint32_t ttl_ms, uint8_t reader = 4) {
    Actions out;
    b.lender.on_renew("p1", instance(reader), {lease, 3, ttl_ms}, b.now, out);
    const auto answers = sent<wire::LeaseRenewed>(out, "p1");
    REQUIRE(answers.size() == 1);
    CHECK((answers[0].lease == lease && answers[0].round == 3));
    return answers[0].ttl_ms;
  };
  const auto expire = [&] {
    for (const auto& lease : b.source.shelf.leases.expire(b.now)) b.lender.expired(b.source.shelf, lease.id, b.now);
  };
  CHECK(b.ask(b.request(1)).at(0).blocks.size() == 4);
  CHECK(renew(2, 1000) == 0);     // no such lease
  CHECK(renew(1, 1000, 5) == 0);  // another reader's
  b.now = start + 900ms;
  CHECK(renew(1, 10) == 100);  // never earlier
  CHECK(renew(1, 1000) == 1000);
  b.now = start + 1500ms;
  expire();
  CHECK(b.source.shelf.leases.size() == 1);
  CHECK(renew(1, UINT32_MAX) == 30'000);  // the longest lease of this holder
  int renewals = 0;
  for (int i = 0; i < 20; ++i) b.now += 20s, expire(), renewals += renew(1, UINT32_MAX) > 0;
  CHECK(b.now > start + Lender::kTotalTtls * 30s);
  CHECK(renewals == 11);  // one each 20 s up to 221.5 s
  CHECK(b.source.shelf.leases.size() == 0);
  CHECK(renew(1, 1000) == 0);
  CHECK(b.ask(b.request(3)).at(0).blocks.size() == 4);
  b.now += 1s;  // its time is over, though nobody has looked yet
  CHECK(renew(3, 1000) == 0);
}

TEST_CASE("node/lender: a lease or renewal for less than 1 ms lasts for 1 ms, unless its total time ends sooner") {
  LenderBench b;
  b.source.publish(4);
  const TimePoint start = b.now;
  const auto renew = [&](uint32_t ttl_ms) {
    Actions out;
    b.lender.on_renew("p1", instance(4), {1, 1, ttl_ms}, b.now, out);
    return sent<wire::LeaseRenewed>(out, "p1").at(0).ttl_ms;
  };
  auto asked = b.request(1);
  asked.ttl_ms = 0;
  CHECK(b.ask(asked).at(0).ttl_ms == 1);
  CHECK(b.source.shelf.leases.next_expiry() == start + 1ms);
  b.now = start + 300us;
  CHECK(renew(0) == 1);
  CHECK(b.source.shelf.leases.next_expiry() == start + 1300us);
  const TimePoint last = start + Lender::kTotalTtls * 30s;
  for (b.now = start + 1ms; b.now < last - 20s; b.now += 20s) CHECK(renew(30'000) == 30'000);
  CHECK(renew(30'000) == 19'999);
  b.now = last - 1ms;
  CHECK(renew(30'000) == 1);
  b.now = last - 400us;
  CHECK(renew(30'000) == 0);
  CHECK(b.source.shelf.leases.next_expiry() == last);
  b.lender.drop(instance(4));
}

TEST_CASE("node/lender: a reader that asks again and again keeps no more than half, and others get theirs meanwhile") {
  LenderBench b;  // a shelf of 16 pages, and a longest lease of 30 s
  b.source.publish(4);
  const std::string liar = instance(4).hex();
  const Duration limit = Lender::kTotalTtls * 30s;
  Duration above{}, longest{}, half_at_most{};
  uint64_t lease = 0;
  size_t refused = 0;
  for (const TimePoint end = b.now + 3 * limit; b.now < end; b.now += 1s) {
    for (const auto& over : b.source.shelf.leases.expire(b.now)) b.lender.expired(b.source.shelf, over.id, b.now);
    auto asked = b.request(++lease);
    asked.ttl_ms = 30'000;
    const auto grant = b.ask(asked).at(0);
    refused += grant.blocks.empty() && grant.reason == Fallback::refused;
    Actions out;
    for (uint64_t old = lease - std::min<uint64_t>(lease - 1, 40); old < lease; ++old)
      b.lender.on_renew("p1", instance(4), {old, 1, 30'000}, b.now, out);
    const bool is_above = b.source.shelf.leases.pages_of(liar) > 8;
    above = is_above ? above + 1s : 0s, longest = std::max(longest, above);
    half_at_most += is_above ? 0s : 1s;
    auto other = b.request(1);
    b.lender.on_request("p2", instance(5), other, true, b.now, out);
    CHECK(sent<wire::LeaseGrant>(out, "p2").at(0).blocks.size() == 4);
    b.lender.on_release(instance(5), 1, b.now);
  }
  CHECK(refused > 0);
  CHECK(longest >= limit);
  CHECK(longest <= limit + 30s + 1s);  // leases that began before the limit end by themselves
  CHECK(half_at_most >= limit);
  CHECK(b.source.shelf.leases.pages_of(liar) > 0);
  b.lender.drop(instance(4));
  CHECK(b.ask(b.request(lease + 1)).at(0).blocks.size() == 4);
  b.lender.drop(instance(4));
}

TEST_CASE("node/lender: a reader that reads more than half and releases it is never refused, however long it goes on") {
  LenderBench b;
  b.source.publish(4);
  uint64_t lease = 0;
  for (int read = 0; read < 1000; ++read) {
    const uint64_t first = lease + 1;
    for (int i = 0; i < 4; ++i) CHECK(b.ask(b.request(++lease)).at(0).blocks.size() == 4);
    b.now += 900ms;
    for (uint64_t i = first; i <= lease; ++i) b.lender.on_release(instance(4), i, b.now);
    b.now += 1s;
  }
  CHECK(b.source.shelf.leases.size() == 0);
}

TEST_CASE("node/lender: a number that waits already is refused, and the first request gets its lease") {
  LenderBench b;
  b.source.publish(1);
  b.source.pending = true;
  CHECK(b.ask(b.request(1, 500)).empty());
  const auto again = b.ask(b.request(1)).at(0);
  CHECK(again.reason == Fallback::unknown_peer);
  CHECK(again.blocks.empty());
  CHECK(b.source.shelf.leases.size() == 0);
  b.source.publish(4);
  CHECK(b.serve().at(0).blocks.size() == 4);
  CHECK(b.source.shelf.leases.size() == 1);
  b.lender.on_release(instance(4), 1, b.now);
  CHECK(b.source.shelf.leases.size() == 0);
}

TEST_CASE("node/lender: a repeated request takes the place of the first one, granted or waiting") {
  LenderBench b;
  b.source.publish(4);
  CHECK(b.ask(b.request(1)).at(0).blocks.size() == 4);
  b.now += 500ms;
  CHECK(b.ask(b.request(1)).at(0).blocks.size() == 4);
  CHECK(b.source.shelf.leases.size() == 1);
  CHECK(b.source.shelf.leases.next_expiry() == b.now + 1s);
  b.lender.on_release(instance(4), 1, b.now);
  CHECK(b.source.shelf.leases.size() == 0);

  LenderBench waiting;
  waiting.source.publish(1);
  waiting.source.pending = true;
  CHECK(waiting.ask(waiting.request(1, 500)).empty());
  waiting.now += 300ms;
  CHECK(waiting.ask(waiting.request(1, 500)).empty());
  CHECK(waiting.lender.next_wakeup() == waiting.now + 500ms);
  waiting.source.publish(4);
  CHECK(waiting.serve().size() == 1);
  CHECK(waiting.source.shelf.leases.size() == 1);
  CHECK(waiting.lender.idle());
  waiting.lender.drop(instance(4));
}

TEST_CASE("node/lender: a repeated request gets the first grant again, whatever happened to its blocks since") {
  LenderBench b;
  b.source.publish(3);
  const auto first = b.ask(b.request(1)).at(0);
  CHECK(first.blocks.size() == 3);
  b.source.shelf.pool.remove(b.source.hashes[1], kv::Removal::corrupt);  // its page stays while it is leased
  b.source.publish(1);
  CHECK(b.ask(b.request(1)).at(0) == first);
  CHECK(b.source.shelf.leases.size() == 1);
  b.source.pending = true;
  CHECK(b.ask(b.request(1)).at(0) == first);  // does not wait for what the first request was not granted
  CHECK(b.lender.idle());
  b.lender.on_release(instance(4), 1, b.now);
  CHECK(b.source.shelf.leases.size() == 0);
  CHECK(b.ask(b.request(1)).at(0).blocks.size() == 1);  // the number is free again
  b.lender.drop(instance(4));
}

TEST_CASE("node/lender: a reader that waits is served when all blocks are here, or its time is over") {
  LenderBench b;
  b.source.publish(1);
  b.source.pending = true;
  CHECK(b.ask(b.request(1, 500)).empty());
  CHECK_FALSE(b.lender.idle());
  CHECK(b.lender.next_wakeup() == b.now + 500ms);
  CHECK(b.serve().empty());
  b.now += 500ms;
  const auto late = b.serve();
  REQUIRE(late.size() == 1);
  CHECK(late[0].blocks.size() == 1);
  CHECK(late[0].reason == Fallback::not_published_yet);
  CHECK(late[0].waited_ms == 500);
  CHECK(b.ask(b.request(2, 500)).empty());
  b.source.publish(4);
  CHECK(b.serve().at(0).blocks.size() == 4);
  CHECK(b.lender.idle());
  b.lender.drop(instance(4));
}

TEST_CASE("node/demoter: a full pool offers its coldest chain once, and drops what came back as corrupt") {
  Source source;
  source.publish(4);
  NamespaceBook names;
  Demoter demoter(source.shelf, 0.2, "text", names, false);
  const wire::Peer cache{"c0", instance(3), wire::Role::cache, "", {}};
  TimePoint now{};
  CHECK(demoter.due(now));
  Actions out;
  demoter.offer({&cache}, {}, 7, now, out);
  const auto offers = sent<wire::DemoteOffer>(out, "c0");
  REQUIRE(offers.size() == 1);
  CHECK(offers[0].blocks.size() == 4);
  CHECK_FALSE(demoter.idle());
  CHECK_FALSE(demoter.due(now));  // not again at once
  demoter.on_done(instance(4), {7, source.hashes, DemoteEnd::complete}, now);
  CHECK_FALSE(demoter.idle());  // of another node
  demoter.on_done(instance(3), {7, {source.hashes[0], source.hashes[1]}, DemoteEnd::corrupt}, now);
  CHECK(demoter.idle());
  CHECK(source.shelf.pool.match(source.hashes) == 2);
  out.clear();
  demoter.offer({&cache}, {}, 8, now + 1s, out);
  CHECK(out.empty());  // the cache node holds the rest
  demoter.drop(instance(3));
  demoter.offer({&cache}, {}, 9, now + 2s, out);
  CHECK(sent<wire::DemoteOffer>(out, "c0").size() == 1);
  demoter.drop(instance(3));
  CHECK(source.shelf.leases.size() == 0);
}

TEST_CASE("node/demoter: the cache node that reads an offer prolongs its lease, up to 40 s in all") {
  Source source;
  source.publish(4);
  NamespaceBook names;
  Demoter demoter(source.shelf, 0.2, "text", names, false);
  const wire::Peer cache{"c0", instance(3), wire::Role::cache, "", {}};
  TimePoint now{};
  Actions out;
  demoter.offer({&cache}, {}, 7, now, out);
  const auto renew = [&](uint8_t from, uint64_t offer) -> std::optional<uint32_t> {
    Actions answers;
    const wire::LeaseRenew asked{offer, 1, 60'000};
    if (!demoter.on_renew({"c0", instance(from), asked}, asked, now, answers)) return std::nullopt;
    return sent<wire::LeaseRenewed>(answers, "c0").at(0).ttl_ms;
  };
  CHECK_FALSE(renew(4, 7).has_value());  // another node
  CHECK_FALSE(renew(3, 8).has_value());  // another offer
  for (now += 2s; now < TimePoint{} + 39s; now += 2s) {
    CHECK(renew(3, 7) == std::min<uint32_t>(5000, static_cast<uint32_t>((TimePoint{} + 40s - now) / 1ms)));
    CHECK(source.shelf.leases.expire(now).empty());
    CHECK(demoter.next_wakeup() == source.shelf.leases.next_expiry());
  }
  now = TimePoint{} + 40s;
  CHECK_FALSE(renew(3, 7).has_value());
  const auto over = source.shelf.leases.expire(now);
  REQUIRE(over.size() == 1);
  demoter.expired(over[0].id);
  CHECK(demoter.idle());
}

TEST_CASE("node/demoter: a chain goes to the cache node of its first block, and to the next one after a refusal") {
  Source source;
  source.publish(4);
  NamespaceBook names;
  Demoter demoter(source.shelf, 0.2, "text", names, false);
  const wire::Peer c0{"c0", instance(3), wire::Role::cache, "", {}}, c1{"c1", instance(4), wire::Role::cache, "", {}};
  const std::vector<const wire::Peer*> both{&c0, &c1};
  const wire::Peer& first = *cache_for(source.hashes[0], both, {}, {});
  const wire::Peer& second = &first == &c0 ? c1 : c0;
  TimePoint now{};
  Actions out;
  const auto offered_to = [&](uint64_t id) {
    out.clear();
    demoter.offer(both, {}, id, now, out);
    const bool to_first = !sent<wire::DemoteOffer>(out, first.name).empty();
    CHECK(to_first == sent<wire::DemoteOffer>(out, second.name).empty());
    return to_first ? first.name : second.name;
  };
  CHECK(offered_to(7) == first.name);  // whatever the number of the offer
  demoter.on_done(first.instance, {7, {}, DemoteEnd::full}, now);
  CHECK(offered_to(8) == second.name);
  demoter.on_done(second.instance, {8, {}, DemoteEnd::other}, now);  // a reason of a newer version
  CHECK(offered_to(9) == first.name);                                // each has refused
  demoter.on_done(first.instance, {9, {}, DemoteEnd::full}, now);
  now += 1s;
  CHECK(offered_to(10) == first.name);
  demoter.on_done(first.instance, {10, source.hashes, DemoteEnd::complete}, now);
  out.clear();
  demoter.offer(both, {}, 11, now + 1s, out);
  CHECK(out.empty());
  demoter.drop(second.instance);  // which held nothing
  demoter.offer({&first}, {}, 12, now + 2s, out);
  CHECK(out.empty());
  demoter.drop(first.instance);
  demoter.offer({&second}, {}, 13, now + 3s, out);
  CHECK(sent<wire::DemoteOffer>(out, second.name).size() == 1);
}

TEST_CASE("node/peers: a newer list names those that are gone, an older one is not taken") {
  Peers peers(instance(50));
  const auto list = [](uint64_t version, std::vector<uint8_t> members) {
    wire::Peers out{version, {}};
    for (const uint8_t m : members) out.peers.push_back({"n" + std::to_string(m % 10), instance(m), {}, "", {}});
    return out;
  };
  peers.take(list(2, {1, 2, 50}));
  CHECK(peers.all().size() == 2);  // without itself
  CHECK(peers.has("n1", instance(1)));
  CHECK_FALSE(peers.gone(list(1, {})));
  const auto gone = peers.gone(list(3, {1, 12}));  // n2 under another instance
  REQUIRE(gone);
  REQUIRE(gone->size() == 1);
  CHECK((*gone)[0].instance == instance(2));
  peers.forget("n1", instance(9));
  CHECK((peers.has("n1", instance(1)) && peers.version() == 2));
  peers.forget("n1", instance(1));
  CHECK_FALSE(peers.find("n1"));
  CHECK(peers.version() == 0);
}

TEST_CASE("node/peers: connections to the members of the conductor before are kept for a while") {
  Peers peers(instance(50));
  const TimePoint start{};
  wire::Peers two{1, {{"a", instance(1), {}, "", {}}, {"b", instance(2), {}, "", {}}}};
  peers.take(two);
  peers.new_conductor(start + 2s);
  CHECK(peers.version() == 0);
  peers.take({1, {{"a", instance(1), {}, "", {}}}});
  CHECK(peers.told().peers.size() == 2);
  CHECK(peers.next_wakeup() == start + 2s);
  CHECK_FALSE(peers.drop_former(start + 1s));
  CHECK(peers.drop_former(start + 2s));
  CHECK(peers.told().peers.size() == 1);
}

TEST_CASE("node/lender: a lease waits for blocks that are read from disk, and no longer than half its time") {
  LenderBench b;
  b.source.publish(1);
  DiskFound found;
  for (size_t i = 1; i < 3; ++i)
    found.blocks.push_back(
        {b.source.hashes[i], b.source.hashes[i - 1], {}, static_cast<uint32_t>(i * 64), layout_of(2), {1, 2}});
  Actions out;
  const auto usable = [](const DiskBlock&) { return true; };
  REQUIRE(b.disk.on_event(found, usable, b.now, out));
  b.lender.on_request("p1", instance(4), b.request(7), true, b.now, out);
  const auto loads = all<DiskLoad>(out);
  REQUIRE(loads.size() == 2);
  CHECK(sent<wire::LeaseGrant>(out, "p1").empty());
  SUBCASE("they come") {
    for (const auto& load : loads)
      REQUIRE(b.disk.on_event(DiskLoaded{load.op, Code::ok, "", {1, 2}}, usable, b.now, out));
    const auto grants = b.serve();
    REQUIRE(grants.size() == 1);
    CHECK(grants[0].blocks.size() == 3);
    CHECK(grants[0].blocks[2].first_position == 128);
    CHECK(grants[0].reason == Fallback::absent);  // of the fourth block
  }
  SUBCASE("one fails its checksum") {
    REQUIRE(b.disk.on_event(DiskLoaded{loads[1].op, Code::corrupt, "", {}}, usable, b.now, out));
    REQUIRE(b.disk.on_event(DiskLoaded{loads[0].op, Code::ok, "", {1, 2}}, usable, b.now, out));
    CHECK(b.serve().at(0).blocks.size() == 2);
  }
  SUBCASE("they are late") {
    CHECK(b.lender.next_wakeup() == b.now + 500ms);
    b.now += 500ms;
    const auto grants = b.serve();
    REQUIRE(grants.size() == 1);
    CHECK(grants[0].blocks.size() == 1);
    CHECK(grants[0].reason == Fallback::disk);
    for (const auto& load : loads)
      REQUIRE(b.disk.on_event(DiskLoaded{load.op, Code::ok, "", {1, 2}}, usable, b.now, out));
  }
  SUBCASE("the reader is gone") {
    b.lender.drop(instance(4));
    CHECK(b.lender.idle());
    for (const auto& load : loads)
      REQUIRE(b.disk.on_event(DiskLoaded{load.op, Code::ok, "", {1, 2}}, usable, b.now, out));
  }
  CHECK(b.disk.idle());
  b.lender.on_release(instance(4), 7, b.now);
  CHECK(b.source.shelf.leases.size() == 0);
  CHECK(b.source.shelf.pool.counts().pinned == 0);
}

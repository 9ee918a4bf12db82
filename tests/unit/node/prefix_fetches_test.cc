// Fetches of missing prefix blocks, without the request that waits for them.

#include "node/prefix_fetches.h"

#include "bench.h"

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;
using wire::Fallback;

namespace {

/// A node that wants the first three blocks of a prompt. p0 (1) and p1 (4) are peers.
struct FetchBench {
  kv::EventLog log;
  Shelf shelf{layout_of(2), 8, 8, kv::kLruTail, log};
  Peers peers{instance(50)};
  Numbers numbers;
  DiskTier disk{{.capacity_bytes = 1 << 20}, log, numbers};
  PrefixFetches fetches{shelf, peers, disk, numbers, 5s};
  std::vector<BlockHash> hashes = kv::chain(NamespaceId{}, std::vector<uint32_t>(64 * 3, 5), 64);
  std::vector<uint32_t> ids = std::vector<uint32_t>(64 * 3 + 1, 5);
  HeldPages pages;
  TimePoint now = TimePoint{} + 100s;
  Actions out;

  FetchBench() {
    shelf.slabs.push_back(0);
    wire::Peers list{1, {}};
    list.peers = {{"p0", instance(1), wire::Role::prefill, "", {}}, {"p1", instance(4), wire::Role::prefill, "", {}}};
    peers.take(list);
  }
  ~FetchBench() { shelf.pool.check(); }

  void start(std::vector<wire::Source> sources) {
    fetches.start("r", {NamespaceId{}, hashes, ids, std::move(sources), now + 60s, &pages}, now, out);
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
  Read read_of(const wire::LeaseGrant& grant) {
    CHECK(fetches.on_grant(grant, now, out));
    const auto reads = all<Read>(out);
    REQUIRE(reads.size() == 1);
    fetches.check();
    return reads[0];
  }
  uint32_t owned() const { return shelf.pool.counts().owned; }
};

}  // namespace

TEST_CASE("node/prefix_fetches: the blocks of two holders are fetched one holder after the other") {
  FetchBench b;
  b.start({{"p0", instance(1), 0, 2, 0}, {"p1", instance(4), 0, 3, 0}});
  CHECK(b.fetches.may_bring("r", 1));
  CHECK_FALSE(b.fetches.may_bring("r", 2));
  const auto first = b.asked("p0");
  CHECK(first.hashes.size() == 2);
  const Read read = b.read_of(b.grant_for(first, 2));
  CHECK(read.slices.size() == 4);  // two layers of two blocks
  b.now += 1s;
  CHECK(b.fetches.on_read({read.read, Code::ok, ""}, b.now, b.out));
  const auto second = b.asked("p1");
  CHECK(second.hashes == std::vector<BlockHash>{b.hashes[2]});
  CHECK_FALSE(b.fetches.done("r"));
  b.out.clear();
  CHECK(b.fetches.on_read({b.read_of(b.grant_for(second, 1)).read, Code::ok, ""}, b.now, b.out));
  REQUIRE(b.fetches.done("r"));
  const auto& outcome = b.fetches.outcome("r");
  CHECK(outcome.blocks == 3);
  CHECK(outcome.ms() == 1000);
  CHECK(outcome.from == std::vector<wire::NameValue>{{"p0", "128"}, {"p1", "64"}});
  CHECK(outcome.fallback == Fallback::none);
  CHECK(b.pages.pinned_count() == 3);
  b.fetches.end("r", b.out);
  b.pages.release(b.shelf.pool);
}

TEST_CASE("node/prefix_fetches: pages of a read that was given up stay owned until the read has ended") {
  FetchBench b;
  b.start({{"p0", instance(1), 0, 3, 0}});
  const Read read = b.read_of(b.grant_for(b.asked("p0"), 3));
  CHECK(b.owned() == 3);
  SUBCASE("because its holder was lost") {
    b.fetches.on_peer_gone(instance(1), b.now, b.out);
    CHECK(b.fetches.outcome("r").fallback == Fallback::peer_lost);
  }
  SUBCASE("because it took too long") {
    b.now = b.fetches.next_wakeup();
    b.fetches.on_tick(b.now, b.out);
    CHECK(b.fetches.outcome("r").fallback == Fallback::read_timeout);
  }
  SUBCASE("because the request ended") {
    b.fetches.end("r", b.out);
  }
  b.fetches.check();
  CHECK(all<CancelRead>(b.out).size() == 1);
  CHECK(b.owned() == 3);
  CHECK(b.fetches.on_read({read.read, Code::ok, ""}, b.now, b.out));
  CHECK(b.owned() == 0);
  CHECK(b.pages.empty());
  CHECK_FALSE(b.fetches.on_read({read.read, Code::ok, ""}, b.now, b.out));
  b.fetches.end("r", b.out);
}

TEST_CASE("node/prefix_fetches: a grant of other blocks, and one that comes twice, bring nothing") {
  FetchBench b;
  b.start({{"p0", instance(1), 0, 3, 0}});
  const auto request = b.asked("p0");
  auto grant = b.grant_for(request, 2);
  CHECK_FALSE(b.fetches.on_grant({request.lease + 100, grant.blocks, 1000}, b.now, b.out));
  std::swap(grant.blocks[0], grant.blocks[1]);
  CHECK(b.fetches.on_grant(grant, b.now, b.out));
  CHECK(b.fetches.done("r"));
  CHECK(b.fetches.outcome("r").fallback == Fallback::bad_grant);
  CHECK(sent<wire::LeaseRelease>(b.out, "p0").size() == 1);
  CHECK_FALSE(b.fetches.on_grant(grant, b.now, b.out));
  CHECK(b.owned() == 0);
  CHECK(b.fetches.stats().failures == 1);
  b.fetches.end("r", b.out);
}

TEST_CASE("node/prefix_fetches: a holder that is not in the cluster is not asked, and its blocks are given up") {
  FetchBench b;
  b.start({{"p9", instance(9), 1, 2, 0}});
  REQUIRE(b.fetches.done("r"));
  CHECK(b.out.empty());
  const auto& given_up = b.fetches.outcome("r").given_up;
  REQUIRE(given_up.size() == 1);
  CHECK(given_up[0].first_block == 1);
  CHECK(given_up[0].end_block == 3);
  CHECK(given_up[0].why == Fallback::peer_lost);
  b.fetches.end("r", b.out);
  CHECK_FALSE(b.fetches.done("r"));
}

TEST_CASE("node/fetches: blocks on this node's disk come before those of other nodes") {
  FetchBench b;
  DiskFound found;
  for (size_t i = 0; i < 2; ++i)
    found.blocks.push_back({b.hashes[i],
                            i == 0 ? BlockHash{} : b.hashes[i - 1],
                            {},
                            static_cast<uint32_t>(i * 64),
                            layout_of(2),
                            {11, 12}});
  const auto usable = [](const DiskBlock&) { return true; };
  REQUIRE(b.disk.on_event(found, usable, b.now, b.out));
  b.start({{"p0", instance(1), 2, 1, 0}});
  const auto loads = all<DiskLoad>(std::exchange(b.out, {}));
  REQUIRE(loads.size() == 2);
  CHECK(b.fetches.may_bring("r", 1));
  SUBCASE("they come, and the fetch goes on behind them") {
    for (const auto& load : loads)
      REQUIRE(b.disk.on_event(DiskLoaded{load.op, Code::ok, "", {11, 12}}, usable, b.now, b.out));
    b.now += 3ms;
    b.fetches.on_disk(b.now, b.out);
    CHECK(b.pages.size() == 2);
    CHECK(b.asked("p0").hashes == std::vector<BlockHash>{b.hashes[2]});
    CHECK(b.fetches.outcome("r").disk_blocks == 2);
    CHECK(b.fetches.outcome("r").load_ms == doctest::Approx(3));
  }
  SUBCASE("the disk is late: the request is done without them") {
    b.now += 5s;
    b.fetches.on_tick(b.now, b.out);
    CHECK(b.fetches.done("r"));
    CHECK(b.fetches.outcome("r").fallback == Fallback::disk);
    REQUIRE(b.fetches.outcome("r").given_up.size() == 1);
    CHECK(b.fetches.outcome("r").given_up[0].node.empty());
    for (const auto& load : loads)
      REQUIRE(b.disk.on_event(DiskLoaded{load.op, Code::io, "slow", {}}, usable, b.now, b.out));
  }
  b.fetches.check();
  b.fetches.end("r", b.out);
  b.pages.release(b.shelf.pool);
  CHECK(b.disk.idle());
}

TEST_CASE("node/fetches: with no page free for a block on disk the fetch goes on at once") {
  FetchBench b;
  DiskFound found;
  found.blocks.push_back({b.hashes[0], {}, {}, 0, layout_of(2), {11, 12}});
  REQUIRE(b.disk.on_event(
      found, [](const DiskBlock&) { return true; }, b.now, b.out));
  auto own = b.shelf.pool.allocate(8);
  REQUIRE_OK(own);
  SUBCASE("to another holder") {
    b.start({{"p0", instance(1), 0, 1, 0}});
    CHECK_FALSE(b.fetches.done("r"));
    CHECK(b.asked("p0").hashes == std::vector<BlockHash>{b.hashes[0]});
  }
  SUBCASE("to its end") {
    b.start({});
    CHECK(b.fetches.done("r"));
  }
  CHECK(b.disk.idle());
  b.fetches.end("r", b.out);
  b.shelf.pool.release(*own);
}

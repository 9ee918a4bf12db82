// Fetches of missing prefix blocks from other nodes.

#include "base/rng.h"
#include "fetch_bench.h"

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;
using wire::Fallback;

TEST_CASE("node/prefix_fetches: the blocks of two holders are read at once and published in their order") {
  FetchBench b;
  b.start({{"p0", instance(1), 0, 2, 0}, {"p1", instance(4), 0, 3, 0}});
  CHECK(b.fetches.may_bring("r", 2));
  CHECK_FALSE(b.fetches.may_bring("r", 3));
  const Actions asked = std::exchange(b.out, {});
  const auto first = sent<wire::LeaseRequest>(asked, "p0"), second = sent<wire::LeaseRequest>(asked, "p1");
  REQUIRE(first.size() == 1);
  REQUIRE(second.size() == 1);
  CHECK(first[0].hashes.size() == 2);
  CHECK(second[0].hashes == std::vector<BlockHash>{b.hashes[2]});
  const Read later = b.read_of(b.grant_for(second[0], 1));
  b.out.clear();
  const Read earlier = b.read_of(b.grant_for(first[0], 2));
  CHECK(earlier.slices.size() == 4);  // two layers of two blocks
  b.ends(later);
  CHECK(b.pages.empty());  // the blocks before it are not here
  CHECK(sent<wire::LeaseRelease>(b.out, "p1").size() == 1);
  CHECK_FALSE(b.fetches.done("r"));
  b.now += 900ms;
  b.ends(earlier);
  REQUIRE(b.fetches.done("r"));
  const auto& outcome = b.fetches.outcome("r");
  CHECK(outcome.blocks == 3);
  CHECK(outcome.ms(kNever) == 900);
  CHECK(outcome.from == std::vector<wire::NameValue>{{"p0", "128"}, {"p1", "64"}});
  CHECK(outcome.reads == std::vector<wire::EndedRead>{{"p1", 64, 0}, {"p0", 128, 900}});
  CHECK(outcome.fallback == Fallback::none);
  CHECK(b.pages.pinned_count() == 3);
  b.fetches.end("r", b.out);
  b.pages.release(b.shelf.pool);
}

/// Grants for two parts of a fetch whose reads are cut by layers, and the layers of the reads in their order.
struct LayerBench : FetchBench {
  wire::LeaseGrant first, second;

  LayerBench() : FetchBench(1) {
    start({{"p0", instance(1), 0, 2, 0}, {"p1", instance(4), 2, 1, 0}});
    const Actions asked = std::exchange(out, {});
    first = grant_for(sent<wire::LeaseRequest>(asked, "p0").at(0), 2);
    second = grant_for(sent<wire::LeaseRequest>(asked, "p1").at(0), 1);
  }
  ~LayerBench() {
    fetches.end("r", out);
    end_pieces(Code::cancelled);
    pages.release(shelf.pool);
  }
  void end_pieces(Code code) {
    for (const Read& read : all<Read>(std::exchange(out, {})))
      if (const auto whole = reads.on_read({read.read, code, ""})) fetches.on_read(*whole, now, out);
    fetches.check();
  }
  void grant(const wire::LeaseGrant& grant) {
    CHECK(on_grant(grant));
    fetches.check();
  }
  std::vector<std::pair<NodeId, uint64_t>> order() const {
    std::vector<std::pair<NodeId, uint64_t>> found;
    for (const Read& read : all<Read>(out))
      found.emplace_back(read.peer, read.slices.front().page_offset / shelf.layout.layer_bytes());
    return found;
  }
};
using Order = std::vector<std::pair<NodeId, uint64_t>>;

TEST_CASE("node/prefix_fetches: two holders send layer by layer, and the first grant waits for the second one") {
  LayerBench b;
  const Order side_by_side = {{"p0", 0}, {"p1", 0}, {"p0", 1}, {"p1", 1}};
  SUBCASE("which comes in time") {
    b.grant(b.second);
    CHECK(b.order().empty());
    CHECK(b.fetches.next_wakeup() == b.now + PrefixFetches::kGrantsApart);
    b.now += 5ms;
    b.grant(b.first);
    CHECK(b.order() == side_by_side);
    b.now += 900ms;
    b.end_pieces(Code::ok);
    REQUIRE(b.fetches.done("r"));
    CHECK(b.fetches.outcome("r").reads == std::vector<wire::EndedRead>{{"p0", 128, 900}, {"p1", 64, 900}});
  }
  SUBCASE("which is late") {
    b.grant(b.second);
    b.now += PrefixFetches::kGrantsApart;
    b.fetches.on_tick(b.now, b.out);
    b.fetches.check();
    CHECK(b.order() == Order{{"p1", 0}, {"p1", 1}});
    b.grant(b.first);
    CHECK(b.order() == Order{{"p1", 0}, {"p1", 1}, {"p0", 0}, {"p0", 1}});
  }
  SUBCASE("which does not come") {
    b.grant(b.first);
    CHECK(b.order().empty());
    b.grant({b.second.lease, {}, 0, Fallback::absent});
    CHECK(b.order() == Order{{"p0", 0}, {"p0", 1}});
  }
  SUBCASE("whose holder is lost") {
    b.grant(b.first);
    b.fetches.on_peer_gone(instance(4), b.now, b.out);
    b.now = b.fetches.next_wakeup();
    b.fetches.on_tick(b.now, b.out);
    b.fetches.check();
    CHECK(b.order() == Order{{"p0", 0}, {"p0", 1}});
  }
  SUBCASE("and nothing is read when its lease has ended meanwhile") {
    b.grant(b.first);
    b.now += std::chrono::milliseconds(b.first.ttl_ms);
    b.fetches.on_tick(b.now, b.out);
    b.fetches.check();
    CHECK(b.order().empty());
    CHECK(sent<wire::LeaseRelease>(b.out, "p0").size() == 1);
    REQUIRE(b.fetches.done("r"));
    CHECK(b.fetches.outcome("r").fallback == Fallback::lease_timeout);
  }
}

/// A read of three blocks under a lease of a second.
struct SlowRead : FetchBench {
  Read read;

  SlowRead() {
    start({{"p0", instance(1), 0, 3, 0}});
    read = read_of(grant_for(asked("p0"), 3));
    out.clear();
  }
  ~SlowRead() {
    fetches.end("r", out);
    pages.release(shelf.pool);
    CHECK(owned() == 0);
  }
  /// Renewals that are due after this time.
  std::vector<wire::LeaseRenew> after(Duration time) {
    now += time;
    out.clear();
    fetches.on_tick(now, out);
    fetches.check();
    return sent<wire::LeaseRenew>(out, "p0");
  }
  void answer(const wire::LeaseRenew& renew, uint32_t ttl_ms, uint8_t from = 1) {
    const Received event{"p0", instance(from), wire::LeaseRenewed{renew.lease, renew.round, ttl_ms}};
    CHECK(fetches.on_renewed(event, std::get<wire::LeaseRenewed>(event.message), now));
  }
};

TEST_CASE("node/prefix_fetches: a read that outlasts its lease renews it, and its blocks are used") {
  SlowRead b;
  CHECK(b.read.budget == 5s);
  CHECK(b.after(499ms).empty());
  for (int i = 0; i < 6; ++i) {
    const auto renewals = b.after(i == 0 ? 1ms : 500ms);
    REQUIRE(renewals.size() == 1);
    CHECK(renewals[0].ttl_ms == 1000);
    b.answer(renewals[0], 1000);
    CHECK(b.fetches.next_wakeup() == b.now + 500ms);
  }
  b.ends(b.read);  // three seconds after the grant
  REQUIRE(b.fetches.done("r"));
  CHECK(b.pages.size() == 3);
  CHECK(sent<wire::LeaseRelease>(b.out, "p0").size() == 1);
  CHECK(b.after(1s).empty());
}

TEST_CASE("node/prefix_fetches: a read whose lease is not renewed is given up with it, and its blocks are not used") {
  SlowRead b;
  const auto renewals = b.after(500ms);
  REQUIRE(renewals.size() == 1);
  SUBCASE("because the holder refuses") {
    b.answer(renewals[0], 0);
    CHECK(b.fetches.next_wakeup() <= b.now);
    CHECK(b.after(0ms).empty());
  }
  SUBCASE("because there is no answer") {
    CHECK(b.after(250ms).size() == 1);
    CHECK(b.after(250ms).empty());
  }
  SUBCASE("because another process of the holder's name answers") {
    b.answer(renewals[0], 1000, 9);
    CHECK(b.after(500ms).empty());
  }
  SUBCASE("because this process stood still, so that the read has ended after its lease") {
    b.answer(renewals[0], 1000);
    b.now += 1s;
    b.out.clear();
    b.ends(b.read);
    CHECK(sent<wire::LeaseRelease>(b.out, "p0").size() == 1);
    b.read.read = 0;
  }
  CHECK(b.fetches.done("r"));
  CHECK(b.pages.empty());
  CHECK(b.fetches.outcome("r").fallback == Fallback::read_timeout);
  if (b.read.read == 0) return;
  CHECK(all<CancelRead>(b.out).size() == 1);
  CHECK(b.fetches.on_read({b.read.read, Code::ok, ""}, b.now, b.out));
}

TEST_CASE("node/prefix_fetches: a lease counts from its request, so a grant that was long on its way is not read") {
  for (const auto& [on_way, waited_ms, reads] :
       {std::tuple{900ms, 0u, true}, std::tuple{1000ms, 0u, false}, std::tuple{3000ms, 2500u, true}}) {
    CAPTURE(on_way.count());
    FetchBench b;
    b.start({{"p0", instance(1), 0, 3, 5000}});
    auto grant = b.grant_for(b.asked("p0"), 3);
    grant.waited_ms = waited_ms;
    b.now += on_way;
    CHECK(b.on_grant(grant));
    const auto begun = all<Read>(b.out);
    CHECK(begun.size() == (reads ? 1u : 0u));
    CHECK(b.fetches.done("r") == !reads);
    if (!reads) {
      CHECK(b.fetches.outcome("r").fallback == Fallback::lease_timeout);
      CHECK(sent<wire::LeaseRelease>(b.out, "p0").size() == 1);
    }
    b.out.clear();
    if (reads) b.fetches.on_tick(b.now, b.out);
    CHECK(sent<wire::LeaseRenew>(b.out, "p0").size() == (reads ? 1u : 0u));  // half of it is over
    b.fetches.end("r", b.out);
    if (reads) b.ends(begun[0], Code::cancelled);
    CHECK(b.owned() == 0);
  }
}

TEST_CASE("node/prefix_fetches: another holder replaces one that does not bring its part") {
  FetchBench b;
  b.start({{"p0", instance(1), 0, 2, 0}, {"p1", instance(4), 2, 1, 0}, {"c0", instance(7), 0, 2, 0}});
  const Actions asked = std::exchange(b.out, {});
  const auto first = sent<wire::LeaseRequest>(asked, "p0")[0], second = sent<wire::LeaseRequest>(asked, "p1")[0];
  b.ends(b.read_of(b.grant_for(second, 1)));
  b.out.clear();
  uint32_t from_p0 = 0;
  SUBCASE("because it has none of the blocks") {
    CHECK(b.on_grant({first.lease, {}, 0, Fallback::evicted, 9}));
  }
  SUBCASE("because it has a part of them") {
    auto grant = b.grant_for(first, 1);
    grant.reason = Fallback::evicted;
    const Read read = b.read_of(grant);
    CHECK(read.slices.size() == 2);
    b.ends(read);
    from_p0 = 1;
    CHECK(b.fetches.outcome("r").fallback == Fallback::evicted);
    CHECK(b.fetches.stats().failures == 1);
  }
  SUBCASE("because its bytes are damaged") {
    b.ends(b.read_of(b.grant_for(first, 2)), Code::corrupt);
    CHECK(b.fetches.stats().checksum_failures == 1);
  }
  SUBCASE("because it is gone") {
    b.fetches.on_peer_gone(instance(1), b.now, b.out);
  }
  SUBCASE("because it does not answer") {
    b.now = b.fetches.next_wakeup();
    b.fetches.on_tick(b.now, b.out);
  }
  b.fetches.check();
  CHECK_FALSE(b.fetches.done("r"));
  CHECK(sent<wire::LeaseRelease>(b.out, "p0").size() == 1);
  const auto instead = b.asked("c0");
  CHECK(instead.hashes == std::vector<BlockHash>(b.hashes.begin() + from_p0, b.hashes.begin() + 2));
  b.ends(b.read_of(b.grant_for(instead, 2 - from_p0)));
  REQUIRE(b.fetches.done("r"));
  CHECK(b.pages.size() == 3);
  CHECK(b.owned() == 0);
  b.fetches.end("r", b.out);
  b.pages.release(b.shelf.pool);
}

TEST_CASE("node/prefix_fetches: blocks that no other holder has end the prefix") {
  FetchBench b;
  b.start({{"p0", instance(1), 0, 1, 0}, {"c0", instance(7), 1, 1, 0}, {"p1", instance(4), 2, 1, 0}});
  const Actions asked = std::exchange(b.out, {});
  const auto at = [&](const std::string& node) { return sent<wire::LeaseRequest>(asked, node)[0]; };
  b.ends(b.read_of(b.grant_for(at("p1"), 1)));
  b.out.clear();
  const Read last = b.read_of(b.grant_for(at("c0"), 1));
  CHECK(b.owned() == 2);
  b.ends(last, Code::corrupt);
  CHECK(b.owned() == 0);
  CHECK_FALSE(b.fetches.done("r"));
  CHECK_FALSE(b.fetches.may_bring("r", 1));
  b.out.clear();
  b.ends(b.read_of(b.grant_for(at("p0"), 1)));
  REQUIRE(b.fetches.done("r"));
  CHECK(b.fetches.outcome("r").blocks == 1);
  CHECK(b.fetches.outcome("r").fallback == Fallback::corrupt);
  b.fetches.end("r", b.out);
  b.pages.release(b.shelf.pool);
}

TEST_CASE("node/prefix_fetches: later parts give up their pages for earlier ones") {
  FetchBench b;
  auto own = b.shelf.pool.allocate(6);
  REQUIRE_OK(own);
  b.start({{"p0", instance(1), 0, 2, 0}, {"p1", instance(4), 2, 1, 0}});
  const Actions asked = std::exchange(b.out, {});
  b.ends(b.read_of(b.grant_for(sent<wire::LeaseRequest>(asked, "p1")[0], 1)));
  b.out.clear();
  b.ends(b.read_of(b.grant_for(sent<wire::LeaseRequest>(asked, "p0")[0], 2)));
  REQUIRE(b.fetches.done("r"));
  CHECK(b.fetches.outcome("r").blocks == 2);
  CHECK(b.fetches.outcome("r").fallback == Fallback::no_pages);
  b.fetches.end("r", b.out);
  b.pages.release(b.shelf.pool);
  b.shelf.pool.release(*own);
}

TEST_CASE("node/prefix_fetches: an earlier part waits for the pages of a later part's read, and gets them") {
  FetchBench b;
  auto own = b.shelf.pool.allocate(6);
  REQUIRE_OK(own);
  b.start({{"p0", instance(1), 0, 2, 0}, {"p1", instance(4), 2, 1, 0}});
  const Actions asked = std::exchange(b.out, {});
  const Read later = b.read_of(b.grant_for(sent<wire::LeaseRequest>(asked, "p1")[0], 1));
  b.out.clear();
  CHECK(b.on_grant(b.grant_for(sent<wire::LeaseRequest>(asked, "p0")[0], 2)));
  b.fetches.check();
  CHECK(all<CancelRead>(b.out).size() == 1);
  CHECK(all<Read>(b.out).empty());
  CHECK_FALSE(b.fetches.done("r"));
  b.out.clear();
  SUBCASE("when that read ends in time") {
    b.now += 100ms;
    CHECK(b.fetches.on_read({later.read, Code::cancelled, ""}, b.now, b.out));
    b.fetches.check();
    const auto reads = all<Read>(b.out);
    REQUIRE(reads.size() == 1);
    CHECK(reads[0].slices.size() == 4);
    CHECK(reads[0].budget == 5s);  // its lease of one second will be renewed
    b.ends(reads[0]);
    REQUIRE(b.fetches.done("r"));
    CHECK(b.pages.size() == 2);
  }
  SUBCASE("or the prefix ends when the lease does") {
    CHECK(b.fetches.next_wakeup() == b.now + 1s);
    b.now += 1s;
    b.fetches.on_tick(b.now, b.out);
    b.fetches.check();
    REQUIRE(b.fetches.done("r"));
    CHECK(b.pages.empty());
    CHECK(sent<wire::LeaseRelease>(b.out, "p0").size() == 1);
    CHECK(b.fetches.on_read({later.read, Code::cancelled, ""}, b.now, b.out));
  }
  CHECK(b.fetches.outcome("r").fallback == Fallback::no_pages);
  CHECK(b.owned() == 6);
  b.fetches.end("r", b.out);
  b.pages.release(b.shelf.pool);
  b.shelf.pool.release(*own);
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
    b.now += 1s;  // its lease was not renewed
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
  CHECK_FALSE(b.on_grant({request.lease + 100, grant.blocks, 1000}));
  std::swap(grant.blocks[0], grant.blocks[1]);
  CHECK(b.on_grant(grant));
  CHECK(b.fetches.done("r"));
  CHECK(b.fetches.outcome("r").fallback == Fallback::bad_grant);
  CHECK(sent<wire::LeaseRelease>(b.out, "p0").size() == 1);
  CHECK_FALSE(b.on_grant(grant));
  CHECK(b.owned() == 0);
  CHECK(b.fetches.stats().failures == 1);
  b.fetches.end("r", b.out);
}

TEST_CASE("node/prefix_fetches: a holder that is not in the cluster is not asked, and its blocks are given up") {
  FetchBench b;
  b.start({{"p9", instance(9), 0, 3, 0}});
  REQUIRE(b.fetches.done("r"));
  CHECK(b.out.empty());
  const auto& given_up = b.fetches.outcome("r").given_up;
  REQUIRE(given_up.size() == 1);
  CHECK(given_up[0].first_block == 0);
  CHECK(given_up[0].end_block == 3);
  CHECK(given_up[0].why == Fallback::peer_lost);
  b.fetches.end("r", b.out);
  CHECK_FALSE(b.fetches.done("r"));
}

TEST_CASE("node/prefix_fetches: blocks that no source names are not waited for") {
  FetchBench b;
  b.start({{"p0", instance(1), 1, 2, 0}});
  CHECK(b.fetches.done("r"));
  CHECK(b.out.empty());
  b.fetches.end("r", b.out);
  SUBCASE("unless a holder that may replace others has them") {
    b.start({{"p0", instance(1), 1, 2, 0}, {"c0", instance(7), 0, UINT32_MAX, 0}});
    CHECK(sent<wire::LeaseRequest>(b.out, "c0").at(0).hashes.size() == 1);
    CHECK(sent<wire::LeaseRequest>(b.out, "p0").at(0).hashes.size() == 2);
    b.fetches.end("r", b.out);
    CHECK(sent<wire::LeaseRelease>(b.out, "c0").size() == 1);
  }
}

// Holders grant all, some or none of the blocks, answer late or never, send damaged bytes, or leave.
TEST_CASE("node/prefix_fetches: whatever holders do, each lease is given back and no page leaks") {
  Rng rng(7);
  const auto below = [&](uint64_t n) { return static_cast<uint32_t>(rng.below(n)); };
  const std::vector<std::pair<std::string, uint8_t>> nodes = {{"p0", 1}, {"p1", 4}, {"c0", 7}, {"p9", 9}};
  uint32_t whole = 0, renewals = 0;
  for (int round = 0; round < 3000; ++round) {
    FetchBench b;
    auto own = b.shelf.pool.allocate(below(3) == 0 ? 3 + below(6) : 0);  // few pages are left in some rounds
    REQUIRE_OK(own);
    const auto runs = [&](uint32_t count) {
      std::vector<wire::Source> out;
      for (uint32_t i = 0; i < count; ++i) {
        const auto& [name, number] = nodes[below(nodes.size())];
        out.push_back({name, instance(number), below(4), below(4), 0});
      }
      return out;
    };
    b.find_on_disk(below(4));
    b.start(runs(1 + below(7)));
    std::map<uint64_t, std::string> leased;
    std::vector<wire::LeaseRequest> asked;
    std::vector<Read> reads;
    std::vector<DiskLoad> loads;
    const auto hear = [&] {
      b.fetches.check();
      std::vector<std::pair<Send, wire::LeaseRenewed>> renewed;
      for (const Action& action : std::exchange(b.out, {})) {
        if (const auto* load = std::get_if<DiskLoad>(&action)) loads.push_back(*load);
        if (const auto* read = std::get_if<Read>(&action)) reads.push_back(*read);
        const auto* send = std::get_if<Send>(&action);
        if (!send) continue;
        if (const auto* request = std::get_if<wire::LeaseRequest>(&send->message)) {
          CHECK(request->hashes.size() > 0);
          asked.push_back(*request), leased.emplace(request->lease, send->to);
        } else if (const auto* release = std::get_if<wire::LeaseRelease>(&send->message)) {
          CHECK(leased.at(release->lease) == send->to);
          leased.erase(release->lease);
        } else if (const auto* renew = std::get_if<wire::LeaseRenew>(&send->message)) {
          CHECK(leased.at(renew->lease) == send->to);
          ++renewals;
          const uint32_t ttl_ms = below(3) * 500;
          if (below(3) > 0) renewed.push_back({*send, {renew->lease, renew->round, ttl_ms}});
        }
      }
      for (const auto& [send, answer] : renewed)  // a lease may have been given back after its renewal
        CHECK(b.fetches.on_renewed({send.to, send.instance, answer}, answer, b.now) == leased.contains(answer.lease));
    };
    hear();
    while (!b.fetches.done("r")) {
      const uint32_t what = below(12);
      if (what < 5 && !asked.empty()) {
        const size_t i = below(asked.size());
        const auto request = asked[i];
        asked.erase(asked.begin() + static_cast<std::ptrdiff_t>(i));
        auto grant = b.grant_for(request, what > 0 ? request.hashes.size() : below(request.hashes.size() + 1));
        if (grant.blocks.size() < request.hashes.size() && below(2) > 0) grant.reason = Fallback::evicted;
        if (what == 1 && below(4) == 0) grant.blocks[0].hash.bytes[0] ^= 1;
        (void)b.on_grant(grant);
      } else if (what < 10 && !reads.empty()) {
        const size_t i = below(reads.size());
        const Read read = reads[i];
        reads.erase(reads.begin() + static_cast<std::ptrdiff_t>(i));
        (void)b.fetches.on_read({read.read, what == 5 ? Code::corrupt : Code::ok, ""}, b.now, b.out);
      } else if (what < 10 && !loads.empty()) {
        const size_t i = below(loads.size());
        const DiskLoad load = loads[i];
        loads.erase(loads.begin() + static_cast<std::ptrdiff_t>(i));
        b.loaded(load, what == 9 ? Code::corrupt : Code::ok);
      } else if (what == 10) {
        b.now = std::max(b.now, b.fetches.next_wakeup());
        b.fetches.on_tick(b.now, b.out);
      } else if (below(8) == 0) {
        b.fetches.on_peer_gone(instance(nodes[below(3)].second), b.now, b.out);
      }
      hear();
      if (below(200) == 0) break;
    }
    if (b.fetches.done("r")) {
      CHECK(b.pages.size() == b.fetches.outcome("r").blocks + b.fetches.outcome("r").disk_blocks);
      for (uint32_t i = 0; i < b.pages.size(); ++i) CHECK(b.shelf.pool.meta(b.pages[i]).hash == b.hashes[i]);
      whole += b.pages.size() == 3;
    }
    b.fetches.end("r", b.out);
    hear();
    CHECK(leased.empty());
    for (const Read& read : reads) (void)b.fetches.on_read({read.read, Code::ok, ""}, b.now, b.out);
    for (const DiskLoad& load : loads) b.loaded(load);
    b.shelf.pool.release(*own);
    CHECK(b.owned() == 0);
    b.pages.release(b.shelf.pool);
    CHECK(b.shelf.pool.counts().pinned == 0);
  }
  CHECK(whole > 300);
  CHECK(renewals > 100);
}

// Copies of hot prefixes on a prefill machine that is alone at a bench.

#include "node/copies.h"

#include <map>

#include "bench.h"
#include "node/prefill.h"

namespace copies_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;
using wire::CopyEnd;

namespace {

struct PrefillBench : Bench<Prefill, PrefillOptions> {
  explicit PrefillBench(uint32_t pages = 40) : Bench(wire::Role::prefill, pages, PrefillOptions{}) {}

  wire::CopyBlocks order(uint64_t number, size_t blocks) {
    wire::CopyBlocks out;
    out.copy = number;
    out.ns = namespace_of(layout_of(2)).id();
    for (size_t i = 0; i < blocks; ++i) {
      BlockHash h;
      h.bytes[0] = static_cast<uint8_t>(i + 1);
      out.hashes.push_back(h);
    }
    out.node = "p1", out.instance = instance(4);
    return out;
  }
  /// Grants what was asked for, the first `count` of it.
  static wire::LeaseGrant grant_of(const wire::LeaseRequest& asked, size_t count) {
    wire::LeaseGrant grant{asked.lease, {}, 20000};
    for (size_t i = 0; i < count; ++i) grant.blocks.push_back({asked.hashes[i], {}, 0, i * 8192, {1, 2}});
    return grant;
  }
  uint32_t cached() const { return machine.shelf()->pool.counts().cached; }
};

}  // namespace

TEST_CASE("node/copies: blocks are leased, read, published, and the lease goes back") {
  PrefillBench b;
  const auto order = b.order(7, 5);
  const auto asked = sent<wire::LeaseRequest>(b.from_conductor(order), "p1");
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].hashes == order.hashes);
  CHECK_FALSE(b.machine.idle());
  const auto reads = all<Read>(b.from("p1", 4, b.grant_of(asked[0], 3)));  // the tail was evicted meanwhile
  REQUIRE(reads.size() == 1);
  CHECK_FALSE(reads[0].urgent);
  CHECK(reads[0].slices.size() == 6);
  CHECK(b.from("p1", 4, b.grant_of(asked[0], 3)).empty());  // twice, for a repeated request: the lease stays
  const Actions out = b.give(ReadDone{reads[0].read, Code::ok, ""});
  const auto done = sent<wire::CopyDone>(out, "conductor");
  REQUIRE(done.size() == 1);
  CHECK(done[0].copy == 7);
  CHECK(done[0].blocks == 3);
  CHECK(done[0].reason == CopyEnd::complete);
  CHECK(sent<wire::LeaseRelease>(out, "p1").size() == 1);
  CHECK(b.cached() == 3);
  CHECK(b.machine.idle());
  // Again: what is here is not asked for.
  const auto more = sent<wire::LeaseRequest>(b.from_conductor(b.order(8, 5)), "p1");
  REQUIRE(more.size() == 1);
  CHECK(more[0].hashes.size() == 2);
}

TEST_CASE("node/copies: a lease is taken from the node that was asked for it, whoever knows its number") {
  PrefillBench b;
  const auto asked = sent<wire::LeaseRequest>(b.from_conductor(b.order(7, 4)), "p1").at(0);
  CHECK(b.from("p0", 1, b.grant_of(asked, 0)).empty());
  CHECK(b.from("p0", 1, b.grant_of(asked, 4)).empty());
  CHECK(b.from("p1", 8, b.grant_of(asked, 0)).empty());  // another process of that name
  CHECK(all<Read>(b.from("p1", 4, b.grant_of(asked, 4))).size() == 1);
}

TEST_CASE("node/copies: whatever goes wrong ends the copy with a reason and leaves no page behind") {
  enum Way { refused, bad_hash, bad_read, corrupt, late_grant, late_read, holder_gone };
  const std::map<Way, CopyEnd> ends = {{refused, CopyEnd::evicted},      {bad_hash, CopyEnd::bad_grant},
                                       {bad_read, CopyEnd::io},          {corrupt, CopyEnd::corrupt},
                                       {late_grant, CopyEnd::timeout},   {late_read, CopyEnd::timeout},
                                       {holder_gone, CopyEnd::peer_lost}};
  for (const Way way : {refused, bad_hash, bad_read, corrupt, late_grant, late_read, holder_gone}) {
    CAPTURE(way);
    PrefillBench b;
    const auto asked = sent<wire::LeaseRequest>(b.from_conductor(b.order(7, 4)), "p1");
    REQUIRE(asked.size() == 1);
    wire::LeaseGrant grant = b.grant_of(asked[0], way == refused ? 0 : 4);
    if (way == refused) grant.reason = wire::Fallback::evicted;
    if (way == bad_hash) grant.blocks[2].hash.bytes[5] = 9;
    Actions out;
    uint64_t read = 0;
    if (way == late_grant) {
      for (int i = 0; i < 11; ++i) {
        const Actions more = b.wait(500ms);
        out.insert(out.end(), more.begin(), more.end());
      }
    } else {
      out = b.from("p1", 4, grant);
      for (const auto& r : all<Read>(out)) read = r.read;
    }
    if (way == bad_read) out = b.give(ReadDone{read, Code::io, "x"});
    if (way == corrupt) out = b.give(ReadDone{read, Code::corrupt, "x"});
    if (way == holder_gone) out = b.give(PeerLost{"p1", instance(4), "killed"});
    if (way == late_read) {
      out.clear();
      for (int i = 0; i < 24; ++i) {
        const Actions more = b.wait(500ms);
        out.insert(out.end(), more.begin(), more.end());
      }
    }
    const auto done = sent<wire::CopyDone>(out, "conductor");
    REQUIRE(done.size() == 1);
    CHECK(done[0].blocks == 0);
    CHECK(done[0].reason == ends.at(way));
    if (way == late_read || way == holder_gone) {  // the transport has the last word over the pages
      CHECK(all<CancelRead>(out).size() == 1);
      CHECK(b.machine.shelf()->pool.counts().owned == 4);
      b.give(ReadDone{read, Code::cancelled, ""});
    }
    CHECK(b.machine.shelf()->pool.counts().owned == 0);
    CHECK(b.cached() == 0);
    CHECK(b.machine.idle());
  }
}

TEST_CASE("node/copies: a lease counts from its request, so a grant that was long on its way is not read") {
  PrefillBench b;
  const auto asked = sent<wire::LeaseRequest>(b.from_conductor(b.order(7, 4)), "p1").at(0);
  auto grant = b.grant_of(asked, 4);
  grant.ttl_ms = 500;
  b.wait(500ms);
  const Actions out = b.from("p1", 4, grant);
  CHECK(all<Read>(out).empty());
  CHECK(sent<wire::CopyDone>(out, "conductor").at(0).reason == CopyEnd::lease_timeout);
  CHECK(b.machine.idle());
}

TEST_CASE("node/copies: a copy that outlasts its lease renews it, and ends with a lease that was not renewed") {
  for (const bool grants : {true, false}) {
    CAPTURE(grants);
    PrefillBench b;
    const auto asked = sent<wire::LeaseRequest>(b.from_conductor(b.order(7, 4)), "p1").at(0);
    auto grant = b.grant_of(asked, 4);
    grant.ttl_ms = 1000;
    const auto reads = all<Read>(b.from("p1", 4, grant));
    REQUIRE(reads.size() == 1);
    CHECK(reads[0].budget == Copies::kReadTimeout);
    const auto renewal = sent<wire::LeaseRenew>(b.wait(500ms), "p1").at(0);
    b.from("p1", 4, wire::LeaseRenewed{renewal.lease, renewal.round, grants ? 1000u : 0u});
    const auto given_up = sent<wire::CopyDone>(b.wait(100ms), "conductor");
    CHECK(given_up.size() == (grants ? 0u : 1u));
    b.wait(100ms);
    b.give(ReadDone{reads[0].read, Code::ok, ""});
    CHECK(b.cached() == (grants ? 4u : 0u));
    CHECK(b.machine.idle());
  }
}

TEST_CASE(
    "node/copies: a node that is nearly full, that has enough copies under way, or a stranger's order copies nothing") {
  PrefillBench small(8);
  CHECK(sent<wire::CopyDone>(small.from_conductor(small.order(1, 7)), "conductor")[0].reason == CopyEnd::no_space);
  PrefillBench b(400);
  for (uint64_t i = 0; i < Copies::kMax; ++i)
    CHECK(sent<wire::LeaseRequest>(b.from_conductor(b.order(i, 3)), "p1").size() == 1);
  CHECK(sent<wire::CopyDone>(b.from_conductor(b.order(99, 3)), "conductor")[0].reason == CopyEnd::busy);
  PrefillBench c;
  auto order = c.order(1, 3);
  order.node = "p9";
  CHECK(sent<wire::CopyDone>(c.from_conductor(order), "conductor")[0].reason == CopyEnd::unknown_peer);
  CHECK(c.from("p1", 4, c.order(1, 3)).empty());
}

TEST_CASE("node/copies: an order of 4,096 blocks is carried out, one of more is refused whatever room there is") {
  PrefillBench b(6000);
  CHECK(sent<wire::CopyDone>(b.from_conductor(b.order(1, 4097)), "conductor")[0].reason == CopyEnd::invalid);
  const auto asked = sent<wire::LeaseRequest>(b.from_conductor(b.order(2, 4096)), "p1");
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].hashes.size() == Copies::kBlocksMax);
}

}  // namespace copies_test

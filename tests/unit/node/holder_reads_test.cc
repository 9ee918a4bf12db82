// A decode node reads blocks of a prompt from nodes that hold them, and from the prefill node what they do not bring.

#include "node/holder_reads.h"

#include "bench.h"
#include "node/decode.h"

namespace holder_reads_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;
using wire::Fallback;

namespace {

constexpr uint32_t kBlocks = 5;  // of the prompt: four whole ones and a tail
const std::string kTo(kConductor);

wire::Source source(const char* node, uint8_t n, uint32_t first, uint32_t count, bool after_prefix = false) {
  return {node, instance(n), first, count, 0, after_prefix};
}

/// Prefill node p0 (1) offers a request whose prefix c0 (3) and p1 (4) hold.
struct HolderBench : Bench<Decode, DecodeOptions> {
  wire::RequestSpec spec = spec_of("r", std::vector<uint32_t>(4 * 64 + 9, 5));
  bool is_complete = false;

  HolderBench() : Bench(wire::Role::decode, 12, {}) {}
  ~HolderBench() { CHECK(machine.idle()); }

  Actions offer(std::vector<wire::Source> sources) { return from("p0", 1, wire::KvOffer{spec, std::move(sources)}); }
  Actions announce(uint32_t layer, uint32_t first, uint32_t count) {
    wire::ExtentsReady ready{"r", 1, layer, first, {}};
    for (uint32_t block = first; block < first + count; ++block) ready.extents.push_back({100 + block, 7});
    return give(Notified{"p0", instance(1), ready});
  }
  Actions complete() {
    is_complete = true;
    return from("p0", 1, wire::KvComplete{"r", 1, static_cast<uint32_t>(spec.ids.size()), 3});
  }
  static wire::LeaseGrant grant_for(const wire::LeaseRequest& request, size_t count) {
    wire::LeaseGrant grant{request.lease, {}, 1000};
    for (size_t i = 0; i < count; ++i) grant.blocks.push_back({request.hashes[i], {}, 1, 4096 * i, {11, 12}});
    return grant;
  }
  Actions end(const Read& read, Code code = Code::ok) { return give(ReadDone{read.read, code, ""}); }
  void end_all(const Actions& actions) {
    for (const Read& read : all<Read>(actions)) end(read);
  }
  /// The client stops the request. What is under way ends.
  void stop(const Actions& joined = {}) {
    for (const Read& read : all<Read>(joined)) end(read);
    from_conductor(wire::Cancel{"r", 1, "stop"});
    for (const RunStep& run : all<RunStep>(joined)) {
      run.rows->out.assign(run.rows->in.size(), StepRow{});
      give(StepDone{run.run, Code::ok, "", run.rows, 0s});
    }
  }
};

wire::LeaseRequest asked(const Actions& actions, const std::string& node) {
  const auto requests = sent<wire::LeaseRequest>(actions, node);
  REQUIRE(requests.size() == 1);
  return requests[0];
}

Read only_read(const Actions& actions) {
  const auto reads = all<Read>(actions);
  REQUIRE(reads.size() == 1);
  return reads[0];
}

size_t releases(const Actions& actions, const std::string& node) {
  return sent<wire::LeaseRelease>(actions, node).size();
}

}  // namespace

TEST_CASE("node/holder_reads: blocks come from two holders, and only the rest from the prefill node") {
  HolderBench b;
  const Actions offered = b.offer({source("c0", 3, 0, 3), source("p1", 4, 3, 1)});
  CHECK(sent<wire::KvAccept>(offered, "p0").size() == 1);
  const auto hashes = kv::chain(b.spec.ns, b.spec.ids, 64);
  const auto first = asked(offered, "c0"), second = asked(offered, "p1");
  CHECK(first.hashes == std::vector<BlockHash>(hashes.begin(), hashes.begin() + 3));
  CHECK(second.hashes == std::vector<BlockHash>{hashes[3]});
  const Read three = only_read(b.from("c0", 3, b.grant_for(first, 3)));
  CHECK(three.peer == "c0");
  CHECK(three.slices.size() == 6);
  CHECK(three.slices[1].crc == 12);
  const Read one = only_read(b.from("p1", 4, b.grant_for(second, 1)));
  CHECK(all<Read>(b.announce(0, 0, 4)).empty());
  CHECK(all<Read>(b.announce(1, 0, 4)).empty());
  CHECK(releases(b.end(three), "c0") == 1);
  CHECK(releases(b.end(one), "p1") == 1);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const Read tail = only_read(b.announce(layer, 4, 1));
    CHECK(tail.peer == "p0");
    CHECK(tail.slices.size() == 1);
    b.end(tail);
  }
  const Actions joined = b.complete();
  CHECK(sent<wire::KvDone>(joined, "p0").size() == 1);
  const auto reports = sent<wire::KvReport>(joined, kTo);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].local == 0);
  CHECK(reports[0].from_holders == 256);
  CHECK(reports[0].from_prefill == 9);
  CHECK(reports[0].holders == std::vector<wire::NameValue>{{"c0", "192"}, {"p1", "64"}});
  CHECK(reports[0].reads == std::vector<wire::EndedRead>{{"c0", 192, 0}, {"p1", 64, 0}});
  CHECK(reports[0].fallback == Fallback::none);
  CHECK(b.machine.from_holders().blocks == 4);
  CHECK(b.machine.from_holders().failures == 0);
  b.stop(joined);
  // The blocks are published under the checksums of the holder.
  const kv::Pool& pool = b.machine.shelf()->pool;
  REQUIRE(pool.match(hashes) == 4);
  CHECK(pool.meta(pool.find(hashes[0])).layer_crcs == std::vector<uint32_t>{11, 12});
}

TEST_CASE("node/holder_reads: what a holder does not bring is read from the prefill node") {
  HolderBench b;
  const auto request = asked(b.offer({source("c0", 3, 0, 4)}), "c0");
  Actions after;
  size_t came = 0;
  Fallback why = Fallback::none;
  std::optional<Read> read;
  const auto begin = [&](size_t count) { read = only_read(b.from("c0", 3, b.grant_for(request, count))); };
  // The prefill node has announced the first layer of the blocks already.
  CHECK(all<Read>(b.announce(0, 0, 4)).empty());
  SUBCASE("because it has none of the blocks") {
    after = b.from("c0", 3, wire::LeaseGrant{request.lease, {}, 0, Fallback::evicted, 9});
    why = Fallback::evicted;
  }
  SUBCASE("because it has a part of them") {
    auto grant = b.grant_for(request, 3);
    grant.reason = Fallback::evicted;
    after = b.from("c0", 3, grant);
    const auto reads = all<Read>(after);
    REQUIRE(reads.size() == 2);
    CHECK(reads[0].slices.size() == 6);
    b.end(reads[0]);
    after.assign(1, reads[1]);
    why = Fallback::evicted, came = 3;
  }
  SUBCASE("because it grants other blocks") {
    auto grant = b.grant_for(request, 4);
    grant.blocks[2].hash = grant.blocks[1].hash;
    after = b.from("c0", 3, grant);
    CHECK(releases(after, "c0") == 1);
    why = Fallback::bad_grant;
  }
  SUBCASE("because its bytes are damaged") {
    begin(4);
    after = b.end(*read, Code::corrupt);
    CHECK(b.machine.from_holders().checksum_failures == 1);
    why = Fallback::corrupt;
  }
  SUBCASE("because it does not answer") {
    for (int i = 0; i < 30 && all<Read>(after).empty(); ++i) after = b.wait(200ms);
    why = Fallback::lease_timeout;
  }
  SUBCASE("because it was lost before it answered") {
    after = b.give(PeerLost{"c0", instance(3), "killed"});
    why = Fallback::peer_lost;
  }
  SUBCASE("because another process of its name answers") {
    CHECK(all<Read>(b.from("c0", 33, b.grant_for(request, 4))).empty());
    after = b.give(PeerLost{"c0", instance(3), "restarted"});
    why = Fallback::peer_lost;
  }
  SUBCASE("because it was lost in the middle of the read") {
    begin(4);
    const Actions lost = b.give(PeerLost{"c0", instance(3), "killed"});
    CHECK(all<CancelRead>(lost).size() == 1);
    CHECK(all<Read>(lost).empty());  // the read still writes into the pages
    after = b.end(*read, Code::cancelled);
    why = Fallback::peer_lost;
  }
  SUBCASE("because its read takes too long") {
    begin(4);
    Actions late;
    for (int i = 0; i < 40 && all<CancelRead>(late).empty(); ++i) late = b.wait(200ms);
    CHECK(all<CancelRead>(late).size() == 1);
    after = b.end(*read, Code::ok);  // the bytes may have changed since the lease was given back
    why = Fallback::read_timeout;
  }
  SUBCASE("because it was lost, and the bytes that come are not those of the blocks") {
    begin(4);
    b.give(PeerLost{"c0", instance(3), "killed"});
    after = b.end(*read, Code::corrupt);
    CHECK(b.machine.from_holders().checksum_failures == 0);  // the lease was given back
    why = Fallback::peer_lost;
  }
  SUBCASE("because the prefill node has all blocks before it answers") {
    after = b.complete();
    CHECK(releases(after, "c0") == 1);
    why = Fallback::lease_timeout;
  }
  const Read again = only_read(after);
  CHECK(again.peer == "p0");
  CHECK(again.slices.size() == 4 - came);
  CHECK(again.slices[0].remote_offset == 100 + came);
  b.end(again);
  b.end_all(b.announce(1, 0, 4));
  b.end_all(b.announce(0, 4, 1));
  const Read last = only_read(b.announce(1, 4, 1));
  Actions joined;  // KvComplete comes before or after the end of the last read
  if (b.is_complete) {
    joined = b.end(last);
  } else {
    b.end(last);
    joined = b.complete();
  }
  const auto reports = sent<wire::KvReport>(joined, kTo);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].fallback == why);
  CHECK(reports[0].from_holders == came * 64);
  CHECK(b.machine.from_holders().failures == 1);
  b.stop(joined);
}

TEST_CASE("node/holder_reads: a read has as much time as its request and the time-out leave it under any lease") {
  struct Case {
    uint32_t ttl_ms;
    uint64_t deadline_ms;
    Duration budget;
  };
  for (const Case& c : {Case{1000, 60'000, 5s}, Case{20'000, 3000, 3s}, Case{20'000, 60'000, 5s}}) {
    CAPTURE(c.budget.count());
    HolderBench b;
    b.spec.deadline_ms = c.deadline_ms;
    auto grant = b.grant_for(asked(b.offer({source("c0", 3, 0, 4)}), "c0"), 4);
    grant.ttl_ms = c.ttl_ms;
    const Read read = only_read(b.from("c0", 3, grant));
    CHECK(read.budget == c.budget);
    b.stop();
    b.end(read, Code::cancelled);
  }
}

TEST_CASE("node/holder_reads: a lease counts from its request, so a grant that was long on its way is not read") {
  HolderBench b;
  auto grant = b.grant_for(asked(b.offer({source("c0", 3, 0, 4)}), "c0"), 4);
  b.wait(1000ms);
  const Actions late = b.from("c0", 3, grant);  // of a lease of one second
  CHECK(all<Read>(late).empty());
  CHECK(releases(late, "c0") == 1);
  b.stop();
}

TEST_CASE("node/holder_reads: a read that outlasts its lease renews it, and its blocks count if the holder agrees") {
  for (const bool grants : {true, false}) {
    CAPTURE(grants);
    HolderBench b;
    const Read read = only_read(b.from("c0", 3, b.grant_for(asked(b.offer({source("c0", 3, 0, 4)}), "c0"), 4)));
    CHECK(b.machine.next_wakeup() <= b.now + 500ms);
    const auto renewals = sent<wire::LeaseRenew>(b.wait(500ms), "c0");
    REQUIRE(renewals.size() == 1);
    const wire::LeaseRenewed answer{renewals[0].lease, renewals[0].round, 1000};
    if (grants) b.from("p1", 4, wire::LeaseRenewed{answer.lease, answer.round, 0});  // which is not the holder
    if (grants) b.from("c0", 3, answer);
    const Actions later = b.wait(700ms);
    CHECK(all<CancelRead>(later).size() == (grants ? 0u : 1u));
    b.end(read);
    CHECK(b.machine.from_holders().blocks == (grants ? 4u : 0u));
    b.stop();
  }
}

TEST_CASE("node/holder_reads: a read that waits for the prefix begins when the prefill node announces it") {
  HolderBench b;
  const Actions offered = b.offer({source("c0", 3, 0, 4, true)});
  CHECK(sent<wire::LeaseRequest>(offered, "c0").empty());
  const Actions tail = b.announce(0, 4, 1);
  CHECK(sent<wire::LeaseRequest>(tail, "c0").empty());  // c0 is not to bring this block
  b.end_all(tail);
  const Actions announced = b.announce(0, 0, 4);
  CHECK(all<Read>(announced).empty());
  const auto request = asked(announced, "c0");
  CHECK(sent<wire::LeaseRequest>(b.announce(1, 0, 4), "c0").empty());
  b.end(only_read(b.from("c0", 3, b.grant_for(request, 4))));
  CHECK(b.machine.from_holders().blocks == 4);
  b.stop();
}

TEST_CASE("node/holder_reads: a request that ends gives back leases at once and pages when the reads have ended") {
  HolderBench b;
  const Actions offered = b.offer({source("c0", 3, 0, 2), source("p1", 4, 2, 2)});
  const Read read = only_read(b.from("c0", 3, b.grant_for(asked(offered, "c0"), 2)));
  const auto late = asked(offered, "p1");
  const Actions out = b.from_conductor(wire::Cancel{"r", 1, "client_gone"});
  CHECK(releases(out, "c0") == 1);
  CHECK(releases(out, "p1") == 1);
  CHECK(all<CancelRead>(out).size() == 1);
  CHECK(b.machine.shelf()->pool.counts().owned == kBlocks);
  CHECK(releases(b.from("p1", 4, b.grant_for(late, 2)), "p1") == 1);  // a grant that was under way
  b.end(read, Code::cancelled);
  CHECK(b.machine.shelf()->pool.counts().owned == 0);
  CHECK(b.machine.from_holders().failures == 0);
}

TEST_CASE("node/holder_reads: a grant of fewer blocks than asked without a reason is followed by another request") {
  HolderBench b;
  const auto first = asked(b.offer({source("c0", 3, 0, 4)}), "c0");
  const Actions granted = b.from("c0", 3, b.grant_for(first, 3));
  const auto rest = asked(granted, "c0");
  CHECK(rest.hashes == std::vector<BlockHash>{first.hashes[3]});
  CHECK(rest.lease != first.lease);
  b.end_all(granted);
  b.end(only_read(b.from("c0", 3, b.grant_for(rest, 1))));
  CHECK(b.machine.from_holders().blocks == 4);
  b.stop();
}

TEST_CASE("node/holder_reads: sources that overlap, exceed the prompt or name no member cost nothing but a look") {
  HolderBench b;
  const Actions offered =
      b.offer({source("c0", 3, 0, 2), source("p1", 4, 1, UINT32_MAX), source("x", 77, 0, 9), source("c0", 3, 9, 9)});
  CHECK(asked(offered, "c0").hashes.size() == 2);
  CHECK(asked(offered, "p1").hashes.size() == 2);  // one token of the prompt at least is computed
  b.from_conductor(wire::Cancel{"r", 1, "client_gone"});

  b.spec.req = "s";
  b.from("p0", 1, wire::KvOffer{b.spec, {source("x", 77, 0, 4)}});
  wire::ExtentsReady ready{"s", 1, 0, 0, std::vector<wire::ReadyExtent>(5)};
  const Read tail = only_read(b.give(Notified{"p0", instance(1), ready}));
  CHECK(tail.slices.size() == 1);
  const Read rest = only_read(b.wait(1ms));
  CHECK(rest.slices.size() == 4);
  b.end(tail), b.end(rest);
  b.from_conductor(wire::Cancel{"s", 1, "client_gone"});
}

TEST_CASE("node/holder_reads: a request that may use no cache asks no holder") {
  HolderBench b;
  b.spec.no_cache = true;
  CHECK(sent<wire::LeaseRequest>(b.offer({source("c0", 3, 0, 4)}), "c0").empty());
  b.stop();
}

}  // namespace holder_reads_test

// Cached blocks of a pipeline at its leader: blocks that are fetched, copied, lent, lost and read again.

#include "leader_bench.h"

namespace pipeline_blocks_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

TEST_CASE(
    "node/pipeline_blocks: a fetched prefix is read by every member for its own layers before it is computed with") {
  LeaderBench b;
  const wire::LeaseRequest lease = b.fetch("r");
  wire::LeaseGrant grant{lease.lease, {}, 20000};
  for (uint32_t i = 0; i < 2; ++i) grant.blocks.push_back({lease.hashes.at(i), {}, 0, i * 8192, {5, 6 + i}});
  Actions out = b.from("p1", 4, grant);
  const auto here = all<Read>(out);
  const auto there = sent<wire::StageRead>(out, "me.1");
  REQUIRE((here.size() == 1 && there.size() == 1));
  CHECK(here[0].slices.size() == 2);
  CHECK((there[0].node == "p1" && there[0].first_layer == 1));
  CHECK(there[0].crcs == std::vector<std::vector<uint32_t>>{{6, 7}});
  CHECK(all<RunChunk>(b.give(ReadDone{here[0].read, Code::ok, ""})).empty());  // the stage still reads
  CHECK_FALSE(b.machine.idle());
  out = b.from("me.1", 7, wire::StageReadDone{there[0].read, Code::ok, "", false});
  REQUIRE(all<RunChunk>(out).size() == 1);
  CHECK(all<RunChunk>(out)[0].start == 2 * 64);
  REQUIRE(sent<wire::StageAnnounce>(out, "me.1").size() == 1);
  CHECK(sent<wire::StageAnnounce>(out, "me.1")[0].crcs == std::vector<std::vector<uint32_t>>{{6, 7}});
  CHECK(sent<wire::LeaseRelease>(out, "p1").size() == 1);
}

TEST_CASE(
    "node/pipeline_blocks: a fetch that a member does not finish costs the fetch, not the request, and no page too "
    "early") {
  enum Way { refused, lost, late };
  for (const Way way : {refused, lost, late}) {
    CAPTURE(way);
    LeaderBench b;
    const wire::LeaseRequest lease = b.fetch("r");
    Actions out = b.from("p1", 4, wire::LeaseGrant{lease.lease, {{lease.hashes.at(0), {}, 0, 0, {5, 6}}}, 20000});
    const auto there = sent<wire::StageRead>(out, "me.1");
    REQUIRE(there.size() == 1);
    out = b.give(ReadDone{all<Read>(out).at(0).read, Code::ok, ""});
    if (way == refused)
      out = b.from("me.1", 7, wire::StageReadDone{there[0].read, Code::invalid, "page 40 of 32", true});
    CHECK(b.machine.load().last_error == (way == refused ? "stage me.1 refused a read: page 40 of 32" : ""));
    if (way == lost) out = b.members(false, 4);
    if (way == late) {
      out = b.wait(6100ms);  // the fetch is over, the stage may still write
      CHECK(b.machine.shelf()->pool.counts().owned == 4);
      b.wait(4s);
    }
    CHECK(b.machine.shelf()->pool.counts().owned == (way == lost ? 0 : 3));
    CHECK(b.machine.shelf()->pool.counts().cached == 0);
    if (way == lost) continue;
    REQUIRE(all<RunChunk>(out).size() == 1);
    CHECK(all<RunChunk>(out)[0].start == 0);
  }
}

TEST_CASE("node/pipeline_blocks: a copy whose stage is lost after it has read its layers publishes no block") {
  LeaderBench b;
  b.members_and_holder(3);
  wire::CopyBlocks order;
  order.copy = 7, order.ns = namespace_of(layout_of(2)).id(), order.node = "p1", order.instance = instance(4);
  order.hashes = kv::chain(order.ns, std::vector<uint32_t>(kChunk, 5), 64);
  const auto lease = sent<wire::LeaseRequest>(b.from_conductor(order), "p1");
  REQUIRE(lease.size() == 1);
  wire::LeaseGrant grant{lease[0].lease, {}, 20000};
  for (uint32_t i = 0; i < 2; ++i) grant.blocks.push_back({order.hashes[i], {}, 0, i * 8192, {5, 6}});
  Actions out = b.from("p1", 4, grant);
  const auto here = all<Read>(out);
  const auto there = sent<wire::StageRead>(out, "me.1");
  REQUIRE((here.size() == 1 && there.size() == 1));
  b.from("me.1", 7, wire::StageReadDone{there[0].read, Code::ok, "", false});
  b.from_conductor(wire::Peers{
      4,
      {{"d0", instance(2), wire::Role::decode, "sim:d0", {}}, {"p1", instance(4), wire::Role::prefill, "sim:p1", {}}}});
  out = b.give(ReadDone{here[0].read, Code::ok, ""});
  CHECK(b.machine.shelf()->pool.counts().cached == 0);
  CHECK(b.machine.idle());
}

TEST_CASE("node/pipeline_blocks: blocks that a stage refused to read are missed because of a stage of this node") {
  for (const Code code : {Code::invalid, Code::peer_lost, Code::timeout, Code::corrupt}) {
    CAPTURE(code);
    LeaderBench b;
    const wire::LeaseRequest lease = b.fetch("r");
    Actions out = b.from("p1", 4, wire::LeaseGrant{lease.lease, {{lease.hashes.at(0), {}, 0, 0, {5, 6}}}, 20000});
    const auto there = sent<wire::StageRead>(out, "me.1");
    REQUIRE(there.size() == 1);
    b.give(ReadDone{all<Read>(out).at(0).read, Code::ok, ""});
    out = b.from("me.1", 7, wire::StageReadDone{there[0].read, code, "page 40 of 32", true});
    for (std::vector<RunChunk> runs; !(runs = all<RunChunk>(out)).empty();) {
      out = b.computed(runs[0]);
      const Actions staged =
          b.from("me.1", 7,
                 wire::StageDone{runs[0].run,
                                 1,
                                 Code::ok,
                                 "",
                                 {std::vector<uint32_t>(runs[0].pages.size() - runs[0].start / 64, 3)},
                                 9,
                                 {},
                                 {}});
      out.insert(out.end(), staged.begin(), staged.end());
    }
    const auto first = sent<wire::FirstToken>(out, kTo);
    REQUIRE(first.size() == 1);
    CHECK(first[0].report.fallback == wire::Fallback::stage);
    REQUIRE(!first[0].report.misses.empty());
    CHECK(first[0].report.misses[0] == wire::Miss{wire::MissKind::stage, 0, 1, "me", 0});
  }
}

TEST_CASE("node/pipeline_blocks: a pipeline lends its blocks in parts, and offers them to a cache node in parts") {
  LeaderBench b;
  const auto runs = all<RunChunk>(b.start("r", kChunk + 5));
  const uint64_t first = runs.at(0).run;
  b.computed(runs[0]);
  b.staged(first);
  REQUIRE(b.machine.shelf()->pool.counts().cached == 2);
  b.members_and_holder(3);
  wire::LeaseRequest request;
  request.lease = 9, request.ns = namespace_of(layout_of(2)).id();
  request.hashes = kv::chain(request.ns, std::vector<uint32_t>(kChunk, 5), 64);
  const auto grants = sent<wire::LeaseGrant>(b.from("p1", 4, request), "p1");
  REQUIRE(grants.size() == 1);
  CHECK(grants[0].blocks.size() == 2);
  CHECK(grants[0].blocks[1].layer_crcs == std::vector<uint32_t>{1, 4});
  REQUIRE(grants[0].parts.size() == 2);
  ExtentLayout part = layout_of(2);
  part.stage = {0, 1};
  CHECK(grants[0].parts[0] == wire::HolderPart{"me", instance(50), 0, 1, part.page_bytes()});
  CHECK((grants[0].parts[1].node == "me.1" && grants[0].parts[1].instance == instance(7)));
  CHECK((grants[0].parts[1].first_layer == 1 && grants[0].parts[1].end_layer == 2));
  // While a member is missing, there is nothing to lend.
  b.from_conductor(wire::Peers{4, {{"p1", instance(4), wire::Role::prefill, "sim:p1", {}}}});
  request.lease = 10;
  CHECK(sent<wire::LeaseGrant>(b.from("p1", 4, request), "p1").at(0).blocks.empty());
}

TEST_CASE(
    "node/pipeline_blocks: a member that comes back reads its layers again, and other members read none of theirs") {
  for (const bool equal : {true, false}) {
    LeaderBench b;
    const auto first = all<RunChunk>(b.start("r", kChunk + 5)).at(0);
    const auto second = all<RunChunk>(b.computed(first)).at(0);
    b.computed(second);
    b.staged(first.run);
    b.from("me.1", 7, wire::StageDone{second.run, 1, Code::ok, "", {{3}}, 9, {}, {}});
    b.from("d0", 2, wire::KvDone{"r", 1});
    REQUIRE((b.machine.idle() && b.machine.shelf()->pool.counts().cached == 2));
    b.members(false, 3);
    CHECK(b.machine.idle());
    CHECK(b.machine.shelf()->pool.counts().cached == 0);
    CHECK(b.machine.load().pages_free == 32);  // any other use of the pages comes first
    b.from_conductor(wire::Peers{4,
                                 {{"d0", instance(2), wire::Role::decode, "sim:d0", {}},
                                  {"p1", instance(4), wire::Role::prefill, "sim:p1", {}},
                                  {"me.1", instance(9), wire::Role::stage, "sim:s", {}}}});
    Actions out = b.from_conductor(wire::PrefillStart{
        spec_of("s", std::vector<uint32_t>(kChunk + 7, 5)), "d0", instance(2), {{"p1", instance(4), 0, 2, 0}}});
    const auto lease = sent<wire::LeaseRequest>(out, "p1");
    REQUIRE((lease.size() == 1 && lease[0].hashes.size() == 2));
    b.from("d0", 2, wire::KvAccept{"s", 1, 0});
    wire::LeaseGrant grant{lease[0].lease, {}, 20000};
    for (uint32_t i = 0; i < 2; ++i)
      grant.blocks.push_back({lease[0].hashes[i], {}, 0, i * 8192, {equal ? 1u : 2u, 3 + i}});
    out = b.from("p1", 4, grant);
    const auto asked = sent<wire::StageRead>(out, "me.1");
    REQUIRE(asked.size() == 1);
    CHECK(asked[0].crcs == std::vector<std::vector<uint32_t>>{{3, 4}});
    // Layers that another node computed to other bytes do not go together with ours.
    const auto here = all<Read>(out);
    REQUIRE(here.size() == (equal ? 0 : 1));
    if (!equal) b.give(ReadDone{here[0].read, Code::ok, ""});
    const auto next = all<RunChunk>(b.from("me.1", 9, wire::StageReadDone{asked[0].read, Code::ok, "", false}));
    REQUIRE(next.size() == 1);
    CHECK(next[0].start == kChunk);
  }
}

}  // namespace pipeline_blocks_test

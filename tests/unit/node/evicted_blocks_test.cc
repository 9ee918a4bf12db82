// Misses that evictions on other nodes explain.

#include "node/evicted_blocks.h"

#include "conductor_bench.h"

namespace evicted_blocks_test {

using namespace mc;
using namespace mc::node;
using conductor_test::Bench;
using conductor_test::instance;
using conductor_test::start;

TEST_CASE("node/conductor: cold blocks that another node evicted before the request came are evicted ones") {
  Bench b;
  start(b);
  kv::Namespace ns;
  ns.weights = "w", ns.config = "c", ns.dtype = ns.weight_dtype = ns.kv_dtype = "f32", ns.rope = "r";
  ns.attention = "full";
  ns.layers = 2, ns.kv_heads = 1, ns.head_dim = 16, ns.block_tokens = 64, ns.layout = 1;
  const auto hashes = kv::chain(ns.id(), std::vector<uint32_t>(300, 7), 64);
  uint64_t seq = 0;
  const auto event = [&](bool stored, const BlockHash& hash, bool evicted) {
    wire::BlockEvents events;
    events.first_seq = ++seq;
    events.events.push_back({stored, {hash, {}, kv::Tier::host}, evicted});
    b.give(Received{"d0", instance(2), events});
  };
  for (const BlockHash& hash : hashes) event(true, hash, false);
  for (const BlockHash& hash : hashes) event(false, hash, hash != hashes[2]);  // its bytes were damaged
  b.now += 3s;
  b.submit("r", 300);
  b.now += 500ms;
  event(true, hashes[0], false);  // p0 has computed a block by now; here d0 stands for any node
  wire::FirstToken f;
  f.req = "r", f.attempt = 1, f.token = 10;
  f.report.misses = {{wire::MissKind::cold, 0, 4, "", 0}, {wire::MissKind::tail_partial, 4, 1, "", 0}};
  b.now += 500ms;
  const auto replies = Bench::replies(b.give(Received{"p0", instance(1), f}));
  REQUIRE(replies.size() == 1);
  const std::vector<wire::Miss> expected = {{wire::MissKind::evicted, 0, 2, "d0", 4000},
                                            {wire::MissKind::cold, 2, 1, "", 0},
                                            {wire::MissKind::evicted, 3, 1, "d0", 4000},
                                            {wire::MissKind::tail_partial, 4, 1, "", 0}};
  CHECK(replies[0].summary.report.misses == expected);
}

TEST_CASE("node/conductor: an eviction explains no miss of a block that came back, and none beyond the prompt") {
  EvictedBlocks evicted(2);
  kv::PrefixIndex index;
  BlockHash hashes[3];
  for (uint8_t i = 0; i < 3; ++i) hashes[i].bytes[0] = static_cast<uint8_t>(i + 1);
  const auto event = [](const BlockHash& hash, bool stored) {
    return std::vector<wire::BlockEvent>{{stored, {hash, {}, kv::Tier::host}, !stored}};
  };
  TimePoint now = TimePoint{} + 10s;
  for (const BlockHash& hash : hashes) evicted.note("c0", event(hash, false), index, now);
  const std::vector<wire::Miss> cold = {{wire::MissKind::cold, 0, UINT32_MAX, "", 0}};
  const std::vector<wire::Miss> bounded = {{wire::MissKind::cold, 0, 1, "", 0},
                                           {wire::MissKind::evicted, 1, 2, "c0", 5000},
                                           {wire::MissKind::cold, 3, UINT32_MAX - 3, "", 0}};
  CHECK(evicted.explain(cold, hashes, now, now + 5s) == bounded);  // the first eviction was forgotten
  CHECK(evicted.explain(cold, hashes, now - 1s, now).size() == 2);
  CHECK(evicted.explain(cold, {}, now, now) == cold);
  for (const BlockHash& hash : hashes) evicted.note("d0", event(hash, true), index, now + 1s);
  for (const wire::Miss& miss : evicted.explain(cold, hashes, now + 2s, now + 2s))
    CHECK(miss.kind == wire::MissKind::cold);
}

TEST_CASE("node/evicted_blocks: a member that names one block a thousand times has it explained once") {
  EvictedBlocks evicted;
  kv::PrefixIndex index;
  std::vector<BlockHash> hashes(100);
  std::vector<wire::BlockEvent> events;
  for (size_t i = 0; i < hashes.size(); ++i) {
    hashes[i].bytes[0] = static_cast<uint8_t>(i + 1);
    if (i % 2 == 0) events.push_back({false, {hashes[i], {}, kv::Tier::host}, true});
  }
  const TimePoint now = TimePoint{} + 10s;
  evicted.note("c0", events, index, now);
  const std::vector<wire::Miss> lies(1000, {wire::MissKind::cold, 0, 100, "", 0});
  const auto explained = evicted.explain(lies, hashes, now, now);
  CHECK(explained.size() == 100 + 999);
  CHECK(explained.back() == lies.back());
}

}  // namespace evicted_blocks_test

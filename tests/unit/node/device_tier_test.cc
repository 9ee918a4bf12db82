// The tier in the memory of a node's device: what prefill and decode nodes load, keep, and give up.
#include "node/device_tier.h"

#include "bench.h"
#include "node/decode.h"
#include "node/prefill.h"

namespace device_tier_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

std::vector<uint32_t> ids_of(uint32_t first, size_t count) {
  std::vector<uint32_t> ids(count, 5);
  ids[0] = first;
  return ids;
}

/// A prefill node whose device has so many pages.
struct PrefillBench : Bench<Prefill, PrefillOptions> {
  explicit PrefillBench(uint32_t pages, uint32_t device_pages, const PrefillOptions& options = {})
      : Bench(wire::Role::prefill, pages, options, 2, 0, device_pages) {}
  Actions start(const std::string& req, std::vector<uint32_t> ids) {
    from_conductor(wire::PrefillStart{spec_of(req, std::move(ids)), "d0", instance(2), {}});
    return from("d0", 2, wire::KvAccept{req, 1, 0});
  }
  Actions loaded(const LoadPages& load, Code code = Code::ok, std::vector<uint32_t> rotten = {}) {
    PagesLoaded done{load.load, code, "why", std::move(rotten)};
    done.busy = 10ms * static_cast<int64_t>(load.pages.size());
    return give(done);
  }
  /// All layers of the run are sealed, and it ends.
  Actions computed(const RunChunk& run) {
    const auto first = run.start / 64;
    for (uint32_t layer = 0; layer < 2; ++layer)
      give(LayerDone{run.run, layer, first, std::vector<uint32_t>(run.pages.size() - first, 7)});
    ChunkDone done;
    done.run = run.run, done.sampled.token = 7;
    return give(done);
  }
  /// The prompt is computed and handed over. The loads and runs that it took.
  struct Served {
    std::vector<LoadPages> loads;
    std::vector<RunChunk> runs;
  };
  Served serve(const std::string& req, std::vector<uint32_t> ids) {
    Served out;
    Actions actions = start(req, std::move(ids));
    for (std::vector<RunChunk> runs; !(runs = all<RunChunk>(actions)).empty();) {
      for (const LoadPages& load : all<LoadPages>(actions)) {
        out.loads.push_back(load);
        loaded(load);
      }
      out.runs.push_back(runs.at(0));
      actions = computed(runs[0]);
    }
    from("d0", 2, wire::KvDone{req, 1});
    return out;
  }
  wire::Load load() const { return machine.load(); }
};

}  // namespace

TEST_CASE("node/device_tier: a prefix on the device needs no load, and its run names its pages there") {
  PrefillBench b(16, 8);
  const auto first = b.serve("a", ids_of(1, 3 * 64 + 5));
  REQUIRE(first.runs.size() == 1);
  CHECK(first.loads.empty());
  CHECK(first.runs[0].device_pages.size() == 4);
  const auto again = b.serve("b", ids_of(1, 3 * 64 + 9));
  REQUIRE(again.runs.size() == 1);
  CHECK(again.loads.empty());
  CHECK(again.runs[0].start == 3 * 64);
  for (int block = 0; block < 3; ++block) CHECK(again.runs[0].device_pages[block] == first.runs[0].device_pages[block]);
  CHECK(again.runs[0].prefix_crcs.size() == 3 * 2);  // of the host's pages, which the decode node reads
  CHECK(b.load().device_blocks == 3);
  CHECK(b.load().device_pages_held == 0);
  CHECK(b.machine.idle());
}

TEST_CASE("node/device_tier: blocks that left the device are loaded from the host with the run that uses them") {
  PrefillBench b(32, 4);
  b.serve("a", ids_of(1, 3 * 64 + 5));
  b.serve("b", ids_of(2, 3 * 64 + 5));  // takes all pages
  CHECK(b.load().device_evicted_blocks == 3);
  const Actions out = b.start("c", ids_of(1, 3 * 64 + 9));
  const auto loads = all<LoadPages>(out);
  const auto runs = all<RunChunk>(out);
  REQUIRE(loads.size() == 1);
  REQUIRE(runs.size() == 1);  // at once: its layers wait for those of the load
  CHECK(runs[0].start == 3 * 64);
  CHECK(loads[0].pages == std::vector<uint32_t>(runs[0].pages.begin(), runs[0].pages.begin() + 3));
  CHECK(loads[0].device_pages == std::vector<uint32_t>(runs[0].device_pages.begin(), runs[0].device_pages.begin() + 3));
  CHECK(loads[0].crcs == std::vector<uint32_t>(6, 7));
  CHECK(b.load().device_block_s == 0);
  b.loaded(loads[0]);
  CHECK(b.load().device_block_s == doctest::Approx(0.010));
  CHECK(b.load().device_loaded_blocks == 3);
  b.computed(runs[0]);
  b.from("d0", 2, wire::KvDone{"c", 1});
  CHECK(b.machine.idle());
}

TEST_CASE("node/device_tier: a load that fails ends its request, which another node may serve, and no other") {
  PrefillBench b(32, 8, {.pass_tokens = 512});
  b.serve("a", ids_of(1, 2 * 64 + 5));
  b.serve("b", ids_of(2, 7 * 64 + 5));  // takes all pages
  const Actions busy = b.start("busy", ids_of(3, 64));
  b.start("c", ids_of(1, 2 * 64 + 9));
  b.start("d", ids_of(4, 60));
  const Actions pass = b.computed(all<RunChunk>(busy).at(0));
  const auto runs = all<RunChunk>(pass);
  REQUIRE(runs.size() == 2);  // one pass
  CHECK(runs[0].is_followed);
  const auto loads = all<LoadPages>(pass);
  REQUIRE(loads.size() == 1);
  const Actions out = b.loaded(loads[0], Code::io);
  const auto failed = sent<wire::Failed>(out, std::string(kConductor));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].req == "c");
  CHECK(failed[0].retryable);
  REQUIRE(all<CancelRun>(out).size() == 1);
  CHECK(b.load().device_pages_held > 0);
  ChunkDone cancelled;
  cancelled.run = runs[0].run, cancelled.code = Code::io;
  b.give(cancelled);
  CHECK(sent<wire::FirstToken>(b.computed(runs[1]), std::string(kConductor)).size() == 1);
  b.from("d0", 2, wire::KvDone{"d", 1});
  b.from("d0", 2, wire::KvDone{"busy", 1});
  CHECK(b.machine.idle());
}

TEST_CASE("node/device_tier: blocks that a load finds changed leave the host's pool, and are computed again") {
  PrefillBench b(32, 4);
  b.serve("a", ids_of(1, 3 * 64 + 5));
  b.serve("b", ids_of(2, 3 * 64 + 5));
  const Actions out = b.start("c", ids_of(1, 3 * 64 + 9));
  const auto load = all<LoadPages>(out).at(0);
  const auto run = all<RunChunk>(out).at(0);
  const Actions found = b.loaded(load, Code::corrupt, {1});
  CHECK(sent<wire::Failed>(found, std::string(kConductor)).size() == 1);
  ChunkDone cancelled;
  cancelled.run = run.run, cancelled.code = Code::corrupt;
  b.give(cancelled);
  CHECK(b.machine.stats().checksum_failures == 1);
  CHECK(b.machine.idle());
  const auto again = b.serve("d", ids_of(1, 3 * 64 + 9));
  REQUIRE(again.runs.size() == 1);
  CHECK(again.runs[0].start == 64);  // behind the block before the changed one
}

TEST_CASE("node/device_tier: a request that ends in mid-load keeps its pages until the load has ended") {
  PrefillBench b(32, 4);
  b.serve("a", ids_of(1, 3 * 64 + 5));
  b.serve("b", ids_of(2, 3 * 64 + 5));
  const Actions out = b.start("c", ids_of(1, 3 * 64 + 9));
  const auto load = all<LoadPages>(out).at(0);
  b.from_conductor(wire::Cancel{"c", 1, "client"});
  ChunkDone cancelled;
  cancelled.run = all<RunChunk>(out).at(0).run, cancelled.code = Code::cancelled;
  b.give(cancelled);
  CHECK_FALSE(b.machine.idle());
  CHECK(b.load().device_pages_held == 4);
  CHECK(all<RunChunk>(b.start("d", ids_of(3, 64))).empty());  // the device has no page for it
  CHECK(all<RunChunk>(b.loaded(load)).size() == 1);
  CHECK(b.load().device_pages_held == 1);
}

TEST_CASE("node/device_tier: a prompt that the device can never hold is refused with the flag that helps") {
  PrefillBench b(32, 4);
  const Actions out = b.from_conductor(wire::PrefillStart{spec_of("b", ids_of(1, 5 * 64)), "d0", instance(2), {}});
  const auto failed = sent<wire::Failed>(out, std::string(kConductor));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].message.find("--device-mem") != std::string::npos);
  CHECK_FALSE(failed[0].retryable);
}

TEST_CASE("node/device_tier: the watermarks free pages in the order of the eviction policy before they are needed") {
  kv::EventLog log;
  Numbers numbers;
  DeviceTier tier(128, layout_of(1), kv::kFifo, log, numbers);
  DevicePages all_pages;
  REQUIRE(tier.take(all_pages, {}, 128));
  std::vector<BlockHash> names(128);
  for (size_t i = 0; i < names.size(); ++i) names[i].bytes[0] = static_cast<uint8_t>(i), names[i].bytes[1] = 1;
  for (uint32_t block = 0; block < 128; ++block) tier.publish(all_pages, block, names, NamespaceId{});
  tier.tend();
  CHECK(tier.pool().counts().free == 0);  // a request uses every block
  tier.release(all_pages);
  tier.tend();
  CHECK(tier.pool().counts().free == 128 / 32);
  for (uint32_t block = 0; block < 128; ++block)
    CHECK(tier.holds(names[block]) == (block < 128 - 4));  // a chain's tail
  tier.tend();
  CHECK(tier.pool().counts().free == 128 / 32);
}

namespace {

struct DecodeBench : Bench<Decode, DecodeOptions> {
  DecodeBench(uint32_t pages, uint32_t device_pages)
      : Bench(wire::Role::decode, pages, DecodeOptions{}, 2, 0, device_pages) {}
  /// Offered, read and complete: returns what the last message brought.
  Actions join(const wire::RequestSpec& spec) {
    from("p0", 1, wire::KvOffer{spec});
    const auto blocks = kv::blocks_for(spec.ids.size(), 64);
    for (uint32_t layer = 0; layer < 2; ++layer)
      for (const auto& read : all<Read>(
               give(Notified{"p0", instance(1), {spec.req, 1, layer, 0, std::vector<wire::ReadyExtent>(blocks)}})))
        give(ReadDone{read.read, Code::ok, ""});
    return from("p0", 1, wire::KvComplete{spec.req, 1, static_cast<uint32_t>(spec.ids.size()), 3});
  }
  Actions loaded(const LoadPages& load, Code code = Code::ok) { return give(PagesLoaded{load.load, code, "why"}); }
  Actions stepped(const RunStep& run) {
    run.rows->out.clear();
    for (const auto& row : run.rows->in) {
      StepRow out;
      out.sampled.token = 4;
      if ((row.position + 1) % 64 == 0) out.sealed_crcs.assign(2, 0);
      run.rows->out.push_back(out);
    }
    return give(StepDone{run.run, Code::ok, "", run.rows, 0s});
  }
};

}  // namespace

TEST_CASE("node/device_tier: a request joins the batch when its blocks are on the device, and steps go on meanwhile") {
  DecodeBench b(16, 8);
  const Actions first = b.join(spec_of("a", ids_of(1, 70), 100));
  CHECK(all<RunStep>(first).empty());
  const auto load = all<LoadPages>(first);
  REQUIRE(load.size() == 1);
  CHECK(load[0].pages.size() == 2);  // the tail too
  const Actions begun = b.loaded(load[0]);
  auto steps = all<RunStep>(begun);
  REQUIRE(steps.size() == 1);
  const auto joins = all<JoinBatch>(begun);
  REQUIRE(joins.size() == 1);
  CHECK(joins[0].device_pages == load[0].device_pages);
  CHECK(joins[0].prefix_crcs.empty());
  const Actions second = b.join(spec_of("b", ids_of(2, 70), 100));
  const auto other = all<LoadPages>(second);
  REQUIRE(other.size() == 1);
  steps = all<RunStep>(b.stepped(steps[0]));
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].rows->in.size() == 1);
  b.loaded(other[0]);
  steps = all<RunStep>(b.stepped(steps[0]));
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].rows->in.size() == 2);
}

TEST_CASE("node/device_tier: a row that begins a block names a page of the device, and the full block is kept there") {
  DecodeBench b(16, 8);
  auto steps = all<RunStep>(b.loaded(all<LoadPages>(b.join(spec_of("a", ids_of(1, 64), 100))).at(0)));
  uint32_t named = 0;
  for (int step = 0; step < 70; ++step) {
    REQUIRE(steps.size() == 1);
    named += steps[0].rows->in.at(0).device_page != RunRow::kNoPage;
    CHECK((steps[0].rows->in.at(0).device_page != RunRow::kNoPage) ==
          (steps[0].rows->in.at(0).page != RunRow::kNoPage));
    steps = all<RunStep>(b.stepped(steps[0]));
  }
  CHECK(named == 1);
  CHECK(b.machine.load().device_blocks == 2);
}

TEST_CASE("node/device_tier: while the device has no room a request waits with its KV on the host, and then joins") {
  DecodeBench b(32, 4);
  auto steps = all<RunStep>(b.loaded(all<LoadPages>(b.join(spec_of("a", ids_of(1, 2 * 64 + 5), 3))).at(0)));
  CHECK(all<LoadPages>(b.join(spec_of("b", ids_of(2, 2 * 64 + 5), 3))).empty());
  Actions out;
  for (int step = 0; step < 2; ++step) {
    REQUIRE(steps.size() == 1);
    out = b.stepped(steps[0]);
    steps = all<RunStep>(out);
  }
  REQUIRE(all<LoadPages>(out).size() == 1);
  CHECK(all<RunStep>(b.loaded(all<LoadPages>(out)[0])).size() == 1);
}

TEST_CASE("node/device_tier: a copy that fails ends the request that waits for it, and the batch goes on") {
  DecodeBench b(16, 8);
  auto steps = all<RunStep>(b.loaded(all<LoadPages>(b.join(spec_of("a", ids_of(1, 70), 100))).at(0)));
  const auto load = all<LoadPages>(b.join(spec_of("b", ids_of(2, 70), 100))).at(0);
  const auto failed = sent<wire::Failed>(b.loaded(load, Code::io), std::string(kConductor));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].req == "b");
  CHECK(failed[0].retryable);
  REQUIRE(steps.size() == 1);
  CHECK(all<RunStep>(b.stepped(steps[0])).size() == 1);
  CHECK(b.machine.load().device_pages_held == 2);
}

TEST_CASE("node/device_tier: when the device's pages run out the request that came last gives way") {
  DecodeBench b(32, 5);
  auto runs = all<RunStep>(b.loaded(all<LoadPages>(b.join(spec_of("old", ids_of(1, 2 * 64 - 2), 150))).at(0)));
  b.loaded(all<LoadPages>(b.join(spec_of("young", ids_of(2, 2 * 64 - 2), 150))).at(0));
  std::vector<std::string> preempted;
  bool finished = false;
  for (int step = 0; step < 300 && !finished; ++step) {
    const Actions out = b.stepped(runs.at(0));
    for (const auto& p : sent<wire::Preempted>(out, std::string(kConductor))) preempted.push_back(p.req);
    for (const auto& tokens : sent<wire::Tokens>(out, std::string(kConductor)))
      for (const auto& row : tokens.rows) finished |= row.req == "old" && row.finish_reason == "length";
    runs = all<RunStep>(out);
  }
  CHECK(finished);
  CHECK(preempted == std::vector<std::string>{"young"});
  CHECK(b.machine.idle());
}

}  // namespace device_tier_test

// Prompts whose computing begins while the last layers of their prefix are on their way.

#include "bench.h"
#include "node/prefill.h"

namespace layer_load_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

constexpr uint32_t kBlocks = 2;  // of the prefix that p1 has

/// Reads the prefix of "r", a prompt of two blocks and five tokens, in a piece for each of the two layers.
struct LoadBench : Bench<Prefill, PrefillOptions> {
  std::vector<Read> reads;

  explicit LoadBench(uint32_t pages = 8, uint64_t by_layer_bytes = 1)
      : Bench(wire::Role::prefill, pages, {.by_layer_bytes = by_layer_bytes}) {}

  Actions ask(const std::string& req, std::vector<uint32_t> ids, std::vector<wire::Source> sources = {}) {
    return from_conductor(wire::PrefillStart{spec_of(req, std::move(ids)), "d0", instance(2), std::move(sources)});
  }
  /// The request and its grant are here, and nothing of its prefix.
  void begin() {
    const auto asked = sent<wire::LeaseRequest>(
        ask("r", std::vector<uint32_t>(kBlocks * 64 + 5, 5), {{"p1", instance(4), 0, kBlocks, 0}}), "p1");
    REQUIRE(asked.size() == 1);
    from("d0", 2, wire::KvAccept{"r", 1, 0});
    wire::LeaseGrant grant{asked[0].lease, {}, 60000};
    for (const auto& hash : asked[0].hashes) grant.blocks.push_back({hash, {}, 1, 0, {11, 12}});
    reads = all<Read>(from("p1", 4, grant));
  }
  Actions read_ends(size_t piece, Code code = Code::ok) { return give(ReadDone{reads.at(piece).read, code, "why"}); }
  Actions run_ends(uint64_t run, Code code = Code::ok) {
    ChunkDone done;
    done.run = run, done.code = code, done.sampled.token = 7;
    return give(done);
  }
  /// The run that begins with the first layer.
  RunChunk begin_early() {
    begin();
    REQUIRE(reads.size() == 2);
    const auto runs = all<RunChunk>(read_ends(0));
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].start == kBlocks * 64);
    CHECK(runs[0].layers_here == 1);
    CHECK(runs[0].prefix_crcs.empty());  // the read checks what arrives
    return runs[0];
  }
  uint32_t owned() const { return machine.shelves()[0]->pool.counts().owned; }
};

struct Told {
  uint32_t layer, first_block;
  size_t blocks;
  bool operator==(const Told&) const = default;
};
std::vector<Told> told(const Actions& actions) {
  std::vector<Told> out;
  for (const SendNotify& notify : all<SendNotify>(actions))
    out.push_back({notify.ready.layer, notify.ready.first_block, notify.ready.extents.size()});
  return out;
}

}  // namespace

TEST_CASE("node/layer_load: computing begins with the first layer, and decode receives the extents when all are here") {
  LoadBench b;
  const RunChunk run = b.begin_early();
  CHECK(told(b.give(LayerDone{run.run, 0, kBlocks, {21}})).empty());
  const Actions arrived = b.read_ends(1);
  const auto here = all<PrefixLayers>(arrived);
  REQUIRE(here.size() == 1);
  CHECK((here[0].run == run.run && here[0].layers == 2));
  CHECK(told(arrived) == std::vector<Told>{{0, 0, 2}, {1, 0, 2}, {0, 2, 1}});
  CHECK(sent<wire::LeaseRelease>(arrived, "p1").size() == 1);
  CHECK(told(b.give(LayerDone{run.run, 1, kBlocks, {22}})) == std::vector<Told>{{1, 2, 1}});
  const auto first = sent<wire::FirstToken>(b.run_ends(run.run), std::string(kConductor));
  REQUIRE(first.size() == 1);
  CHECK(first[0].report.cached_remote == kBlocks * 64);
  CHECK(first[0].report.sources == std::vector<wire::NameValue>{{"p1", "128"}});
  CHECK(b.machine.stats().computed_tokens == 5);
  b.from("d0", 2, wire::KvDone{"r", 1});
  CHECK(b.machine.idle());
  CHECK(b.owned() == 0);
}

TEST_CASE(
    "node/layer_load: blocks that do not arrive are computed into the same pages, after run and read have ended") {
  LoadBench b;
  const RunChunk run = b.begin_early();
  b.give(LayerDone{run.run, 0, kBlocks, {21}});
  Actions after;
  SUBCASE("the read fails before the run has ended") {
    const auto cancelled = all<CancelRun>(b.read_ends(1, Code::corrupt));
    REQUIRE(cancelled.size() == 1);
    CHECK(cancelled[0].run == run.run);
    after = b.run_ends(run.run, Code::cancelled);
  }
  SUBCASE("the holder is lost, and its read ends after the run") {
    const auto lost = b.give(PeerLost{"p1", instance(4), "gone"});
    CHECK(all<CancelRun>(lost).size() == 1);
    CHECK(all<CancelRead>(lost).size() == 1);
    CHECK(all<RunChunk>(b.run_ends(run.run, Code::cancelled)).empty());  // the read may still write
    after = b.read_ends(1, Code::cancelled);
  }
  const auto again = all<RunChunk>(after);
  REQUIRE(again.size() == 1);
  CHECK(again[0].start == 0);
  CHECK(again[0].pages == run.pages);
  CHECK(again[0].layers_here == UINT32_MAX);
  CHECK(told(after).empty());
  CHECK(told(b.give(LayerDone{again[0].run, 0, 0, {1, 2, 3}})) == std::vector<Told>{{0, 0, 3}});
  const auto first = sent<wire::FirstToken>(b.run_ends(again[0].run), std::string(kConductor));
  REQUIRE(first.size() == 1);
  CHECK(first[0].report.cached_remote == 0);
  CHECK(first[0].report.fallback != wire::Fallback::none);
  CHECK(b.machine.stats().computed_tokens == kBlocks * 64 + 5);
  b.from("d0", 2, wire::KvDone{"r", 1});
  CHECK(b.machine.idle());
  CHECK(b.owned() == 0);
}

TEST_CASE("node/layer_load: the pages of a request that ends early are free when run and read have ended") {
  for (const bool read_first : {true, false}) {
    CAPTURE(read_first);
    LoadBench b;
    const RunChunk run = b.begin_early();
    const auto ended = b.from_conductor(wire::Cancel{"r", 1, "cancelled"});
    CHECK(all<CancelRun>(ended).size() == 1);
    CHECK(all<CancelRead>(ended).size() == 1);
    const uint32_t held = b.owned();
    CHECK(held == 3);
    read_first ? b.read_ends(1, Code::cancelled) : b.run_ends(run.run, Code::cancelled);
    CHECK(b.owned() == held);
    read_first ? b.run_ends(run.run, Code::cancelled) : b.read_ends(1, Code::cancelled);
    CHECK(b.owned() == 0);
    CHECK(b.machine.idle());
  }
}

TEST_CASE("node/layer_load: a read below the bound comes in one piece, and nothing is computed before it has ended") {
  LoadBench b(8, 1 << 30);
  b.begin();
  REQUIRE(b.reads.size() == 1);
  const auto runs = all<RunChunk>(b.read_ends(0));
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].layers_here == UINT32_MAX);
}

TEST_CASE("node/layer_load: a request that is ready goes before one whose prefix is on its way") {
  LoadBench b(12);
  b.begin();
  b.ask("s", std::vector<uint32_t>(70, 9));
  const auto runs = all<RunChunk>(b.from("d0", 2, wire::KvAccept{"s", 1, 0}));
  REQUIRE(runs.size() == 1);
  CHECK(all<RunChunk>(b.read_ends(0)).empty());
  const auto next = all<RunChunk>(b.run_ends(runs[0].run));
  REQUIRE(next.size() == 1);
  CHECK(next[0].layers_here == 1);
}

TEST_CASE("node/layer_load: a prefix whose rest takes longer than the first chunk is not begun") {
  LoadBench b;
  b.begin();
  b.now += 4s;  // for the first of two layers
  CHECK(all<RunChunk>(b.read_ends(0)).empty());
  CHECK(all<RunChunk>(b.read_ends(1)).size() == 1);
}

TEST_CASE("node/layer_load: without pages for the rest of the prompt the request waits for its whole prefix") {
  LoadBench b(3);
  b.begin();
  REQUIRE(b.reads.size() == 2);
  CHECK(all<RunChunk>(b.read_ends(0)).size() == 1);  // three pages are enough
  LoadBench less(3);
  less.ask("s", std::vector<uint32_t>(20, 9));
  const auto other = all<RunChunk>(less.from("d0", 2, wire::KvAccept{"s", 1, 0}));
  REQUIRE(other.size() == 1);
  less.run_ends(other[0].run);  // its page is leased until d0 has read it
  less.begin();
  REQUIRE(less.reads.size() == 2);
  CHECK(all<RunChunk>(less.read_ends(0)).empty());
  CHECK(all<RunChunk>(less.read_ends(1)).empty());
  CHECK(all<RunChunk>(less.from("d0", 2, wire::KvDone{"s", 1})).size() == 1);
}

}  // namespace layer_load_test

// Why blocks of a prompt were computed: each reason, told by the prefill machine in the situation that it names, and
// the memory that reasons come from.

#include "bench.h"
#include "node/block_memory.h"
#include "node/prefill.h"

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;
using wire::Fallback;
using wire::Miss;
using wire::MissKind;
using Misses = std::vector<wire::Miss>;

namespace {

std::vector<uint32_t> tokens_of(uint32_t first, size_t count) {
  std::vector<uint32_t> ids(count, 5);
  ids[0] = first;
  return ids;
}

struct MissBench : Bench<Prefill, PrefillOptions> {
  explicit MissBench(uint32_t pages = 32) : Bench(wire::Role::prefill, pages, {}) {}
  Actions start(const wire::RequestSpec& spec, uint32_t fetch_blocks = 0, uint32_t wait_ms = 0) {
    std::vector<wire::Source> sources;
    if (fetch_blocks > 0) sources.push_back({"p1", instance(4), 0, fetch_blocks, wait_ms});
    Actions out = from_conductor(wire::PrefillStart{spec, "d0", instance(2), sources});
    for (const auto& request : sent<wire::LeaseRequest>(out, "p1")) lease = request;
    for (auto& action : from("d0", 2, wire::KvAccept{spec.req, 1, 0})) out.push_back(action);
    return out;
  }
  /// Ends the one run among `out`; the misses that its first token reports.
  Misses finish(const std::string& req, const Actions& out) {
    const auto runs = all<RunChunk>(out);
    REQUIRE(runs.size() == 1);
    for (const uint32_t layer : {0u, 1u}) {
      const auto blocks = static_cast<uint32_t>(runs[0].pages.size()) - runs[0].start / 64;
      give(LayerDone{runs[0].run, layer, runs[0].start / 64, std::vector<uint32_t>(blocks, 3)});
    }
    ChunkDone done;
    done.run = runs[0].run, done.sampled.token = 7;
    const auto first = sent<wire::FirstToken>(give(done), "conductor");
    REQUIRE(first.size() == 1);
    from("d0", 2, wire::KvDone{req, 1});
    return first[0].report.misses;
  }
  Misses serve(const wire::RequestSpec& spec) { return finish(spec.req, start(spec)); }
  /// The misses of two blocks that were to be fetched, after a grant of no blocks for that reason.
  Misses refused(Fallback reason, uint64_t age_ms = 0) {
    start(spec_of("r", tokens_of(1, 129)), 2);
    wire::LeaseGrant grant{lease.lease, {}, 0, reason, age_ms};
    return finish("r", from("p1", 4, grant));
  }

  wire::LeaseRequest lease;
};

const wire::Miss kTail{MissKind::tail_partial, 2, 1, "", 0};

}  // namespace

TEST_CASE("node/miss: blocks that no node is known to have had are cold") {
  MissBench b;
  CHECK(b.serve(spec_of("r", tokens_of(1, 129))) == Misses{{MissKind::cold, 0, 2, "", 0}, kTail});
}

TEST_CASE("node/miss: the end of a prompt is a run of its own, of whole blocks too") {
  MissBench b;
  b.serve(spec_of("a", tokens_of(1, 128)));
  CHECK(b.serve(spec_of("b", tokens_of(1, 128))) == Misses{{MissKind::tail_partial, 1, 1, "", 0}});
  CHECK(b.serve(spec_of("c", tokens_of(2, 63))) == Misses{{MissKind::shorter_than_block, 0, 1, "", 0}});
}

TEST_CASE("node/miss: blocks evicted here are told with the node and the time since") {
  MissBench b(4);
  b.serve(spec_of("a", tokens_of(1, 129)));
  b.serve(spec_of("b", tokens_of(2, 200)));  // needs all four pages
  b.wait(3200ms);
  CHECK(b.serve(spec_of("a2", tokens_of(1, 129))) == Misses{{MissKind::evicted, 0, 2, "me", 3200}, kTail});
}

TEST_CASE("node/miss: what the holder of a block says is told, with its name") {
  const auto told = [](Fallback reason, uint64_t age_ms = 0) { return MissBench().refused(reason, age_ms); };
  const auto by_p1 = [](MissKind kind, uint64_t age_ms = 0) { return Misses{{kind, 0, 2, "p1", age_ms}, kTail}; };
  CHECK(told(Fallback::evicted, 700) == by_p1(MissKind::evicted, 700));
  CHECK(told(Fallback::layout) == by_p1(MissKind::layout));
  CHECK(told(Fallback::not_published_yet) == by_p1(MissKind::not_published_yet));
  CHECK(told(Fallback::corrupt) == by_p1(MissKind::checksum));
  CHECK(told(Fallback::unknown_peer) == by_p1(MissKind::node_down));
  CHECK(told(Fallback::refused) == by_p1(MissKind::no_space));
  CHECK(told(Fallback::absent) == Misses{{MissKind::cold, 0, 2, "", 0}, kTail});
}

TEST_CASE("node/miss: a holder that is lost, silent, or sends other bytes is named for it") {
  struct Row {
    Code code;
    MissKind kind;
  };
  for (const Row row : {Row{Code::peer_lost, MissKind::node_down}, Row{Code::corrupt, MissKind::checksum},
                        Row{Code::timeout, MissKind::timeout}}) {
    MissBench b;
    b.start(spec_of("r", tokens_of(1, 129)), 2);
    wire::LeaseGrant grant{b.lease.lease, {}, 1000};
    for (const auto& hash : b.lease.hashes) grant.blocks.push_back({hash, {}, 1, 0, {11, 12}});
    const auto reads = all<Read>(b.from("p1", 4, grant));
    REQUIRE(reads.size() == 1);
    CHECK(b.finish("r", b.give(ReadDone{reads[0].read, row.code, ""})) == Misses{{row.kind, 0, 2, "p1", 0}, kTail});
  }
  MissBench lost;
  lost.start(spec_of("r", tokens_of(1, 129)), 2);
  CHECK(lost.finish("r", lost.give(PeerLost{"p1", instance(4), "killed"})) ==
        Misses{{MissKind::node_down, 0, 2, "p1", 0}, kTail});
  MissBench silent;
  silent.start(spec_of("r", tokens_of(1, 129)), 2);
  silent.wait(4s);
  CHECK(silent.finish("r", silent.wait(1s)) == Misses{{MissKind::timeout, 0, 2, "p1", 0}, kTail});
}

TEST_CASE("node/miss: a holder that has only the first blocks says why it lacks the next one") {
  MissBench b;
  b.start(spec_of("r", tokens_of(1, 129)), 2);
  wire::LeaseGrant grant{b.lease.lease, {{b.lease.hashes[0], {}, 1, 0, {11, 12}}}, 1000, Fallback::evicted, 50};
  const auto reads = all<Read>(b.from("p1", 4, grant));
  REQUIRE(reads.size() == 1);
  CHECK(b.finish("r", b.give(ReadDone{reads[0].read, Code::ok, ""})) ==
        Misses{{MissKind::evicted, 1, 1, "p1", 50}, kTail});
}

TEST_CASE("node/miss: the same tokens under another salt or another attention are told as such") {
  MissBench b;
  b.serve(spec_of("plain", tokens_of(1, 129)));
  auto salted = spec_of("salted", tokens_of(1, 129));
  salted.salt = "pepper";
  salted.ns = namespace_of(layout_of(2)).with_salt("pepper").id();
  CHECK(b.serve(salted) == Misses{{MissKind::salt, 0, 2, "me", 0}, kTail});
  auto sparse = spec_of("sparse", tokens_of(1, 129));
  sparse.prefill_attention = "moba:block=64,top_k=1,full_last=0";
  kv::Namespace ns = namespace_of(layout_of(2));
  ns.attention = sparse.prefill_attention;
  sparse.ns = ns.id();
  CHECK(b.serve(sparse) == Misses{{MissKind::layout, 0, 2, "me", 0}, kTail});
}

TEST_CASE("node/miss: a request that wants no cached blocks is its own reason") {
  MissBench b;
  b.serve(spec_of("a", tokens_of(1, 129)));
  auto uncached = spec_of("b", tokens_of(1, 129));
  uncached.no_cache = true;
  CHECK(b.serve(uncached) == Misses{{MissKind::no_cache, 0, 2, "", 0}, kTail});
  auto scored = spec_of("c", tokens_of(1, 129));
  scored.prompt_logprobs = 0;
  CHECK(b.serve(scored) == Misses{{MissKind::prompt_logprobs, 0, 2, "", 0}, kTail});
}

TEST_CASE("node/miss: a request that may reuse nothing misses blocks for damage, and keeps the new ones") {
  MissBench b;
  b.serve(spec_of("a", tokens_of(1, 129)));
  auto last = spec_of("b", tokens_of(1, 129));
  last.reuse_nothing = true;
  CHECK(b.serve(last) == Misses{{MissKind::checksum, 0, 2, "", 0}, kTail});
  auto first = spec_of("c", tokens_of(2, 129));
  first.reuse_nothing = true;
  CHECK(b.serve(first) == Misses{{MissKind::checksum, 0, 2, "", 0}, kTail});
  CHECK(b.serve(spec_of("d", tokens_of(2, 129))) == Misses{kTail});
}

TEST_CASE("node/miss: a holder tells why it has a block no more") {
  MissBench b(4);
  const auto ids = tokens_of(1, 129);
  const auto ask = [&](const NamespaceId& ns) {
    wire::LeaseRequest request;
    static uint64_t leases = 0;
    request.lease = ++leases, request.ns = ns, request.ttl_ms = 1;
    request.hashes = kv::chain(ns, ids, 64);
    const auto grants = sent<wire::LeaseGrant>(b.from("p1", 4, request), "p1");
    REQUIRE(grants.size() == 1);
    return grants[0];
  };
  const NamespaceId ns = namespace_of(layout_of(2)).id();
  CHECK(ask(ns).reason == Fallback::absent);
  b.start(spec_of("a", ids));
  CHECK(ask(ns).reason == Fallback::not_published_yet);
  b.from_conductor(wire::Cancel{"a", 1, "client_gone"});
  MissBench full(4);
  full.serve(spec_of("a", ids));
  full.serve(spec_of("b", tokens_of(2, 200)));
  full.wait(500ms);
  wire::LeaseRequest request;
  request.lease = 1, request.ns = ns, request.hashes = kv::chain(ns, ids, 64);
  const auto grant = sent<wire::LeaseGrant>(full.from("p1", 4, request), "p1").at(0);
  CHECK(grant.reason == Fallback::evicted);
  CHECK(grant.age_ms == 500);
}

TEST_CASE("node/block_memory: it forgets the oldest eviction, and one whose block came back") {
  BlockMemory memory(3);
  const auto hashes = kv::chain(NamespaceId{}, std::vector<uint32_t>(64 * 5, 1), 64);
  const TimePoint start{};
  for (int i = 0; i < 4; ++i) memory.evicted(hashes[static_cast<size_t>(i)], start + i * 1s);
  CHECK_FALSE(memory.evicted_ago(hashes[0], start + 10s));
  CHECK(memory.evicted_ago(hashes[1], start + 10s) == 9s);
  memory.stored(hashes[1]);
  CHECK_FALSE(memory.evicted_ago(hashes[1], start + 10s));
  memory.evicted(hashes[2], start + 5s);  // again: the older entry no longer speaks for it
  memory.evicted(hashes[4], start + 6s);
  CHECK(memory.evicted_ago(hashes[2], start + 10s) == 5s);
}

TEST_CASE("node/block_memory: names of a prompt are told apart by salt first under one attention, and are bounded") {
  BlockMemory memory(2);
  const std::vector<uint32_t> one(64, 1), two(64, 2), three(64, 3);
  memory.computed(one, "full", "a");
  CHECK(memory.other_name(one, "full", "a") == MissKind::cold);
  CHECK(memory.other_name(one, "full", "b") == MissKind::salt);
  CHECK(memory.other_name(one, "moba", "a") == MissKind::layout);
  CHECK(memory.other_name(one, "moba", "b") == MissKind::cold);
  CHECK(memory.other_name(two, "full", "b") == MissKind::cold);
  memory.computed(two, "full", "a");
  memory.computed(three, "full", "a");
  CHECK(memory.other_name(one, "full", "b") == MissKind::cold);
  CHECK(memory.other_name(three, "full", "b") == MissKind::salt);
}

TEST_CASE("node/block_memory: neighbours with one reason and node are one run") {
  MissRuns runs;
  runs.add(2, MissKind::evicted, "p0", 5);
  runs.add(3, MissKind::evicted, "p0", 6);
  runs.add(4, MissKind::evicted, "p1", 7);
  runs.extend();
  runs.add(6, MissKind::cold);
  CHECK(runs.take() ==
        Misses{{MissKind::evicted, 2, 2, "p0", 5}, {MissKind::evicted, 4, 2, "p1", 7}, {MissKind::cold, 6, 1, "", 0}});
}

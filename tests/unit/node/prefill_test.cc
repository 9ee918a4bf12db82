// The prefill machine alone: page shortage between requests, and what peers may get wrong.

#include "node/prefill.h"

#include "bench.h"

namespace prefill_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

struct PrefillBench : Bench<Prefill, PrefillOptions> {
  explicit PrefillBench(uint32_t pages, uint32_t chunk_tokens = 4096)
      : Bench(wire::Role::prefill, pages, options(chunk_tokens)) {}
  PrefillBench(uint32_t pages, uint32_t chunk_tokens, uint32_t pass_tokens)
      : Bench(wire::Role::prefill, pages, options(chunk_tokens, pass_tokens)) {}
  static PrefillOptions options(uint32_t chunk_tokens, uint32_t pass_tokens = 0) {
    PrefillOptions o;
    o.chunk_tokens = chunk_tokens;
    o.pass_tokens = pass_tokens;
    return o;
  }
  Actions start(const wire::RequestSpec& spec, std::vector<wire::Source> sources = {}) {
    return from_conductor(wire::PrefillStart{spec, "d0", instance(2), std::move(sources)});
  }
  Actions accept(const std::string& req, uint32_t have = 0) { return from("d0", 2, wire::KvAccept{req, 1, have}); }
  Actions computed(uint64_t run) {
    ChunkDone done;
    done.run = run;
    done.sampled.token = 7;
    return give(done);
  }
  /// Operators ask this node alone.
  Actions ask(const std::string& req, std::vector<uint32_t> ids) {
    wire::PrefillStart start;
    start.spec = spec_of(req, std::move(ids), 1);
    return give(Received{NodeId(kOperators), InstanceId{}, std::move(start)});
  }
  /// One request from start to KvDone.
  void serve(const std::string& req, const std::vector<uint32_t>& ids) {
    start(spec_of(req, ids));
    const auto runs = all<RunChunk>(accept(req));
    REQUIRE(runs.size() == 1);
    CHECK(sent<wire::KvComplete>(computed(runs[0].run), "d0").size() == 1);
    from("d0", 2, wire::KvDone{req, 1});
    REQUIRE(machine.idle());
  }
};

std::vector<uint32_t> ids_of(uint32_t first, size_t count) {
  std::vector<uint32_t> ids(count, 5);
  ids[0] = first;
  return ids;
}

wire::LeaseGrant grant_of(const wire::LeaseRequest& request) {
  wire::LeaseGrant grant{request.lease, {}, 1000};
  BlockHash parent;
  for (const auto& hash : request.hashes) {
    grant.blocks.push_back({hash, parent, 1, 0, {11, 12}});
    parent = hash;
  }
  return grant;
}

}  // namespace

TEST_CASE("node/prefill: the offer names the holders that the conductor named for the decode node") {
  PrefillBench b(8);
  const std::vector<wire::Source> sources = {{"c0", instance(3), 0, 2, 0, true}};
  wire::PrefillStart start{spec_of("r", ids_of(1, 200)), "d0", instance(2), {}, sources};
  const auto offers = sent<wire::KvOffer>(b.from_conductor(start), "d0");
  REQUIRE(offers.size() == 1);
  CHECK(offers[0].sources == sources);
}

TEST_CASE("node/prefill: two requests whose cached prefixes fill the pool do not keep each other from starting") {
  PrefillBench b(10);
  b.serve("x", ids_of(1, 4 * 64 + 1));
  b.serve("y", ids_of(2, 4 * 64 + 1));
  b.start(spec_of("a", ids_of(1, 9 * 64)));
  b.start(spec_of("b", ids_of(2, 9 * 64)));
  const auto runs = all<RunChunk>(b.accept("a"));
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].start == 4 * 64);
  CHECK(all<RunChunk>(b.accept("b")).empty());
  b.computed(runs[0].run);
  const auto next = all<RunChunk>(b.from("d0", 2, wire::KvDone{"a", 1}));
  REQUIRE(next.size() == 1);
  b.computed(next[0].run);
  b.from("d0", 2, wire::KvDone{"b", 1});
  CHECK(b.machine.idle());
  CHECK(b.machine.stats().finished == 4);
}

TEST_CASE("node/prefill: short prompts that are ready share a pass, and none computes a block that another one does") {
  PrefillBench b(40, 512, 512);
  b.start(spec_of("busy", ids_of(1, 600)));
  const auto busy = all<RunChunk>(b.accept("busy"));
  REQUIRE(busy.size() == 1);
  CHECK_FALSE(busy[0].is_followed);
  // The third one begins as the first one, the fourth has no room.
  for (const auto& [req, first, count] :
       {std::tuple{"a", 2u, 100u}, {"b", 3u, 90u}, {"like-a", 2u, 100u}, {"large", 4u, 400u}}) {
    b.start(spec_of(req, ids_of(first, count)));
    CHECK(all<RunChunk>(b.accept(req)).empty());
  }
  const auto rest = all<RunChunk>(b.computed(busy[0].run));  // of a prompt that has more chunks: it has the pass alone
  REQUIRE(rest.size() == 1);
  CHECK_FALSE(rest[0].is_followed);
  const auto pass = all<RunChunk>(b.computed(rest[0].run));
  REQUIRE(pass.size() == 2);
  CHECK((pass[0].is_followed && pass[0].tokens == ids_of(2, 100)));
  CHECK((!pass[1].is_followed && pass[1].tokens == ids_of(3, 90)));
  b.now += 19ms;
  const Actions first = b.computed(pass[1].run);  // the ends come in any order
  CHECK(all<RunChunk>(first).empty());
  CHECK(sent<wire::FirstToken>(first, std::string(kConductor)).at(0).report.compute_ms == doctest::Approx(9));
  const Actions second = b.computed(pass[0].run);
  CHECK(sent<wire::FirstToken>(second, std::string(kConductor)).at(0).report.compute_ms == doctest::Approx(10));
  const auto next = all<RunChunk>(second);
  REQUIRE(next.size() == 2);
  CHECK((next[0].is_followed && next[0].start == 64 && next[0].tokens.size() == 36));
  CHECK((!next[1].is_followed && next[1].tokens.size() == 400));
  for (const RunChunk& run : next) b.computed(run.run);
  for (const char* req : {"busy", "a", "b", "like-a", "large"}) b.from("d0", 2, wire::KvDone{req, 1});
  CHECK(b.machine.idle());
}

TEST_CASE("node/prefill: a request that ends leaves the others of its pass, and the next pass waits for all of them") {
  PrefillBench b(40, 512, 512);
  b.start(spec_of("busy", ids_of(1, 10)));
  const auto busy = all<RunChunk>(b.accept("busy")).at(0);
  for (const char* req : {"2", "3", "4"}) {
    b.start(spec_of(req, ids_of(static_cast<uint32_t>(req[0]), 300)));
    b.accept(req);
  }
  b.start(spec_of("5", ids_of(5, 20)));
  b.accept("5");
  const auto pass = all<RunChunk>(b.computed(busy.run));
  REQUIRE(pass.size() == 2);  // 300 and 20 tokens
  CHECK(pass[1].tokens.size() == 20);
  CHECK(all<CancelRun>(b.from_conductor(wire::Cancel{"2", 1, "client"})).at(0).run == pass[0].run);
  CHECK(all<RunChunk>(b.computed(pass[1].run)).empty());
  ChunkDone cancelled;
  cancelled.run = pass[0].run, cancelled.code = Code::cancelled;
  CHECK(all<RunChunk>(b.give(cancelled)).size() == 1);
}

TEST_CASE("node/prefill: a lease of other blocks than asked for is given back and the prefix computed") {
  for (int lie = 0; lie < 3; ++lie) {
    CAPTURE(lie);
    PrefillBench b(10);
    const auto begun = b.start(spec_of("r", ids_of(1, 3 * 64 + 5)), {{"p1", instance(4), 0, 3, 0}});
    const auto asked = sent<wire::LeaseRequest>(begun, "p1");
    REQUIRE(asked.size() == 1);
    REQUIRE(asked[0].hashes.size() == 3);
    auto grant = grant_of(asked[0]);
    if (lie == 0) grant.blocks[1].hash = BlockHash{};
    if (lie == 1) grant.blocks.push_back(grant.blocks.back());
    if (lie == 2) grant.blocks[2].layer_crcs.pop_back();
    const auto after = b.from("p1", 4, grant);
    CHECK(all<Read>(after).empty());
    CHECK(sent<wire::LeaseRelease>(after, "p1").size() == 1);
    const auto runs = all<RunChunk>(b.accept("r"));
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].start == 0);
    const auto first = sent<wire::FirstToken>(b.computed(runs[0].run), std::string(kConductor));
    REQUIRE(first.size() == 1);
    CHECK(first[0].report.fallback == wire::Fallback::bad_grant);
  }
}

TEST_CASE("node/prefill: a lease is taken from the node that was asked for it, whoever knows its number") {
  PrefillBench b(10);
  const auto begun = b.start(spec_of("r", ids_of(1, 2 * 64 + 5)), {{"p1", instance(4), 0, 2, 0}});
  const auto asked = sent<wire::LeaseRequest>(begun, "p1").at(0);
  wire::LeaseGrant refusal{asked.lease, {}, 0, wire::Fallback::absent, 0};
  CHECK(b.from("p0", 1, grant_of(asked)).empty());
  CHECK(b.from("p0", 1, refusal).empty());
  CHECK(b.from("p1", 8, refusal).empty());  // another process of that name
  const auto reads = all<Read>(b.from("p1", 4, grant_of(asked)));
  REQUIRE(reads.size() == 1);
  CHECK(reads[0].peer == "p1");
}

TEST_CASE("node/prefill: a fetched block keeps its place in our own chain, whatever parent the holder names") {
  PrefillBench b(10);
  const auto begun = b.start(spec_of("r", ids_of(1, 2 * 64 + 5)), {{"p1", instance(4), 0, 2, 0}});
  auto grant = grant_of(sent<wire::LeaseRequest>(begun, "p1").at(0));
  grant.blocks[0].parent = grant.blocks[1].hash;
  grant.blocks[1].parent = grant.blocks[1].hash;
  const auto reads = all<Read>(b.from("p1", 4, grant));
  REQUIRE(reads.size() == 1);
  const auto events = sent<wire::BlockEvents>(b.give(ReadDone{reads[0].read, Code::ok, ""}), std::string(kConductor));
  REQUIRE(events.size() == 1);
  REQUIRE(events[0].events.size() == 2);
  CHECK(events[0].events[0].block.parent.is_zero());
  CHECK(events[0].events[1].block.parent == grant.blocks[0].hash);
}

TEST_CASE("node/prefill: a short prefix is fetched ahead of a long one") {
  const uint64_t block_bytes = layout_of(2).layers * layout_of(2).layer_bytes();
  const auto few = static_cast<uint32_t>(kUrgentBytes / block_bytes), many = few + 1;
  REQUIRE(few >= 1);
  for (const uint32_t blocks : {few, many}) {
    PrefillBench b(many + 4);
    const auto begun = b.start(spec_of("r", ids_of(1, blocks * 64 + 5)), {{"p1", instance(4), 0, blocks, 0}});
    const auto reads = all<Read>(b.from("p1", 4, grant_of(sent<wire::LeaseRequest>(begun, "p1").at(0))));
    REQUIRE(reads.size() == 1);
    CHECK(reads[0].urgent == (blocks == few));
  }
}

TEST_CASE("node/prefill: a read that fails or never ends costs the fetch, not the request") {
  PrefillBench b(10);
  const auto begun = b.start(spec_of("r", ids_of(1, 2 * 64 + 5)), {{"p1", instance(4), 0, 2, 0}});
  const auto reads = all<Read>(b.from("p1", 4, grant_of(sent<wire::LeaseRequest>(begun, "p1").at(0))));
  REQUIRE(reads.size() == 1);
  CHECK(reads[0].budget == 5s);  // the lease of 1 s would be renewed, but p1 does not answer
  CHECK(all<RunChunk>(b.accept("r")).empty());
  Actions late;
  for (int i = 0; i < 20 && all<RunChunk>(late).empty(); ++i) late = b.wait(200ms);
  REQUIRE(all<RunChunk>(late).size() == 1);
  CHECK(all<CancelRead>(late).size() == 1);
  CHECK(all<RunChunk>(late)[0].pages.size() == 3);
  b.computed(all<RunChunk>(late)[0].run);
  b.from("d0", 2, wire::KvDone{"r", 1});
  CHECK_FALSE(b.machine.idle());  // the pages of the read are still the transport's
  b.give(ReadDone{reads[0].read, Code::cancelled, ""});
  CHECK(b.machine.idle());
}

TEST_CASE("node/prefill: a decode node lost from sight is asked for, and a request for it waits for the answer") {
  PrefillBench b(10);
  b.give(PeerLost{"d0", instance(2), "link broken"});
  const auto beats = sent<wire::Heartbeat>(b.wait(200ms), std::string(kConductor));
  REQUIRE(beats.size() == 1);
  CHECK(beats[0].peers_version == 0);  // any other than the conductor's brings the membership again
  CHECK(sent<wire::Failed>(b.start(spec_of("r", ids_of(1, 100))), std::string(kConductor)).empty());
  wire::Peers peers{1, {{"d0", instance(2), wire::Role::decode, "sim:d0", {}}}};
  CHECK(sent<wire::KvOffer>(b.from_conductor(peers), "d0").size() == 1);
}

TEST_CASE("node/prefill: a decode node that does not come back into sight fails the request for another try") {
  PrefillBench b(10);
  b.give(PeerLost{"d0", instance(2), "killed"});
  b.start(spec_of("r", ids_of(1, 100)));
  std::vector<wire::Failed> failed;
  for (int i = 0; i < 10 && failed.empty(); ++i) failed = sent<wire::Failed>(b.wait(200ms), std::string(kConductor));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].retryable);
  CHECK(failed[0].code == "peer_lost");
  CHECK(b.machine.idle());
}

TEST_CASE("node/prefill: a decode node without a data connection is offered nothing until the connection is up") {
  PrefillBench b(10);
  b.give(DataLink{"d0", instance(2), "no transport reaches it: tcp: not enabled"});
  CHECK(b.machine.load().last_error == "data connection to d0 refused: no transport reaches it: tcp: not enabled");
  const Actions out = b.start(spec_of("r", ids_of(1, 100)));
  CHECK(sent<wire::KvOffer>(out, "d0").empty());
  const auto failed = sent<wire::Failed>(out, std::string(kConductor));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].retryable);
  CHECK(failed[0].stage == "accept");  // so the pair is at fault, and its breaker counts
  CHECK(failed[0].message == "no data connection to decode node d0: no transport reaches it: tcp: not enabled");
  b.give(DataLink{"d0", instance(2), ""});
  CHECK(sent<wire::KvOffer>(b.start(spec_of("s", ids_of(1, 100))), "d0").size() == 1);
}

TEST_CASE("node/prefill: a link to an instance that is no peer is not kept") {
  PrefillBench b(10);
  b.give(DataLink{"d0", instance(77), "no transport reaches it"});
  CHECK(b.machine.load().last_error.empty());
}

TEST_CASE("node/prefill: only the chosen decode node may accept, refuse, finish or cancel a request") {
  PrefillBench b(10);
  b.start(spec_of("r", ids_of(1, 100)));
  CHECK(all<RunChunk>(b.from("p1", 4, wire::KvAccept{"r", 1, 0})).empty());
  CHECK(sent<wire::Failed>(b.from("p1", 4, wire::KvRefuse{"r", 1, "draining", 0, 0}), std::string(kConductor)).empty());
  b.from("p1", 4, wire::Cancel{"r", 1, "client_gone"});
  CHECK(b.machine.request_count() == 1);
  CHECK(all<RunChunk>(b.accept("r", 1u << 31)).size() == 1);  // it claims more blocks than there are
  b.from("d0", 2, wire::KvDone{"r", 1});                      // too early: nothing is complete
  CHECK(b.machine.request_count() == 1);
}

TEST_CASE("node/prefill: the last error of a node is gone once the node has served") {
  PrefillBench b(10);
  b.start(spec_of("long", ids_of(1, 5000)));
  CHECK(b.machine.load().last_error.find("5000") != std::string::npos);
  b.serve("r", ids_of(1, 100));
  CHECK(b.machine.load().last_error == "");
}

TEST_CASE("node/prefill: a prompt that cannot be held is refused by name before any work") {
  PrefillBench b(4);
  const auto code = [&](const wire::RequestSpec& spec) {
    const auto failed = sent<wire::Failed>(b.start(spec), std::string(kConductor));
    REQUIRE(failed.size() == 1);
    CHECK_FALSE(failed[0].retryable);
    return failed[0].code;
  };
  CHECK(code(spec_of("a", ids_of(1, 5 * 64))) == "no_space");
  CHECK(code(spec_of("b", ids_of(1, 5000))) == "invalid");
  CHECK(code(spec_of("c", {})) == "invalid");
  auto foreign = spec_of("d", ids_of(1, 10));
  foreign.salt = "tenant";
  CHECK(code(foreign) == "layout");
  CHECK(b.machine.idle());
}

TEST_CASE("node/prefill: a reader that waits for blocks being computed gets them when they are, and not one by one") {
  PrefillBench b(20);
  const auto ids = ids_of(1, 4 * 64 + 9);
  const auto hashes = kv::chain(namespace_of(layout_of(2)).id(), ids, 64);
  b.start(spec_of("r", ids));
  wire::LeaseRequest request;
  request.lease = 5, request.ns = namespace_of(layout_of(2)).id(), request.hashes = hashes;
  request.ttl_ms = 1000, request.wait_ms = 5000;
  CHECK(sent<wire::LeaseGrant>(b.from("p1", 4, request), "p1").empty());
  const auto runs = all<RunChunk>(b.accept("r"));
  REQUIRE(runs.size() == 1);
  const auto grants = sent<wire::LeaseGrant>(b.computed(runs[0].run), "p1");
  REQUIRE(grants.size() == 1);
  CHECK(grants[0].blocks.size() == 4);
  b.from("p1", 4, wire::LeaseRelease{5});
  b.from("d0", 2, wire::KvDone{"r", 1});
  CHECK(b.machine.idle());
}

TEST_CASE("node/prefill: a reader that waits for a computation that fails is told at once") {
  PrefillBench b(20);
  const auto ids = ids_of(1, 4 * 64 + 9);
  b.start(spec_of("r", ids));
  wire::LeaseRequest request;
  request.lease = 5, request.ns = namespace_of(layout_of(2)).id();
  request.hashes = kv::chain(request.ns, ids, 64);
  request.ttl_ms = 1000, request.wait_ms = 5000;
  b.from("p1", 4, request);
  const auto grants = sent<wire::LeaseGrant>(b.from_conductor(wire::Cancel{"r", 1, "client_gone"}), "p1");
  REQUIRE(grants.size() == 1);
  CHECK(grants[0].blocks.empty());
  CHECK(b.machine.idle());
}

TEST_CASE("node/prefill: requests that a full decode node keeps waiting do not hold back those for another") {
  PrefillBench b(40);
  wire::Peers peers{2, {}};
  peers.peers = {{"d0", instance(2), wire::Role::decode, "sim:d0", {}},
                 {"d1", instance(5), wire::Role::decode, "sim:d1", {}}};
  b.from_conductor(peers);
  for (int i = 0; i < 6; ++i) b.start(spec_of("full" + std::to_string(i), ids_of(1, 70)));
  const auto out = b.from_conductor(wire::PrefillStart{spec_of("free", ids_of(2, 70)), "d1", instance(5), {}});
  CHECK(sent<wire::KvOffer>(out, "d1").size() == 1);
  CHECK(all<RunChunk>(b.from("d1", 5, wire::KvAccept{"free", 1, 0})).size() == 1);
}

TEST_CASE("node/prefill: a request id that no notify can carry is refused before any work") {
  PrefillBench b(10);
  for (const std::string& id : {std::string(), std::string(33, 'x')}) {
    const auto failed = sent<wire::Failed>(b.start(spec_of(id, ids_of(1, 70))), std::string(kConductor));
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].code == "invalid");
    CHECK(b.machine.idle());
  }
}

TEST_CASE("node/prefill: log-probabilities of the prompt come chunk by chunk, and nothing cached is used for them") {
  constexpr uint32_t kChunk = 128;
  PrefillBench b(100, kChunk);
  const auto ids = ids_of(1, 2 * kChunk + 5);
  b.serve("before", ids_of(1, kChunk));  // leaves its blocks in the pool
  auto spec = spec_of("r", ids);
  spec.prompt_logprobs = 1;
  b.start(spec);
  auto runs = all<RunChunk>(b.accept("r"));
  uint32_t next = 1;
  for (Actions out; !runs.empty(); runs = all<RunChunk>(out)) {
    const RunChunk& run = runs[0];
    CHECK(run.start + 1 == next);
    CHECK(run.prompt_logprobs == 1);
    const size_t end = std::min<size_t>(run.start + run.tokens.size() + 1, ids.size());
    CHECK(run.targets == std::vector<uint32_t>(ids.begin() + next, ids.begin() + static_cast<std::ptrdiff_t>(end)));
    ChunkDone done;
    done.run = run.run;
    done.prompt_logprobs.resize(run.targets.size());
    out = b.give(done);
    const auto told = sent<wire::PromptLogprobs>(out, std::string(kConductor));
    REQUIRE(told.size() == 1);
    CHECK(told[0].first == next);
    next += static_cast<uint32_t>(told[0].rows.size());
    const auto first = sent<wire::FirstToken>(out, std::string(kConductor));
    if (!first.empty()) CHECK(first[0].report.miss_reason() == wire::MissKind::prompt_logprobs);
  }
  CHECK(next == ids.size());
}

TEST_CASE("node/prefill: the chunk that draws a token alone has the grammar with the history") {
  PrefillBench b(100, 128);
  const auto ids = ids_of(1, 2 * 128 + 5);
  auto spec = spec_of("r", ids);
  spec.sampling.grammar = "{}";
  b.start(spec);
  auto runs = all<RunChunk>(b.accept("r"));
  size_t chunks = 0;
  for (; !runs.empty(); ++chunks) {
    const RunChunk& run = runs[0];
    CHECK(run.sampling.grammar == (run.sample ? "{}" : ""));
    CHECK(run.history == (run.sample ? ids : std::vector<uint32_t>()));
    CHECK(run.sample == (chunks == 2));
    ChunkDone done;
    done.run = run.run;
    runs = all<RunChunk>(b.give(done));
  }
  CHECK(chunks == 3);
}

TEST_CASE("node/prefill: a request does not compute blocks that an earlier one is fetching, unless the fetch fails") {
  for (const bool fails : {false, true}) {
    CAPTURE(fails);
    PrefillBench b(40);
    const auto ids = ids_of(9, 64 * 4 + 1);
    const Actions started = b.start(spec_of("first", ids), {{"p1", instance(4), 0, 4}});
    const auto asked = sent<wire::LeaseRequest>(started, "p1");
    REQUIRE(asked.size() == 1);
    b.start(spec_of("second", ids));
    CHECK(all<RunChunk>(b.accept("second")).empty());
    const auto reads = all<Read>(b.from("p1", 4, grant_of(asked[0])));
    REQUIRE(reads.size() == 1);
    const auto runs = all<RunChunk>(b.give(ReadDone{reads[0].read, fails ? Code::io : Code::ok, ""}));
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].start == (fails ? 0 : 64 * 4));
  }
}

TEST_CASE("node/prefill: a cached block whose bytes changed is dropped, told as such, and computed again") {
  PrefillBench b(16);
  const auto ids = ids_of(1, 200);
  b.start(spec_of("first", ids));
  const auto run = all<RunChunk>(b.accept("first")).at(0);
  CHECK(run.prefix_crcs.empty());
  for (const uint32_t layer : {0u, 1u}) b.give(LayerDone{run.run, layer, 0, {10 + layer, 20 + layer, 30 + layer, 40}});
  b.computed(run.run);
  b.from("d0", 2, wire::KvDone{"first", 1});

  b.start(spec_of("second", ids));
  const auto again = all<RunChunk>(b.accept("second")).at(0);
  CHECK(again.prefix_crcs == std::vector<uint32_t>{10, 11, 20, 21, 30, 31});
  ChunkDone done;
  done.run = again.run, done.code = Code::corrupt, done.rotten = {1};
  const auto failed = sent<wire::Failed>(b.give(done), "conductor");
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].retryable);
  CHECK(failed[0].code == "corrupt");
  CHECK(b.machine.stats().checksum_failures == 1);

  wire::RequestSpec retried = spec_of("second", ids);
  retried.attempt = 2;
  b.start(retried);
  const auto third = all<RunChunk>(b.from("d0", 2, wire::KvAccept{"second", 2, 0})).at(0);
  CHECK(third.start == 64);  // the block before it stays
  CHECK(third.prefix_crcs == std::vector<uint32_t>{10, 11});
  for (const uint32_t layer : {0u, 1u}) b.give(LayerDone{third.run, layer, 1, {20 + layer, 30 + layer, 40}});
  const auto first = sent<wire::FirstToken>(b.computed(third.run), "conductor");
  REQUIRE(first.size() == 1);
  using wire::MissKind;
  CHECK(first[0].report.misses ==
        std::vector<wire::Miss>{{MissKind::checksum, 1, 2, "me", 0}, {MissKind::tail_partial, 3, 1, "", 0}});
  b.from("d0", 2, wire::KvDone{"second", 2});
  CHECK(b.machine.idle());
}

TEST_CASE("node/prefill: a request that waits with a block which another finds rotten computes that block") {
  PrefillBench b(32);
  const auto ids = ids_of(1, 200);
  b.start(spec_of("first", ids));
  const auto run = all<RunChunk>(b.accept("first")).at(0);
  for (const uint32_t layer : {0u, 1u}) b.give(LayerDone{run.run, layer, 0, {10 + layer, 20 + layer, 30 + layer, 40}});
  b.computed(run.run);
  b.from("d0", 2, wire::KvDone{"first", 1});

  b.start(spec_of("second", ids));
  const auto again = all<RunChunk>(b.accept("second")).at(0);
  b.start(spec_of("third", ids));  // its blocks are pinned while the second one computes
  CHECK(all<RunChunk>(b.accept("third")).empty());
  ChunkDone done;
  done.run = again.run, done.code = Code::corrupt, done.rotten = {1};
  const auto third = all<RunChunk>(b.give(done));
  REQUIRE(third.size() == 1);
  CHECK(third[0].start == 64);
  CHECK(third[0].prefix_crcs == std::vector<uint32_t>{10, 11});
}

TEST_CASE("node/prefill: operators get a first token without a decode node, and its blocks serve the next prompt") {
  PrefillBench b(10, 128);
  const auto first = b.ask("#operators-1", ids_of(1, 3 * 64 + 1));
  auto runs = all<RunChunk>(first);
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].start == 0);
  CHECK(sent<wire::KvOffer>(first, "").empty());
  LayerDone layer{runs[0].run, 0, 0, {1, 2}};
  CHECK(all<SendNotify>(b.give(layer)).empty());
  runs = all<RunChunk>(b.computed(runs[0].run));
  REQUIRE(runs.size() == 1);
  const auto told = b.computed(runs[0].run);
  const auto tokens = sent<wire::FirstToken>(told, std::string(kOperators));
  REQUIRE(tokens.size() == 1);
  CHECK(tokens[0].token == 7);
  CHECK(tokens[0].report.cached_local == 0);
  CHECK(tokens[0].report.chunks == 2);
  CHECK(all<Send>(told).size() == 1 + sent<wire::BlockEvents>(told, std::string(kConductor)).size());
  CHECK(b.machine.idle());

  const auto again = all<RunChunk>(b.ask("#operators-2", ids_of(1, 3 * 64 + 1)));
  REQUIRE(again.size() == 1);
  CHECK(again[0].start == 3 * 64);
  const auto second = sent<wire::FirstToken>(b.computed(again[0].run), std::string(kOperators));
  REQUIRE(second.size() == 1);
  CHECK(second[0].report.cached_local == 3 * 64);
  CHECK(b.machine.idle());
  b.serve("cluster", ids_of(1, 3 * 64 + 1));  // and a request of the conductor
}

TEST_CASE("node/prefill: what operators ask survives the loss of the conductor and is refused by name to them alone") {
  PrefillBench b(4);
  const auto runs = all<RunChunk>(b.ask("#operators-1", ids_of(1, 100)));
  REQUIRE(runs.size() == 1);
  b.start(spec_of("r", ids_of(2, 100)));
  b.give(PeerLost{std::string(kConductor), instance(kConductorNumber), "killed"});
  CHECK(b.machine.request_count() == 1);
  CHECK_FALSE(b.machine.registration().is_member());
  CHECK(sent<wire::FirstToken>(b.computed(runs[0].run), std::string(kOperators)).size() == 1);
  const auto refused = b.ask("#operators-2", ids_of(1, 5 * 64));
  const auto failed = sent<wire::Failed>(refused, std::string(kOperators));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].code == "no_space");
  CHECK(sent<wire::Failed>(refused, std::string(kConductor)).empty());
  CHECK(b.machine.idle());
}

TEST_CASE("node/prefill: only operators cancel what they asked, and its deadline ends it") {
  PrefillBench b(10);
  const auto runs = all<RunChunk>(b.ask("#operators-1", ids_of(1, 100)));
  REQUIRE(runs.size() == 1);
  b.from_conductor(wire::Cancel{"#operators-1", 1, "client_gone"});
  b.from("d0", 2, wire::Cancel{"#operators-1", 1, "client_gone"});
  b.give(Received{"stranger", InstanceId{}, wire::KvRefuse{"#operators-1", 1, "draining", 0, 0}});
  CHECK(b.machine.request_count() == 1);
  CHECK(
      all<CancelRun>(b.give(Received{NodeId(kOperators), InstanceId{}, wire::Cancel{"#operators-1", 1, "client_gone"}}))
          .size() == 1);
  CHECK(b.machine.request_count() == 0);
  b.computed(runs[0].run);
  CHECK(b.machine.idle());

  REQUIRE(all<RunChunk>(b.ask("#operators-2", ids_of(1, 100))).size() == 1);
  std::vector<wire::Failed> failed;
  for (int i = 0; i < 80 && failed.empty(); ++i) failed = sent<wire::Failed>(b.wait(1s), std::string(kOperators));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].code == "timeout");
}

}  // namespace prefill_test

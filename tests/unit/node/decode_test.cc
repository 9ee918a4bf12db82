// The decode machine alone: page shortage, preemption, and what peers may get wrong.

#include "node/decode.h"

#include <deque>

#include "bench.h"

namespace decode_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

struct DecodeBench : Bench<Decode, DecodeOptions> {
  explicit DecodeBench(uint32_t pages, const DecodeOptions& options = {}) : Bench(wire::Role::decode, pages, options) {}
  Actions offer(const wire::RequestSpec& spec) { return from("p0", 1, wire::KvOffer{spec}); }
  Actions ready(const std::string& req, uint32_t layer, uint32_t first, size_t count) {
    return give(Notified{"p0", instance(1), {req, 1, layer, first, std::vector<wire::ReadyExtent>(count)}});
  }
  /// Offered, read and complete: returns what the last message brought.
  Actions join(const wire::RequestSpec& spec) {
    const auto accepted = sent<wire::KvAccept>(offer(spec), "p0");
    REQUIRE(accepted.size() == 1);
    const auto blocks = kv::blocks_for(spec.ids.size(), 64);
    for (uint32_t layer = 0; layer < 2; ++layer)
      for (const auto& read :
           all<Read>(ready(spec.req, layer, accepted[0].have_blocks, blocks - accepted[0].have_blocks)))
        give(ReadDone{read.read, Code::ok, ""});
    return from("p0", 1, wire::KvComplete{spec.req, 1, static_cast<uint32_t>(spec.ids.size()), 3});
  }
  Actions stepped(const RunStep& run, uint32_t token = 4) {
    run.rows->out.clear();
    for (const auto& row : run.rows->in) {
      StepRow out;
      out.sampled.token = token;
      if ((row.position + 1) % 64 == 0) out.sealed_crcs.assign(2, 0);
      run.rows->out.push_back(out);
    }
    return give(StepDone{run.run, Code::ok, "", run.rows, 0s});
  }
};

std::vector<uint32_t> ids_of(uint32_t first, size_t count) {
  std::vector<uint32_t> ids(count, 5);
  ids[0] = first;
  return ids;
}

const std::string kTo(kConductor);

}  // namespace

TEST_CASE("node/decode: when pages run out the request that came last gives way, and the oldest finishes") {
  DecodeBench b(5);
  auto runs = all<RunStep>(b.join(spec_of("old", ids_of(1, 2 * 64 - 2), 150)));
  REQUIRE(runs.size() == 1);
  b.join(spec_of("young", ids_of(2, 2 * 64 - 2), 150));
  std::vector<std::string> preempted;
  bool finished = false;
  for (int step = 0; step < 300 && !finished; ++step) {
    const Actions out = b.stepped(runs.at(0));
    for (const auto& p : sent<wire::Preempted>(out, kTo)) preempted.push_back(p.req);
    for (const auto& tokens : sent<wire::Tokens>(out, kTo))
      for (const auto& row : tokens.rows) finished |= row.req == "old" && row.finish_reason == "length";
    runs = all<RunStep>(out);
  }
  CHECK(finished);
  CHECK(preempted == std::vector<std::string>{"young"});
  CHECK(b.machine.idle());
}

TEST_CASE("node/decode: alone and short of pages that a lease holds, a request waits for the lease and goes on") {
  DecodeBench b(8);
  const auto old_ids = ids_of(1, 3 * 64 + 1);
  auto runs = all<RunStep>(b.join(spec_of("first", old_ids, 2)));
  b.stepped(runs.at(0));
  REQUIRE(b.machine.idle());
  wire::LeaseRequest request;
  request.lease = 9, request.ns = namespace_of(layout_of(2)).id();
  request.hashes = kv::chain(request.ns, old_ids, 64);
  request.ttl_ms = 20000;
  CHECK(sent<wire::LeaseGrant>(b.from("p1", 4, request), "p1").at(0).blocks.size() == 3);
  runs = all<RunStep>(b.join(spec_of("second", ids_of(2, 5 * 64 - 2), 50)));
  Actions out;
  while (!runs.empty()) out = b.stepped(runs[0]), runs = all<RunStep>(out);
  CHECK(sent<wire::Failed>(out, kTo).empty());
  CHECK(sent<wire::Preempted>(out, kTo).empty());
  CHECK(b.machine.request_count() == 1);
  b.from("p1", 4, wire::LeaseRelease{9});
  CHECK(all<RunStep>(b.wait(200ms)).size() == 1);
}

TEST_CASE("node/decode: a request that may reuse nothing receives blocks that are here, too") {
  DecodeBench b(16);
  auto spec = spec_of("a", ids_of(1, 3 * 64 + 1), 2);
  b.stepped(all<RunStep>(b.join(spec)).at(0));
  const auto have = [&](const std::string& req, bool reuse_nothing) {
    spec.req = req, spec.reuse_nothing = reuse_nothing;
    return sent<wire::KvAccept>(b.offer(spec), "p0").at(0).have_blocks;
  };
  CHECK(have("b", false) == 3);
  CHECK(have("c", true) == 0);
}

TEST_CASE("node/decode: an offer waits for pages in order of arrival, and ends with its prefill node") {
  DecodeBench b(6);
  auto runs = all<RunStep>(b.join(spec_of("a", ids_of(1, 4 * 64), 5)));
  CHECK(sent<wire::KvAccept>(b.offer(spec_of("b", ids_of(2, 4 * 64))), "p0").empty());
  CHECK(sent<wire::KvAccept>(b.offer(spec_of("c", ids_of(3, 10))), "p0").empty());
  Actions out;
  std::vector<std::string> accepted;
  for (; !runs.empty(); runs = all<RunStep>(out)) {
    out = b.stepped(runs[0]);
    for (const auto& a : sent<wire::KvAccept>(out, "p0")) accepted.push_back(a.req);
  }
  CHECK(accepted == std::vector<std::string>{"b", "c"});
  CHECK(sent<wire::Failed>(b.give(PeerLost{"p0", instance(1), "killed"}), kTo).size() == 2);
  CHECK(b.machine.idle());
}

TEST_CASE("node/decode: a lost stage of the prefill node ends what is read from it, a node of such a name does not") {
  for (const wire::Role role : {wire::Role::stage, wire::Role::prefill}) {
    DecodeBench b(8);
    const wire::Peers before{
        2, {{"p0", instance(1), wire::Role::prefill, "sim:p0", {}}, {"p0.1", instance(8), role, "sim:p0.1", {}}}};
    b.from_conductor(before);
    REQUIRE(sent<wire::KvAccept>(b.offer(spec_of("r", ids_of(1, 100))), "p0").size() == 1);
    const Actions out = b.from_conductor(wire::Peers{3, {before.peers[0]}});
    CHECK(sent<wire::Failed>(out, kTo).size() == (role == wire::Role::stage ? 1 : 0));
  }
}

TEST_CASE("node/decode: a row that its grammar refuses is the request's fault, and a lack of memory is not") {
  for (const Code code : {Code::invalid, Code::no_space, Code::busy}) {
    DecodeBench b(8);
    const auto runs = all<RunStep>(b.join(spec_of("r", ids_of(1, 10), 5)));
    REQUIRE(runs.size() == 1);
    StepRow refused;
    refused.refusal = Error{code, "no token follows the grammar"};
    runs[0].rows->out.assign(1, refused);
    const auto failed = sent<wire::Failed>(b.give(StepDone{runs[0].run, Code::ok, "", runs[0].rows, 0s}), kTo);
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].code == to_string(reason_of(code)));
    CHECK(failed[0].retryable == (code != Code::invalid));
    CHECK(b.machine.idle());
  }
}

namespace {

constexpr DecodeOptions kTwoSteps{.steps_max = 2};

/// A request that token 7 ends.
wire::RequestSpec stoppable(const std::string& req, uint32_t tokens) {
  auto spec = spec_of(req, ids_of(1, tokens), 50);
  spec.stopping.stop_ids = {7};
  return spec;
}

}  // namespace

TEST_CASE("node/decode: a request that stops under a second step keeps its pages until that step has ended") {
  DecodeBench b(8, kTwoSteps);
  const auto runs = all<RunStep>(b.join(stoppable("r", 63)));
  REQUIRE(runs.size() == 2);
  CHECK(runs[1].rows->in[0].token == RunRow::kFed);
  CHECK(runs[1].rows->in[0].page != RunRow::kNoPage);  // a page of its own, for a row in vain
  const Actions out = b.stepped(runs[0], 7);
  const auto tokens = sent<wire::Tokens>(out, kTo);
  REQUIRE(tokens.size() == 1);
  CHECK(tokens[0].rows.at(0).finish_reason == "stop");
  CHECK(all<RunStep>(out).empty());
  CHECK(all<CollectSteps>(out).size() == 1);
  CHECK(all<LeaveBatch>(out).empty());
  CHECK_FALSE(b.machine.idle());
  CHECK(b.machine.shelf()->pool.state(runs[1].rows->in[0].page) == kv::PageState::owned);
  const Actions last = b.stepped(runs[1]);
  CHECK(sent<wire::Tokens>(last, kTo).empty());  // the row was computed in vain
  CHECK(all<LeaveBatch>(last).size() == 1);
  CHECK(b.machine.shelf()->pool.state(runs[1].rows->in[0].page) == kv::PageState::free);
  CHECK(b.machine.idle());
}

TEST_CASE("node/decode: a request that is cancelled under two steps leaves the compute after the second one") {
  DecodeBench b(8, kTwoSteps);
  const auto runs = all<RunStep>(b.join(stoppable("r", 10)));
  REQUIRE(runs.size() == 2);
  CHECK(all<LeaveBatch>(b.from_conductor(wire::Cancel{"r", 1, "client"})).empty());
  const Actions first = b.stepped(runs[0]);
  CHECK(all<LeaveBatch>(first).empty());
  CHECK(all<RunStep>(first).empty());
  CHECK(all<LeaveBatch>(b.stepped(runs[1])).size() == 1);
  CHECK(b.machine.idle());
}

TEST_CASE("node/decode: a request joins the step behind those under way, and leaves the others theirs") {
  DecodeBench b(16, kTwoSteps);
  auto runs = all<RunStep>(b.join(stoppable("old", 10)));
  REQUIRE(runs.size() == 2);
  CHECK(all<RunStep>(b.join(stoppable("new", 20))).empty());
  const Actions out = b.stepped(runs[0]);
  CHECK(all<JoinBatch>(out).size() == 1);
  const auto joined = all<RunStep>(out).at(0);
  REQUIRE(joined.rows->in.size() == 2);
  CHECK(joined.rows->in[0].token == RunRow::kFed);
  CHECK(joined.rows->in[1].token == 3);  // its first token came with the hand-over
  CHECK(joined.rows->in[1].joined);
}

TEST_CASE("node/decode: a step that fails ends its requests, and the step behind it gives their pages back") {
  DecodeBench b(8, kTwoSteps);
  const auto runs = all<RunStep>(b.join(stoppable("r", 10)));
  REQUIRE(runs.size() == 2);
  const Actions out = b.give(StepDone{runs[0].run, Code::io, "the device failed", runs[0].rows, 0s});
  CHECK(sent<wire::Failed>(out, kTo).size() == 1);
  CHECK(all<LeaveBatch>(out).empty());
  const Actions last = b.give(StepDone{runs[1].run, Code::io, "the device failed", runs[1].rows, 0s});
  CHECK(sent<wire::Failed>(last, kTo).empty());
  CHECK(all<LeaveBatch>(last).size() == 1);
  CHECK(b.machine.idle());
}

TEST_CASE("node/decode: nobody gives way for a row behind a step under way, which waits for that step") {
  DecodeBench b(4, kTwoSteps);
  const auto old = all<RunStep>(b.join(spec_of("old", ids_of(1, 2 * 64 - 2), 150)));
  REQUIRE(old.size() == 2);
  b.join(spec_of("young", ids_of(2, 63), 150));
  const auto third = all<RunStep>(b.stepped(old[0])).at(0);
  REQUIRE(third.rows->in.size() == 2);
  CHECK(third.rows->in[0].page != RunRow::kNoPage);  // the last page of the pool
  const Actions short_of_pages = b.stepped(old[1]);
  CHECK(sent<wire::Preempted>(short_of_pages, kTo).empty());
  const auto fourth = all<RunStep>(short_of_pages).at(0);
  REQUIRE(fourth.rows->in.size() == 1);  // young's next row needs a page
  CHECK(fourth.rows->in[0].position == 129);
  const auto preempted = sent<wire::Preempted>(b.stepped(third), kTo);
  REQUIRE(preempted.size() == 1);
  CHECK(preempted[0].req == "young");
}

TEST_CASE(
    "node/decode: with two steps under way the oldest finishes when pages run out, and one victim at a time goes") {
  DecodeBench b(6, kTwoSteps);
  std::deque<RunStep> under_way;
  std::vector<std::string> preempted;
  bool is_done = false;
  const auto take = [&](const Actions& out) {
    for (const auto& next : all<RunStep>(out)) under_way.push_back(next);
    for (const auto& p : sent<wire::Preempted>(out, kTo)) preempted.push_back(p.req);
    for (const auto& tokens : sent<wire::Tokens>(out, kTo))
      for (const auto& row : tokens.rows) is_done |= row.req == "old" && row.finish_reason == "length";
  };
  take(b.join(spec_of("old", ids_of(1, 2 * 64 - 2), 150)));
  take(b.join(spec_of("young", ids_of(2, 40), 150)));
  take(b.join(spec_of("last", ids_of(3, 40), 150)));
  for (int step = 0; step < 400 && !is_done; ++step) {
    REQUIRE_FALSE(under_way.empty());
    const RunStep run = under_way.front();
    under_way.pop_front();
    take(b.stepped(run));
    take(b.from_conductor(wire::HeartbeatAck{true}));  // an event between two steps
  }
  CHECK(is_done);
  CHECK(preempted == std::vector<std::string>{"last", "young"});
}

TEST_CASE("node/decode: a batch with a grammar waits for the tokens of each step") {
  DecodeBench b(8, kTwoSteps);
  auto spec = stoppable("r", 10);
  spec.sampling.grammar = "{}";
  const Actions out = b.join(spec);
  CHECK(all<RunStep>(out).size() == 1);
  CHECK(all<CollectSteps>(out).size() == 1);
}

TEST_CASE("node/decode: the pages of a request whose hand-over is short go to the offer that waits for them at once") {
  DecodeBench b(3);
  const auto spec = spec_of("r", ids_of(1, 2 * 64 + 1));
  CHECK(sent<wire::KvAccept>(b.offer(spec), "p0").size() == 1);
  CHECK(sent<wire::KvAccept>(b.offer(spec_of("s", ids_of(2, 100))), "p0").empty());
  const Actions out = b.from("p0", 1, wire::KvComplete{"r", 1, 7, 3});
  CHECK(sent<wire::Failed>(out, kTo).size() == 1);
  const auto accepted = sent<wire::KvAccept>(out, "p0");
  REQUIRE(accepted.size() == 1);
  CHECK(accepted[0].req == "s");
}

TEST_CASE("node/decode: extents announced beyond the prompt end the request, and nothing is read") {
  for (int lie = 0; lie < 4; ++lie) {
    CAPTURE(lie);
    DecodeBench b(10);
    CHECK(sent<wire::KvAccept>(b.offer(spec_of("r", ids_of(1, 100))), "p0").size() == 1);
    const uint32_t layer = lie == 0 ? 2 : 0, first = lie == 1 ? 2 : lie == 2 ? 0xffffffff : 1;
    const Actions out = b.ready("r", layer, first, lie == 3 ? 2 : 1);
    CHECK(all<Read>(out).empty());
    REQUIRE(sent<wire::Failed>(out, kTo).size() == 1);
    CHECK(sent<wire::Failed>(out, kTo)[0].code == "corrupt");
    CHECK(sent<wire::Cancel>(out, "p0").size() == 1);
    CHECK(b.machine.idle());
  }
}

TEST_CASE("node/decode: an extent announced twice is read once; one announced by a stranger never") {
  DecodeBench b(10);
  b.offer(spec_of("r", ids_of(1, 100)));
  CHECK(all<Read>(b.give(Notified{"p1", instance(4), {"r", 1, 0, 0, std::vector<wire::ReadyExtent>(2)}})).empty());
  CHECK(all<Read>(b.ready("r", 0, 0, 2)).size() == 1);
  CHECK(all<Read>(b.ready("r", 0, 0, 2)).empty());
}

TEST_CASE("node/decode: reads of the last chunk are urgent, earlier ones are until the prefill is complete") {
  DecodeBench b(20);
  b.offer(spec_of("r", ids_of(1, 10 * 64)));
  const auto urgent = [](const Actions& out) {
    const auto reads = all<Read>(out);
    REQUIRE(reads.size() == 1);
    return reads[0].urgent;
  };
  CHECK_FALSE(urgent(b.ready("r", 0, 0, 4)));
  CHECK_FALSE(urgent(b.ready("r", 1, 0, 4)));
  CHECK(urgent(b.ready("r", 0, 8, 2)));
  const auto late = all<Read>(b.ready("r", 0, 4, 4)).at(0);
  CHECK_FALSE(late.urgent);
  b.from("p0", 1, wire::KvComplete{"r", 1, 10 * 64, 3});
  CHECK(urgent(b.ready("r", 1, 4, 4)));
  CHECK(urgent(b.give(ReadDone{late.read, Code::corrupt, "crc"})));  // asked for again, and now waited for
}

TEST_CASE("node/decode: KvComplete that counts other tokens than the prompt has ends the request as corrupt") {
  DecodeBench b(10);
  b.offer(spec_of("r", ids_of(1, 100)));
  const auto failed = sent<wire::Failed>(b.from("p0", 1, wire::KvComplete{"r", 1, 99, 3}), kTo);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].code == "corrupt");
  CHECK(failed[0].retryable);
  CHECK(b.machine.idle());
}

TEST_CASE("node/decode: complete, with an announcement lost, a request gives up after a while and says how many") {
  DecodeBench b(10);
  b.offer(spec_of("r", ids_of(1, 100)));
  for (const auto& read : all<Read>(b.ready("r", 0, 0, 2))) b.give(ReadDone{read.read, Code::ok, ""});
  b.from("p0", 1, wire::KvComplete{"r", 1, 100, 3});
  std::vector<wire::Failed> failed;
  for (int i = 0; i < 15 && failed.empty(); ++i) failed = sent<wire::Failed>(b.wait(200ms), kTo);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].message == "prefill node p0 ended the hand-over without announcing 2 extents of the KV");
  CHECK(b.machine.idle());
}

TEST_CASE("node/decode: a block that does not match its checksum is read again, and a liar is given up") {
  DecodeBench b(10);
  b.offer(spec_of("r", ids_of(1, 60)));
  auto reads = all<Read>(b.ready("r", 0, 0, 1));
  Actions out;
  int tries = 0;
  for (; !reads.empty(); reads = all<Read>(out), ++tries) out = b.give(ReadDone{reads[0].read, Code::corrupt, "crc"});
  CHECK(tries == 4);
  CHECK(sent<wire::Failed>(out, kTo).size() == 1);
  CHECK(b.machine.stats().checksum_failures == 4);
  CHECK(b.machine.idle());
}

TEST_CASE(
    "node/decode: an offer from a node not listed yet waits for the list, and is refused when that does not come") {
  DecodeBench b(4);
  const wire::KvOffer offer{spec_of("r", ids_of(1, 4))};
  CHECK(sent<wire::KvRefuse>(b.from("x", 77, offer), "x").empty());
  CHECK_FALSE(b.machine.idle());
  const auto refused = sent<wire::KvRefuse>(b.wait(1s), "x");
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].reason == "unknown_peer");
  CHECK(b.machine.idle());

  CHECK(sent<wire::KvRefuse>(b.from("x", 77, offer), "x").empty());
  wire::Peers peers{2, {}};
  peers.peers = {{"x", instance(77), wire::Role::prefill, "sim:x", {}}};
  CHECK(sent<wire::KvAccept>(b.from_conductor(peers), "x").size() == 1);

  CHECK(sent<wire::KvRefuse>(b.from("y", 78, wire::KvOffer{spec_of("s", ids_of(1, 4))}), "y").empty());
  b.from_conductor(wire::Cancel{"s", 1, "client"});
  CHECK(sent<wire::KvRefuse>(b.wait(1s), "y").empty());
}

TEST_CASE("node/decode: an offer that cannot be held is refused by name") {
  DecodeBench b(4);
  const auto reason = [&](const wire::RequestSpec& spec, const std::string& name = "p0", uint8_t n = 1) {
    const auto refused = sent<wire::KvRefuse>(b.from(name, n, wire::KvOffer{spec}), name);
    REQUIRE(refused.size() == 1);
    return refused[0].reason;
  };
  CHECK(reason(spec_of("a", {})) == "too_long");
  CHECK(reason(spec_of("b", ids_of(1, 4 * 64))) == "too_long");
  auto resumed = spec_of("c", ids_of(1, 4));
  resumed.resumed = 5;
  CHECK(reason(resumed) == "too_long");
  auto foreign = spec_of("d", ids_of(1, 4));
  foreign.prefill_attention = "moba:block=64,top_k=1,full_last=0";
  CHECK(reason(foreign) == "layout");
  auto promised = spec_of("f", ids_of(1, 4));
  promised.tbt_slo_ms = 1e-9;
  CHECK(reason(promised) == "predicted_slo_miss");
  b.from_conductor(wire::Drain{true});
  CHECK(reason(spec_of("g", ids_of(1, 4))) == "draining");
  CHECK(b.machine.idle());
}

}  // namespace decode_test

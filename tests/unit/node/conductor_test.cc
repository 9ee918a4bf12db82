// The conductor machine alone, fed with hand-made messages.

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "conductor_bench.h"

namespace conductor_test {

using namespace mc;
using namespace mc::node;

TEST_CASE("node/conductor: a request without a decode node is rejected by name, at once") {
  Bench b;
  b.hello(wire::Role::prefill, "p0", 1);
  const auto replies = Bench::replies(b.submit("r"));
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].kind == Reply::Kind::rejected);
  CHECK(replies[0].reason == Reason::no_decode);
}

TEST_CASE("node/conductor: tokens that overtake the first token wait for it") {
  Bench b;
  start(b);
  CHECK(Bench::sent<wire::PrefillStart>(b.submit("r"), "p0").size() == 1);
  CHECK(Bench::replies(b.token("r", 1, 11)).empty());
  const auto replies = Bench::replies(b.first_token("r", 1, 10));
  REQUIRE(replies.size() == 2);
  CHECK(replies[0].token == 10);
  CHECK(replies[1].token == 11);
  CHECK(Bench::replies(b.token("r", 2, 12, "stop")).back().kind == Reply::Kind::finished);
  CHECK(b.conductor.idle());
}

TEST_CASE("node/conductor: asked to, the first token waits for the second, and alone only when it ends the answer") {
  ConductorOptions o = Bench::options();
  o.sched.first_with_second = true;
  Bench b(o);
  start(b);
  b.submit("r");
  CHECK(Bench::replies(b.first_token("r", 1, 10)).empty());
  const auto replies = Bench::replies(b.token("r", 1, 11));
  REQUIRE(replies.size() == 2);
  CHECK(replies[0].token == 10);
  CHECK(replies[1].token == 11);
  CHECK(Bench::replies(b.token("r", 2, 12)).size() == 1);
  b.submit("short");
  const auto alone = Bench::replies(b.first_token("short", 1, 10, "stop"));
  REQUIRE(alone.size() == 2);
  CHECK(alone[1].kind == Reply::Kind::finished);
  // a decode node that dies before the second token: the client has heard nothing, and is not told the first twice
  b.submit("retried");
  b.first_token("retried", 1, 10);
  CHECK(Bench::replies(b.give(PeerLost{"d0", instance(2), "killed"})).empty());
  const auto start_again = Bench::sent<wire::PrefillStart>(b.hello(wire::Role::decode, "d1", 3), "p0");
  REQUIRE(start_again.size() == 2);
  CHECK(start_again.back().spec.resumed == 0);
  CHECK(start_again.back().spec.ids.size() == 100);
}

TEST_CASE("node/conductor: cached tokens count once for each request, however many attempts give a first token") {
  ConductorOptions o = Bench::options();
  o.sched.first_with_second = true;
  Bench b(o);
  start(b);
  b.hello(wire::Role::decode, "d1", 3);
  const std::string decode = Bench::sent<wire::PrefillStart>(b.submit("r"), "p0").at(0).decode;
  wire::FirstToken f;
  f.req = "r", f.attempt = 1, f.token = 10;
  f.report.compute_ms = 5, f.report.cached_local = 64, f.report.cached_remote = 0;
  b.give(Received{"p0", instance(1), f});
  REQUIRE(Bench::sent<wire::PrefillStart>(b.give(PeerLost{decode, instance(decode == "d0" ? 2 : 3), "killed"}), "p0")
              .size() == 1);
  f.attempt = 2, f.finish_reason = "stop";
  REQUIRE(Bench::replies(b.give(Received{"p0", instance(1), f})).size() == 2);
  CHECK(b.conductor.flights().stats().cached_local == 64);
  CHECK(b.conductor.flights().stats().prompt_tokens == 100);
}

/// Serves a request whose prefill node read 64 tokens in 2 ms and computed for 5 ms, a second after it was placed.
void serve(Bench& b, wire::PrefillReport report) {
  start(b);
  b.hello(wire::Role::cache, "c0", 3);
  b.hello(wire::Role::cache, "c1", 4);
  b.submit("r");
  b.now += 1s;
  wire::FirstToken first;
  first.req = "r", first.attempt = 1, first.token = 10;
  first.report = std::move(report);
  first.report.compute_ms = 5, first.report.fetch_ms = 2, first.report.cached_remote = 64;
  b.give(Received{"p0", instance(1), first});
}

TEST_CASE("node/conductor: a fetch from one holder teaches the rate of reading, one from two holders does not") {
  for (const size_t holders : {1, 2}) {
    CAPTURE(holders);
    Bench b;
    wire::PrefillReport report{.sources = {{"c0", "32"}, {"c1", "32"}}};
    report.sources.resize(holders);
    serve(b, report);
    CHECK(b.conductor.flights().prediction_errors().read.samples() == (holders == 1 ? 1 : 0));
  }
}

/// Bytes a second of the link, as the conductor has learnt it; 0 = not at all.
double rate_of(const Bench& b, const NodeId& from, const NodeId& to) {
  for (const auto& t : b.conductor.flights().links(b.now))
    if (t.from == from && t.to == to) return 1 / t.cost.s_per_byte;
  return 0;
}

TEST_CASE("node/conductor: the reads that a node reports teach the cost of each link") {
  Bench b;
  b.cost.read_bytes_per_s = 4096e3;  // a block in a millisecond
  serve(b, {.sources = {{"c0", "32"}, {"c1", "32"}}, .reads = {{"c0", 64, 4}, {"c1", 32, 1}}});
  CHECK(rate_of(b, "c0", "p0") == doctest::Approx(4096e3 / 2));  // the mean of 1 and 4 ms, in logarithms
  CHECK(rate_of(b, "c1", "p0") == doctest::Approx(4096e3 / std::sqrt(2.0)));
  CHECK(b.conductor.flights().links(b.now).size() == 2);
  CHECK(b.conductor.flights().prediction_errors().read.samples() == 2);
}

TEST_CASE("node/conductor: reports of reads that cannot have been teach nothing, or no more than the attempt took") {
  Bench b;
  b.cost.read_bytes_per_s = 4096e3;
  std::vector<wire::EndedRead> reads = {{"p0", 10, 4}, {"x9", 10, 4}, {"c1", 10, NAN},      {"c1", 10, -1},
                                        {"c1", 10, 0}, {"c1", 0, 4},  {"c1", UINT32_MAX, 4}};
  reads.push_back({"c0", 64, 1e300});
  serve(b, {.reads = reads});
  CHECK(rate_of(b, "c1", "p0") == 0);
  CHECK(rate_of(b, "c0", "p0") == doctest::Approx(4096e3 / std::sqrt(1000.0)));  // a second, not a millisecond
  CHECK(b.conductor.flights().links(b.now).size() == 1);
  Bench many;
  serve(many, {.reads = std::vector<wire::EndedRead>(200, wire::EndedRead{"c0", 1, 4})});
  CHECK(many.conductor.flights().prediction_errors().read.samples() == wire::kEndedReadsMax);
}

TEST_CASE("node/conductor: a fetch that computing has overlapped teaches its whole time, and no time of computing") {
  for (const double hidden_ms : {0.0, 98.0}) {
    CAPTURE(hidden_ms);
    Bench b;
    serve(b, {.sources = {{"c0", "64"}}, .fetch_hidden_ms = hidden_ms});
    const auto& errors = b.conductor.flights().prediction_errors();
    CHECK(errors.read.samples() == 1);
    CHECK(errors.prefill.samples() == (hidden_ms > 0 ? 0 : 1));
  }
}

TEST_CASE("node/conductor: two workers that differ in block size do not both get in, and both values are named") {
  Bench b;
  b.hello(wire::Role::prefill, "p0", 1, 64);
  const auto refused = Bench::sent<wire::Refused>(b.hello(wire::Role::decode, "d0", 2, 128), "d0");
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].mc == 2104);
  CHECK(refused[0].field == "block_tokens");
  CHECK(refused[0].ours == "128");
  CHECK(refused[0].theirs == "64");
  CHECK_FALSE(refused[0].equal.empty());
}

TEST_CASE("node/conductor: a live node keeps its name against a newcomer, a silent one loses it") {
  Bench b;
  start(b);
  CHECK(Bench::sent<wire::Refused>(b.hello(wire::Role::prefill, "p0", 7), "p0").size() == 1);
  b.now += 600ms;
  CHECK(Bench::sent<wire::Welcome>(b.hello(wire::Role::prefill, "p0", 7), "p0").size() == 1);
}

TEST_CASE("node/conductor: a node that sends nothing for 3 s leaves the cluster, and not before") {
  Bench b;
  start(b);
  const size_t all = b.conductor.nodes(b.now).size();
  REQUIRE(all > 1);
  b.now += 2900ms;
  b.give(Received{"p0", instance(1), wire::Heartbeat{}});
  b.give(Tick{});
  CHECK(b.conductor.nodes(b.now).size() == all);
  b.now += 200ms;
  b.give(Tick{});
  REQUIRE(b.conductor.nodes(b.now).size() == 1);
  CHECK(b.conductor.nodes(b.now)[0].name == "p0");
}

TEST_CASE("node/conductor: the end of a drain places the requests that no node could take again") {
  for (const std::string drained : {"p0", "d0"}) {
    INFO(drained);
    Bench b;
    start(b);
    b.submit("r");
    b.first_token("r", 1, 10);
    Actions out;
    REQUIRE(b.conductor.drain(drained, true, out));
    const Actions parked = b.give(Received{"d0", instance(2), wire::Preempted{"r", 1}});
    CHECK(Bench::replies(parked).empty());
    CHECK(Bench::sent<wire::PrefillStart>(parked, "p0").empty());
    REQUIRE(b.conductor.drain(drained, false, out));
    CHECK(b.conductor.next_wakeup() <= b.now);
    const auto again = Bench::sent<wire::PrefillStart>(b.give(Tick{}), "p0");
    REQUIRE(again.size() == 1);
    CHECK(again[0].spec.attempt == 2);
    CHECK(again[0].spec.resumed == 1);
  }
}

TEST_CASE("node/conductor: a request waits for its pinned node once, however often other nodes come") {
  ConductorOptions o = Bench::options();
  o.dead_after = std::chrono::hours(1);
  Bench b(o);
  start(b);
  b.hello(wire::Role::decode, "d1", 3);
  Submit pinned;
  pinned.req = "r";
  pinned.ids.assign(100, 7);
  pinned.stopping.max_tokens = 10;
  pinned.deadline = 100s;
  pinned.pin_decode = "d0";
  b.give(pinned);
  b.first_token("r", 1, 10);
  Actions out;
  REQUIRE(b.conductor.drain("d0", true, out));
  b.give(Received{"d0", instance(2), wire::Preempted{"r", 1}});
  b.now += 6s;
  CHECK(Bench::replies(b.hello(wire::Role::decode, "d2", 4)).empty());
  b.now += o.park_max - 6s;
  const auto replies = Bench::replies(b.give(Tick{}));
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].kind == Reply::Kind::failed);
  CHECK(replies[0].reason == Reason::no_decode);
}

TEST_CASE("node/conductor: at its deadline a request ends, naming the stage, and both workers are told") {
  Bench b;
  start(b);
  b.submit("r");
  for (int i = 0; i < 9; ++i) {
    b.now += 1s;
    CHECK(Bench::replies(b.give(Received{"p0", instance(1), wire::Heartbeat{}})).empty());
    b.give(Received{"d0", instance(2), wire::Heartbeat{}});
  }
  b.now += 2s;  // whatever comes first then
  const Actions out = b.give(Received{"p0", instance(1), wire::Heartbeat{}});
  REQUIRE(Bench::replies(out).size() == 1);
  CHECK(Bench::replies(out)[0].reason == Reason::deadline_exceeded);
  CHECK(Bench::replies(out)[0].stage == RequestStage::prefill);
  CHECK(Bench::sent<wire::Cancel>(out, "p0").size() == 1);
  CHECK(Bench::sent<wire::Cancel>(out, "d0").size() == 1);
}

TEST_CASE("node/conductor: a gap in a node's block events is answered by asking for a snapshot, once") {
  Bench b;
  start(b);
  b.give(Received{"p0", instance(1), wire::BlockSnapshot{}});  // a node sends it when it joins
  b.now += 1s;
  wire::BlockEvents events{.first_seq = 5, .events = {{true, {}}}};
  CHECK(Bench::sent<wire::IndexSync>(b.give(Received{"p0", instance(1), events}), "p0").size() == 1);
  events.first_seq = 6;
  CHECK(Bench::sent<wire::IndexSync>(b.give(Received{"p0", instance(1), events}), "p0").empty());
}

TEST_CASE("node/conductor: a dry run changes nothing") {
  Bench b;
  start(b);
  Submit s;
  s.req = "dry";
  s.ids.assign(300, 3);
  s.stopping.max_tokens = 4;
  const auto e = b.conductor.explain(s, b.now);
  CHECK(e.placement.candidate == 0);
  CHECK(e.reusable_blocks == 4);
  CHECK(b.conductor.idle());
}

TEST_CASE("node/conductor: log-probabilities of the prompt go with the first token; what does not fit is dropped") {
  Bench b;
  start(b);
  Submit s;
  s.req = "r", s.ids = {1, 2, 3, 4}, s.deadline = 10s, s.prompt_logprobs = 2;
  const auto starts = Bench::sent<wire::PrefillStart>(b.give(s), "p0");
  REQUIRE(starts.size() == 1);
  CHECK(starts[0].spec.prompt_logprobs == 2);
  const auto tell = [&](uint32_t attempt, uint32_t first, size_t count, double value) {
    wire::PromptLogprobs told{"r", attempt, first, {}};
    told.rows.resize(count, {value, 1, {}});
    b.give(Received{"p0", instance(1), told});
  };
  tell(1, 2, 1, -9);  // a gap
  tell(2, 1, 1, -9);  // another attempt
  tell(1, 1, 4, -9);  // more than the prompt has
  tell(1, 1, 2, -1);
  tell(1, 1, 2, -9);  // again
  tell(1, 3, 1, -2);
  const auto replies = Bench::replies(b.first_token("r", 1, 10));
  REQUIRE(replies.size() == 1);
  REQUIRE(replies[0].prompt_logprobs.size() == 3);
  CHECK(replies[0].prompt_logprobs[0].logprob == -1);
  CHECK(replies[0].prompt_logprobs[2].logprob == -2);
}

TEST_CASE("node/conductor: a pipeline whose members are missing or count its stages differently is given nothing") {
  for (const uint32_t counted : {2u, 3u}) {
    CAPTURE(counted);
    Bench b;
    b.hello(wire::Role::prefill, "p0", 1, 64, 2);
    CHECK(b.node("p0").state == NodeState::partial);
    CHECK(b.node("p0").lacks == "pipeline stage p0.1 is not registered");
    b.hello(wire::Role::stage, "p0.1", 3, 64, counted);
    b.hello(wire::Role::decode, "d0", 2);
    CHECK(b.node("p0").state == (counted == 2 ? NodeState::ready : NodeState::partial));
    CHECK(b.node("p0").lacks == (counted == 2 ? "" : "p0.1 announces 3 stages, p0 2"));
    const Actions out = b.submit("r");
    CHECK(Bench::sent<wire::PrefillStart>(out, "p0").size() == (counted == 2 ? 1 : 0));
  }
}

TEST_CASE("node/conductor: nobody registers under a name that is not one, or as the conductor") {
  Bench b;
  for (const std::string name : {"conductor", "a b", "../x", "p\n0"}) {
    CAPTURE(name);
    const auto refused = Bench::sent<wire::Refused>(b.hello(wire::Role::cache, name, 5), name);
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].field == "name");
  }
  CHECK(b.conductor.nodes(b.now).empty());
}

TEST_CASE("node/conductor: a node that says goodbye is named whole to those it leaves behind") {
  Bench b;
  const std::string name = "prefill-of-a-name-that-is-on-the-heap";
  b.hello(wire::Role::prefill, name, 1);
  b.hello(wire::Role::decode, "d0", 2);
  for (int i = 0; i < 20; ++i) {
    Submit s;
    s.req = "r" + std::to_string(i), s.ids.assign(100, 7), s.stopping.max_tokens = 10, s.deadline = 100s;
    b.give(s);
  }
  b.give(Received{name, instance(1), wire::Goodbye{"stopped"}});
  std::vector<Reply> ends;
  while (!b.conductor.idle()) {
    b.now += 500ms;
    for (const Reply& r : Bench::replies(b.give(Received{"d0", instance(2), wire::Heartbeat{}}))) ends.push_back(r);
    for (const Reply& r : Bench::replies(b.give(Tick{}))) ends.push_back(r);
  }
  REQUIRE(ends.size() == 20);
  for (const Reply& r : ends) CHECK(r.message == "no node could take the request again after " + name + " failed");
}

TEST_CASE("node/conductor: a cost model that is not finite, negative or absurd is refused by its field") {
  for (const double wrong :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1e-3, 1e300}) {
    for (double wire::CostModel::*part :
         {&wire::CostModel::prefill_s, &wire::CostModel::prefill_s_per_token, &wire::CostModel::prefill_s_per_token2,
          &wire::CostModel::decode_s, &wire::CostModel::decode_s_per_row, &wire::CostModel::decode_s_per_kv_token,
          &wire::CostModel::read_bytes_per_s}) {
      Bench b;
      b.cost.prefill_s_per_token = b.cost.decode_s = 1e-3;
      b.cost.*part = wrong;
      const auto refused = Bench::sent<wire::Refused>(b.hello(wire::Role::prefill, "p0", 1), "p0");
      REQUIRE(refused.size() == 1);
      CHECK(refused[0].field.starts_with("cost."));
      CHECK(b.conductor.nodes(b.now).empty());
    }
  }
  Bench b;  // slow, but a number: the books hold what can not be added to the clock
  b.cost.prefill_s_per_token = 1e6, b.cost.decode_s = 1e6;
  start(b);
  for (int i = 0; i < 200; ++i) b.submit("r" + std::to_string(i), 3000);
  b.first_token("r0", 1, 10);
}

TEST_CASE("node/conductor: a request that two decode nodes refuse for its bound of TBT is rejected") {
  for (const bool fails_first : {false, true}) {
    CAPTURE(fails_first);
    Bench b;
    b.cost.decode_s = 1e-3;
    start(b);
    b.hello(wire::Role::decode, "d1", 3);
    Submit s;
    s.req = "r", s.ids.assign(100, 7), s.stopping.max_tokens = 10, s.deadline = 100s, s.tbt_slo_s = 0.01;
    auto starts = Bench::sent<wire::PrefillStart>(b.give(s), "p0");
    REQUIRE(starts.size() == 1);
    CHECK(starts[0].spec.tbt_slo_ms == 10);
    const auto answer = [&](const char* stage, const char* code) {
      const wire::RequestSpec spec = starts.at(0).spec;
      wire::Failed failed{"r", spec.attempt, stage, code, "", true, 12, spec.tbt_slo_ms};
      const auto out = b.give(Received{"p0", instance(1), failed});
      starts = Bench::sent<wire::PrefillStart>(out, "p0");
      return Bench::replies(out);
    };
    if (fails_first) CHECK(answer("prefill", "internal").empty());  // a failure is not a refusal
    const std::string first = starts.at(0).decode;
    CHECK(answer("accept", "predicted_slo_miss").empty());
    REQUIRE(starts.size() == 1);
    CHECK(starts[0].decode != first);
    CHECK(starts[0].spec.tbt_slo_ms == 10);
    const auto replies = answer("accept", "predicted_slo_miss");
    REQUIRE(replies.size() == 1);
    CHECK(replies[0].kind == Reply::Kind::rejected);
    CHECK(replies[0].bound == sched::Bound::tbt);
  }
}

TEST_CASE("node/conductor: a prefill that told probabilities of its prompt teaches nothing of others") {
  Bench b;
  start(b);
  Submit s;
  s.req = "r", s.ids.assign(100, 7), s.stopping.max_tokens = 10, s.deadline = 100s, s.prompt_logprobs = 5;
  b.give(s);
  b.first_token("r", 1, 10);
  CHECK(b.conductor.flights().prediction_errors().prefill.samples() == 0);
  CHECK(b.conductor.flights().prediction_errors().ttft.samples() == 0);
  b.submit("usual");
  b.first_token("usual", 1, 10);
  CHECK(b.conductor.flights().prediction_errors().prefill.samples() == 1);
}

TEST_CASE("node/conductor: blocks of a pipeline are read by others while all its members are here, and only then") {
  for (const bool whole : {false, true}) {
    Bench b;
    b.hello(wire::Role::prefill, "p0", 1, 64, 2);
    if (whole) b.hello(wire::Role::stage, "p0.1", 9, 64, 2);
    b.hello(wire::Role::prefill, "p1", 5);
    b.hello(wire::Role::decode, "d0", 2);
    Submit s;
    s.req = "r", s.ids.assign(640, 7), s.stopping.max_tokens = 10, s.deadline = 100s;
    const auto hashes = b.conductor.explain(s, b.now).hashes;
    REQUIRE(hashes.size() == 10);
    b.has("p0", 1, hashes, 0, hashes.size());
    const auto seen = b.conductor.explain(s, b.now).snapshot;
    for (size_t i = 0; i < seen.holders.size(); ++i)
      if (seen.holder_names[i] == "p0") CHECK(seen.holders[i].readable_blocks == (whole ? 9u : 0u));
  }
}

TEST_CASE("node/conductor: a prompt whose blocks are spread over nodes is fetched from all of them") {
  Bench b;
  start(b);
  b.hello(wire::Role::cache, "c0", 3);
  b.hello(wire::Role::cache, "c1", 4);
  Submit s;
  s.req = "r", s.ids.assign(640, 7), s.stopping.max_tokens = 10, s.deadline = 100s;
  const auto hashes = b.conductor.explain(s, b.now).hashes;
  b.has("d0", 2, hashes, 0, 3);
  b.has("c0", 3, hashes, 0, 6);
  b.has("c1", 4, hashes, 5, 10);
  const auto sent = Bench::sent<wire::PrefillStart>(b.give(s), "p0");
  REQUIRE(sent.size() == 1);
  const std::vector<wire::Source> expected = {{"d0", instance(2), 0, 3, 0},
                                              {"c0", instance(3), 3, 3, 0},
                                              {"c1", instance(4), 6, 3, 0},  // a token is computed
                                              {"c0", instance(3), 0, 6, 0}};
  CHECK(sent[0].sources == expected);
  b.now += 4s;  // all nodes are silent, and the books forget them
  b.give(Tick{});
  CHECK(b.conductor.nodes(b.now).empty());
}

TEST_CASE("node/conductor: a prefix larger than the budget's burst is copied, and a copy that failed is not paid") {
  for (const wire::CopyEnd end : {wire::CopyEnd::complete, wire::CopyEnd::timeout, wire::CopyEnd::other}) {
    const bool fails = end != wire::CopyEnd::complete;
    auto options = Bench::options();
    // 8 blocks are 32 KiB, the budget's burst is half of that.
    options.replicate = {.replicas_max = 3, .bytes_per_s = 4096, .half_life_s = 60, .node_share = 1e-7};
    Bench b(options);
    start(b);
    for (uint8_t i = 1; i < 3; ++i) b.hello(wire::Role::prefill, "p" + std::to_string(i), static_cast<uint8_t>(10 + i));
    Submit s;
    s.req = "first", s.ids.assign(640, 7), s.stopping.max_tokens = 10, s.deadline = 100s;
    const auto hashes = b.conductor.explain(s, b.now).hashes;
    b.has("p0", 1, hashes, 0, hashes.size());
    const auto copies_to = [&](const Actions& out) {
      std::vector<std::string> to;
      for (const std::string name : {"p0", "p1", "p2"})
        for (const auto& order : Bench::sent<wire::CopyBlocks>(out, name)) {
          CHECK(order.hashes.size() == 8);
          to.push_back(name);
        }
      return to;
    };
    const auto first = copies_to(b.give(s));
    REQUIRE(first.size() == 1);
    wire::CopyDone done;
    done.copy = 1, done.blocks = fails ? 0 : 8, done.reason = end;
    b.give(Received{first[0], instance(first[0] == "p1" ? 11 : 12), done});
    b.now += 900ms;  // nobody is late with a heartbeat yet
    for (const auto& [name, n] : {std::pair{"p0", 1}, {"p1", 11}, {"p2", 12}, {"d0", 2}})
      b.give(Received{name, instance(static_cast<uint8_t>(n)), wire::Heartbeat{}});
    b.now += 200ms;
    s.req = "second";
    CHECK(copies_to(b.give(s)).size() == (fails ? 1 : 0));  // else the debt is to be earned first
  }
}

TEST_CASE("node/conductor: with slow start a new node does not draw everybody at once, and later counts like others") {
  for (const double slow_start_s : {0.0, 20.0}) {
    ConductorOptions options = Bench::options();
    options.sched.slow_start_s = slow_start_s;
    options.policy = sched::find_policy("load");
    Bench b(options);
    b.cost.prefill_s = 0, b.cost.prefill_s_per_token = 0.01;
    start(b);
    b.now += 60s;
    b.hello(wire::Role::prefill, "p1", 3);
    const auto goes_to_new = [&](const std::string& req) {
      return !Bench::sent<wire::PrefillStart>(b.submit(req), "p1").empty();
    };
    CHECK_FALSE(goes_to_new("a"));  // both idle: the first
    CHECK(goes_to_new("b") == (slow_start_s == 0));
    const auto e = b.conductor.explain({.req = "x", .ids = std::vector<uint32_t>(100, 3)}, b.now);
    REQUIRE(e.placement.candidates.size() == 2);
    CHECK(e.placement.candidates[0].handicap_s == 0);
    CHECK((e.placement.candidates[1].handicap_s > 0) == (slow_start_s > 0));
    b.now += 20s;
    b.submit("c");
    CHECK(goes_to_new("d"));
  }
}

TEST_CASE("node/conductor: a stage of a pipeline does not drain alone; the error names the pipeline") {
  Bench b;
  b.hello(wire::Role::prefill, "p0", 1, 64, 2);
  b.hello(wire::Role::stage, "p0.1", 3, 64, 2);
  Actions out;
  const auto drained = b.conductor.drain("p0.1", true, out);
  REQUIRE_FALSE(drained);
  CHECK(drained.error().code == Code::invalid);
  CHECK(drained.error().what == "p0.1 is a stage of the pipeline p0, which drains as a whole: drain p0");
  CHECK(b.conductor.drain("p0", true, out));
  const Error unknown = b.conductor.drain("p9", true, out).error();
  CHECK(unknown.mc == err::kNotFound);
  CHECK(unknown.what == "no node is called p9; there are: p0, p0.1");
}

TEST_CASE("node/conductor: what was ordered of a drain holds although orders are lost and old heartbeats arrive") {
  Bench b;
  start(b);
  const auto beat = [&](bool draining, bool leaving = false) {
    wire::Heartbeat h;
    h.load.draining = draining, h.load.leaving = leaving;
    return Bench::sent<wire::Drain>(b.give(Received{"p0", instance(1), h}), "p0");
  };
  Actions out;
  CHECK(beat(false).empty());
  CHECK(b.conductor.drain("p0", true, out));
  CHECK(beat(false) == std::vector<wire::Drain>{{true}});  // lost, or not there yet
  CHECK(beat(true).empty());
  CHECK(b.conductor.drain("p0", false, out));
  CHECK(beat(true) == std::vector<wire::Drain>{{false}});  // this one was on its way
  CHECK(b.node("p0").state == NodeState::ready);
  CHECK(beat(false).empty());
  CHECK(beat(true, true).empty());  // SIGTERM
  CHECK(b.node("p0").state == NodeState::drain);
  CHECK(b.conductor.drain("p0", false, out).error().code == Code::invalid);
  // A new conductor takes over what it finds.
  Bench next;
  start(next);
  wire::Heartbeat drained;
  drained.load.draining = true;
  CHECK(Bench::sent<wire::Drain>(next.give(Received{"p0", instance(1), drained}), "p0").empty());
  CHECK(next.node("p0").state == NodeState::drain);
}

TEST_CASE("node/conductor: a copy is of at most 4,096 blocks, however long the hot prompt is") {
  auto options = Bench::options();
  options.replicate = {.replicas_max = 3, .bytes_per_s = 1e12, .half_life_s = 60, .node_share = 1e-9};
  Bench b(options);
  b.page_count = 6000, b.context_tokens = 16 * 5500;
  b.hello(wire::Role::prefill, "p0", 1, 16);
  b.hello(wire::Role::prefill, "p1", 11, 16);
  b.hello(wire::Role::decode, "d0", 2, 16);
  Submit s;
  s.req = "long", s.ids.assign(16 * 5000, 7), s.stopping.max_tokens = 10, s.deadline = 100s;
  const auto hashes = b.conductor.explain(s, b.now).hashes;
  REQUIRE(hashes.size() == 5000);
  b.has("p0", 1, hashes, 0, hashes.size());
  const auto orders = Bench::sent<wire::CopyBlocks>(b.give(s), "p1");
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].hashes.size() == 4096);
  CHECK(orders[0].hashes.back() == hashes[4095]);
}

}  // namespace conductor_test

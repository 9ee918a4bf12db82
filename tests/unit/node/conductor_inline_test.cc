// The conductor and decode nodes that compute short prompts themselves.

#include "conductor_bench.h"

namespace conductor_inline_test {

using namespace mc;
using namespace mc::node;
using conductor_test::Bench;
using conductor_test::instance;

namespace {

/// p0, and d0, which computes prompts of up to 128 tokens.
struct InlineBench : Bench {
  explicit InlineBench(ConductorOptions with = options()) : Bench(std::move(with)) {
    inline_tokens = 128;
    conductor_test::start(*this);
  }
  /// The node that the request has gone to as its next attempt; "" = none.
  static std::string started(const Actions& actions) {
    for (const std::string node : {"p0", "d0", "d1"})
      for (const auto& start : sent<wire::PrefillStart>(actions, node)) {
        CHECK((node == "p0") == (start.decode != node));
        return node;
      }
    return "";
  }
  Actions first_token_of_d0(const std::string& req, std::string finish = "") {
    wire::FirstToken f;
    f.req = req, f.token = 42, f.finish_reason = std::move(finish);
    f.report.compute_ms = 12;
    return give(Received{"d0", instance(2), f});
  }
  Actions failed(const std::string& req, const std::string& stage, const std::string& code, uint32_t attempt = 1) {
    wire::Failed f;
    f.req = req, f.attempt = attempt, f.stage = stage, f.code = code, f.retryable = true;
    f.predicted_ms = 14, f.allowed_ms = 10;
    return give(Received{"d0", instance(2), f});
  }
};

}  // namespace

TEST_CASE("node/conductor_inline: a short prompt goes to the decode node alone, a long one to a pair") {
  InlineBench b;
  Actions out = b.submit("short");
  const auto start = Bench::sent<wire::PrefillStart>(out, "d0");
  REQUIRE(start.size() == 1);
  CHECK(start[0].decode == "d0");
  CHECK(start[0].decode_instance == instance(2));
  CHECK(start[0].spec.attempt == 1);
  CHECK(start[0].spec.ids.size() == 100);
  CHECK(InlineBench::started(b.submit("long", 129)) == "p0");
  CHECK(b.node("d0").requests == 2);
  CHECK(b.node("p0").requests == 1);
  CHECK(b.node("d0").queue_s > 0);
  out = b.first_token_of_d0("short");
  REQUIRE(Bench::replies(out).size() == 1);
  CHECK(Bench::replies(out)[0].summary.prefill == "d0");
  CHECK(Bench::replies(out)[0].summary.decode == "d0");
  CHECK(b.node("d0").queue_s == 0);
  const auto considered = Bench::replies(out)[0].summary.considered;
  REQUIRE(considered.size() == 2);
  CHECK(considered[0].node == "d0");
  CHECK(considered[0].inlined);
  CHECK(considered[1].node == "p0");
  for (uint32_t i = 1; i < 9; ++i) b.token("short", i, 50);
  out = b.token("short", 9, 50, "length");
  CHECK(Bench::replies(out).back().finish == Finish::length);
  CHECK(b.conductor.flights().stats().inlined == 1);
  CHECK(b.node("d0").requests == 1);
}

TEST_CASE("node/conductor_inline: a prompt that the decode node refuses goes to a pair, whatever the reason") {
  for (const std::string code : {"busy", "predicted_slo_miss", "draining"}) {
    InlineBench b;
    REQUIRE(InlineBench::started(b.submit("r")) == "d0");
    const Actions out = b.failed("r", "accept", code);
    const auto start = Bench::sent<wire::PrefillStart>(out, "p0");
    REQUIRE(start.size() == 1);
    CHECK(start[0].spec.attempt == 2);
    CHECK(start[0].decode == "d0");
    CHECK(Bench::sent<wire::Cancel>(out, "d0").size() == 1);
    CHECK(b.conductor.breakers().empty());
    CHECK(InlineBench::started(b.submit("other")) == "d0");  // others may still go there alone
  }
}

TEST_CASE("node/conductor_inline: a prompt that fails on the decode node counts against it and goes to a pair") {
  InlineBench b;
  REQUIRE(InlineBench::started(b.submit("r")) == "d0");
  CHECK(InlineBench::started(b.failed("r", "prefill", "io")) == "p0");
  REQUIRE(b.conductor.breakers().entries().size() == 1);
  CHECK(b.conductor.breakers().entries().begin()->first == sched::Part{"", "d0"});
  // Its preemption is nobody's fault, and leaves the way as it is.
  InlineBench other;
  REQUIRE(InlineBench::started(other.submit("r")) == "d0");
  const Actions out = other.give(Received{"d0", instance(2), wire::Preempted{"r", 1}});
  CHECK(InlineBench::started(out) == "d0");
}

TEST_CASE("node/conductor_inline: a cancelled request is cancelled once, and a lost node's request goes elsewhere") {
  InlineBench b;
  b.submit("r");
  const Actions out = b.give(ClientCancel{"r"});
  CHECK(Bench::sent<wire::Cancel>(out, "d0").size() == 1);
  CHECK(Bench::sent<wire::Cancel>(out, "p0").empty());
  b.hello(wire::Role::decode, "d1", 3);
  const std::string node = InlineBench::started(b.submit("lost"));
  REQUIRE(node == "d0");
  CHECK(InlineBench::started(b.give(PeerLost{"d0", instance(2), "killed"})) == "d1");
}

TEST_CASE("node/conductor_inline: a chosen prefill node, scores of the prompt and a tight bound take a pair") {
  InlineBench b;
  Submit s;
  s.req = "pinned", s.ids.assign(100, 7), s.stopping.max_tokens = 10, s.deadline = 10s;
  s.pin_prefill = "p0";
  CHECK(InlineBench::started(b.give(s)) == "p0");
  s.req = "scored", s.pin_prefill = "", s.prompt_logprobs = 0;
  CHECK(InlineBench::started(b.give(s)) == "p0");
  s.req = "tight", s.prompt_logprobs = -1, s.tbt_slo_s = 0.01;
  CHECK(InlineBench::started(b.give(s)) == "p0");  // two requests are on their way to d0
  s.req = "pinned-decode", s.tbt_slo_s = 0, s.pin_decode = "d0";
  const auto e = b.conductor.explain(s, b.now);
  REQUIRE(e.placement.inlined);
  CHECK(e.placement.inlined->gap_s > e.placement.inlined->prefill_s);
}

TEST_CASE("node/conductor_inline: explain shows the decode node, and says when it computes the prompt") {
  InlineBench b;
  Submit s;
  s.req = "r", s.ids.assign(100, 7), s.stopping.max_tokens = 10, s.deadline = 10s;
  const auto e = b.conductor.explain(s, b.now);
  CHECK(e.placement.is_inlined);
  CHECK(e.decode_sources.empty());
  CHECK(e.snapshot.decode[e.placement.inlined->decode].name == "d0");
  b.inline_tokens = 0;
  b.hello(wire::Role::decode, "d0", 2);
  CHECK_FALSE(b.conductor.explain(s, b.now).placement.inlined);
}

}  // namespace conductor_inline_test

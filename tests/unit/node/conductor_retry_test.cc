// The next attempts of a request whose nodes failed or were lost.

#include "conductor_bench.h"

namespace conductor_retry_test {

using namespace mc;
using namespace mc::node;
using conductor_test::Bench;
using conductor_test::instance;
using conductor_test::start;

TEST_CASE("node/conductor: the last attempt of a request whose blocks were damaged reuses none") {
  struct Case {
    std::string stage, first, later;  // where attempts fail; why the first does, and why the others do
    bool reuses;
  };
  for (const Case& c : {Case{"prefill", "corrupt", "corrupt", false}, Case{"transfer", "corrupt", "corrupt", false},
                        Case{"transfer", "corrupt", "io", false}, Case{"prefill", "io", "io", true},
                        Case{"transfer", "io", "io", true}}) {
    CAPTURE(c.stage);
    CAPTURE(c.later);
    Bench b;
    start(b);
    auto starts = Bench::sent<wire::PrefillStart>(b.submit("r"), "p0");
    for (uint32_t attempt = 1; attempt < Bench::options().attempts_max; ++attempt) {
      REQUIRE(starts.size() == 1);
      CHECK_FALSE(starts[0].spec.reuse_nothing);
      const wire::Failed failed{"r", attempt, c.stage, attempt == 1 ? c.first : c.later, "", true};
      const Received event = c.stage == "prefill" ? Received{"p0", instance(1), failed}  // the decode node reads
                                                  : Received{"d0", instance(2), failed};
      starts = Bench::sent<wire::PrefillStart>(b.give(event), "p0");
    }
    REQUIRE(starts.size() == 1);
    CHECK(starts[0].spec.attempt == Bench::options().attempts_max);
    CHECK(starts[0].spec.reuse_nothing == !c.reuses);
    CHECK_FALSE(starts[0].spec.no_cache);  // the client may have wanted them, and the blocks are kept
  }
}

TEST_CASE("node/conductor: a decode node lost in mid-answer costs a second attempt that carries the tokens so far") {
  Bench b;
  start(b);
  b.submit("r");
  b.first_token("r", 1, 10);
  b.token("r", 1, 11);
  b.hello(wire::Role::decode, "d1", 3);
  const auto again = Bench::sent<wire::PrefillStart>(b.give(PeerLost{"d0", instance(2), "killed"}), "p0");
  REQUIRE(again.size() == 1);
  CHECK(again[0].spec.attempt == 2);
  CHECK(again[0].spec.resumed == 2);
  CHECK(again[0].spec.ids.size() == 102);
  CHECK(again[0].decode == "d1");
  wire::Tokens last;
  last.rows.push_back({"r", 2, 2, 12, {}, "stop"});
  const auto replies = Bench::replies(b.give(Received{"d1", instance(3), last}));
  const auto end = std::ranges::find(replies, Reply::Kind::finished, &Reply::kind);
  REQUIRE(end != replies.end());
  REQUIRE(end->summary.failed.size() == 1);  // mc-conductor why lists it
  CHECK(end->summary.failed[0].decode == "d0");
  CHECK(end->summary.failed[0].reason == Reason::peer_lost);
}

TEST_CASE("node/conductor: the seconds of an answer are those since its first token, whichever attempt gave it") {
  Bench b;
  b.now = TimePoint{} + 1000s;
  start(b);
  b.hello(wire::Role::decode, "d1", 3);
  Submit s;
  s.req = "r", s.ids.assign(100, 7), s.stopping.max_tokens = 10, s.deadline = 100s, s.pin_prefill = "p0";
  const std::string decode = Bench::sent<wire::PrefillStart>(b.give(s), "p0").at(0).decode;
  const InstanceId its = instance(decode == "d0" ? 2 : 3);
  b.first_token("r", 1, 10);
  b.now += 500ms;
  wire::Tokens t;
  t.rows.push_back({"r", 1, 1, 11, {}, ""});
  b.give(Received{decode, its, t});
  b.now += 500ms;
  REQUIRE(Bench::sent<wire::PrefillStart>(b.give(PeerLost{decode, its, "killed"}), "p0").size() == 1);
  b.now += 1s;
  b.give(ClientCancel{"r", CancelReason::stop});  // before the first token of the second attempt
  REQUIRE(b.conductor.flights().stats().finished == 1);
  CHECK(b.conductor.explain(s, b.now).snapshot.lengths->seconds() == doctest::Approx(2));
}

TEST_CASE("node/conductor: an orphan waits for a node to come back and fails by name when none does") {
  Bench b;
  start(b);
  b.submit("r");
  CHECK(Bench::replies(b.give(PeerLost{"p0", instance(1), "killed"})).empty());
  b.now += 200ms;
  CHECK(Bench::sent<wire::PrefillStart>(b.hello(wire::Role::prefill, "p0", 4), "p0").size() == 1);
  b.give(PeerLost{"p0", instance(4), "killed"});
  b.give(Received{"d0", instance(2), wire::Heartbeat{}});
  b.now = b.conductor.next_wakeup();
  while (!b.conductor.idle()) {
    b.give(Received{"d0", instance(2), wire::Heartbeat{}});
    const auto replies = Bench::replies(b.give(Tick{}));
    if (!replies.empty()) {
      CHECK((replies[0].reason == Reason::no_prefill || replies[0].reason == Reason::deadline_exceeded));
      break;
    }
    b.now += 500ms;
  }
  CHECK(b.conductor.idle());
}

TEST_CASE("node/conductor: the end of an attempt that was lost does not end the next one") {
  Bench b;
  start(b);
  b.submit("r");
  b.token("r", 2, 12, "stop");  // decode was faster than the first token, which never comes
  b.give(PeerLost{"p0", instance(1), "killed"});
  b.hello(wire::Role::prefill, "p0", 4);
  wire::FirstToken first;
  first.req = "r", first.attempt = 2, first.token = 10;
  b.give(Received{"p0", instance(4), first});
  wire::Tokens tokens;
  tokens.rows = {{"r", 2, 1, 11, {}, ""}, {"r", 2, 2, 13, {}, ""}, {"r", 2, 3, 14, {}, ""}};
  const auto replies = Bench::replies(b.give(Received{"d0", instance(2), tokens}));
  REQUIRE(replies.size() == 3);
  CHECK(replies.back().kind == Reply::Kind::token);
  CHECK(replies.back().token == 14);
}

TEST_CASE("node/conductor: a stream whose decode node dies goes on at a node that is slower than its promise") {
  Bench b;
  b.cost.decode_s = 1e-3;
  start(b);
  b.cost.decode_s = 1;
  b.hello(wire::Role::decode, "d1", 3);
  Submit s;
  s.req = "r", s.ids.assign(100, 7), s.stopping.max_tokens = 10, s.deadline = 100s, s.tbt_slo_s = 0.01;
  REQUIRE(Bench::sent<wire::PrefillStart>(b.give(s), "p0").size() == 1);
  b.first_token("r", 1, 10);
  const auto out = b.give(PeerLost{"d0", instance(2), "killed"});
  CHECK(Bench::replies(out).empty());
  const auto again = Bench::sent<wire::PrefillStart>(out, "p0");
  REQUIRE(again.size() == 1);
  CHECK(again[0].decode == "d1");
}

}  // namespace conductor_retry_test

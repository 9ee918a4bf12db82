// The conductor's orders to decode nodes to read a prefix from its holders.

#include "conductor_bench.h"

namespace conductor_test {

TEST_CASE("node/order_fetch: the decode node is told of the holders, books them as senders, and reports what it read") {
  for (const size_t holders : {1, 2}) {
    CAPTURE(holders);
    auto options = Bench::options();
    options.prefix_from = sched::PrefixFrom::holders;
    options.sched.fetch_rule = sched::FetchRule::threshold;
    Bench b(options);
    start(b);
    b.hello(wire::Role::cache, "c0", 3);
    b.hello(wire::Role::cache, "c1", 4);
    Submit s;
    s.req = "r", s.ids.assign(640, 7), s.stopping.max_tokens = 10, s.deadline = 100s;
    const auto hashes = b.conductor.explain(s, b.now).hashes;
    b.has("d0", 2, hashes, 0, 3);
    b.has("c0", 3, hashes, 0, 6);
    if (holders == 2) b.has("c1", 4, hashes, 5, 10);
    const auto explained = b.conductor.explain(s, b.now);
    REQUIRE(explained.decode_sources.size() == holders);
    CHECK(explained.decode_sources[0].node == "c0");
    CHECK(explained.decode_sources[0].first_block == 3);
    const auto sent = Bench::sent<wire::PrefillStart>(b.give(s), "p0");
    REQUIRE(sent.size() == 1);
    std::vector<wire::Source> expected = {{"c0", instance(3), 3, 3, 0, true}};
    if (holders == 2) expected.push_back({"c1", instance(4), 6, 3, 0, true});  // a token is computed
    CHECK(sent[0].decode_sources == expected);
    const auto leaving = [&](const std::string& name) {
      const sched::Snapshot seen = b.conductor.explain(s, b.now).snapshot;
      const auto at = std::find(seen.holder_names.begin(), seen.holder_names.end(), name) - seen.holder_names.begin();
      return seen.holders[static_cast<size_t>(at)].transfers_leaving;
    };
    CHECK(leaving("c0") == 2);  // to p0 and d0
    wire::KvReport report{"r", 1, 192, 64, 384, {{"c0", "192"}, {"c1", "192"}}, 10};
    report.holders.resize(holders);
    b.now += 1s;
    b.give(Received{"c1", instance(4), report});  // of another node
    CHECK(b.conductor.flights().stats().from_holders == 0);
    b.give(Received{"d0", instance(2), report});
    CHECK(b.conductor.flights().stats().from_holders == 384);
    // It is of an older node: several holders together say nothing about the rate of one.
    const auto transfers = b.conductor.flights().links(b.now);
    REQUIRE(transfers.size() == (holders == 1 ? 1 : 0));
    if (holders == 1) CHECK((transfers[0].from == "c0" && transfers[0].to == "d0"));
    report.reads = {{"c0", 192, 7}, {"c1", 192, 9}};
    b.give(Received{"d0", instance(2), report});
    CHECK(b.conductor.flights().links(b.now).size() == 2);
    b.first_token("r", 1, 10);
    CHECK(leaving("c0") == 0);
    const auto replies = Bench::replies(b.token("r", 1, 11, "length"));
    REQUIRE(replies.size() == 2);
    CHECK(replies.back().summary.kv == report);
  }
}

TEST_CASE("node/order_fetch: the KV report of an attempt is not part of the summary of the attempt after it") {
  auto options = Bench::options();
  options.prefix_from = sched::PrefixFrom::holders;
  Bench b(options);
  start(b);
  b.submit("r");
  b.first_token("r", 1, 10);
  b.give(Received{"d0", instance(2), wire::KvReport{"r", 1, 0, 36, 64, {{"c0", "64"}}, 10}});
  b.give(Received{"d0", instance(2), wire::Preempted{"r", 1}});
  wire::Tokens last;
  last.rows.push_back({"r", 2, 1, 11, {}, "length"});
  const auto replies = Bench::replies(b.give(Received{"d0", instance(2), last}));
  REQUIRE(!replies.empty());
  CHECK(replies.back().kind == Reply::Kind::finished);
  CHECK(replies.back().summary.attempts == 2);
  CHECK(replies.back().summary.kv == wire::KvReport{});  // its prefill node gave all KV
}

TEST_CASE("node/order_fetch: the reads that a request tells of are those into the nodes of its last attempt") {
  Bench b;
  start(b);
  b.submit("r");
  const auto first_token = [&](uint32_t attempt, std::vector<wire::EndedRead> reads) {
    wire::FirstToken first;
    first.req = "r", first.attempt = attempt, first.token = 10;
    first.report.compute_ms = 5, first.report.reads = std::move(reads);
    b.give(Received{"p0", instance(1), first});
  };
  first_token(1, {{"c0", 64, 3}});
  b.give(Received{"d0", instance(2), wire::Preempted{"r", 1}});
  const std::vector<wire::EndedRead> again = {{"c1", 32, 2}};
  std::vector<wire::EndedRead> want;
  SUBCASE("whose prefill node has read as well") {
    first_token(2, want = again);
  }
  SUBCASE("whose prefill node says nothing") {}
  wire::Tokens last;
  last.rows.push_back({"r", 2, want.empty() ? 1u : 2u, 11, {}, "length"});
  const auto replies = Bench::replies(b.give(Received{"d0", instance(2), last}));
  REQUIRE(!replies.empty());
  CHECK(replies.back().kind == Reply::Kind::finished);
  CHECK(replies.back().summary.report.reads == want);
}

TEST_CASE("node/order_fetch: decode nodes read from holders only when they decode a request that may reuse blocks") {
  for (int reason = 0; reason < 4; ++reason) {
    CAPTURE(reason);
    auto options = Bench::options();
    options.prefix_from = reason == 1 ? sched::PrefixFrom::prefill : sched::PrefixFrom::holders;
    options.sched.fetch_rule = sched::FetchRule::threshold;
    Bench b(options);
    start(b);
    b.hello(wire::Role::cache, "c0", 3);
    Submit s;
    s.req = "r", s.ids.assign(640, 7), s.stopping.max_tokens = reason == 2 ? 1 : 10, s.deadline = 100s;
    b.has("c0", 3, b.conductor.explain(s, b.now).hashes, 0, 6);
    s.no_cache = reason == 3;
    const auto sent = Bench::sent<wire::PrefillStart>(b.give(s), "p0");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].decode_sources.size() == (reason == 0 ? 1 : 0));
  }
}

}  // namespace conductor_test

// Failures of simulated nodes: the blocks, the retries and the recovery that follow.
#include "cluster_bench.h"
#include "test.h"

namespace failures_test {

using namespace mc;
using namespace mc::sim;
using sim_test::Bench;

namespace {

void add_failures(Bench& b, std::initializer_list<const char*> texts) {
  for (const char* text : texts) b.options.failures.push_back(*parse_failure(text, b.options.shape));
}

}  // namespace

TEST_CASE("sim/failures: a retry reuses only blocks of the prompt that are full") {
  Bench b("1p2d");
  b.add(0, 2, 0);  // both blocks are full
  TraceRequest& partial = b.add(10, 2, 0, 2000);
  partial.input_tokens = 1000;  // the second block is not
  add_failures(b, {"d0@15s-15.5s", "d1@16s-16.5s"});
  const ClusterRun run = b.run();
  REQUIRE(run.requests[1].fate == Fate::served);
  REQUIRE(run.requests[1].attempts > 1);
  CHECK(run.requests[1].dram_tokens == 512);
}

TEST_CASE("sim/failures: of overlapping failures of a node the last recovery brings it back") {
  struct Case {
    const char* shape;
    uint32_t pipeline;
    std::initializer_list<const char*> failures;
  };
  const Case cases[] = {{"1p1d", 1, {"p0@1s-20s", "p0@2s-4s"}}, {"1p1d", 1, {"p0@1s-4s", "p0@2s-20s"}},
                        {"1p1d", 1, {"d0@1s-20s", "d0@2s-4s"}}, {"1p1d", 1, {"d0@1s-4s", "d0@2s-20s"}},
                        {"1m", 1, {"m0@1s-4s", "m0@2s-20s"}},   {"2p1d", 2, {"p0@1s-20s", "p1@2s-4s"}}};
  for (const Case& c : cases) {
    CAPTURE(std::string(c.shape));
    CAPTURE(std::string(*c.failures.begin()));
    Bench b(c.shape);
    b.options.pipeline = c.pipeline;
    b.add(5, 0, 4), b.add(19, 0, 4), b.add(21, 0, 4);
    add_failures(b, c.failures);
    const ClusterRun run = b.run();
    CHECK(run.requests[0].fate == Fate::rejected_node);
    CHECK(run.requests[1].fate == Fate::rejected_node);
    CHECK(run.requests[2].fate == Fate::served);
  }
  Bench b("1p1d");
  b.add(30, 0, 4);
  add_failures(b, {"p0@1s-20s", "p0@2s"});  // the second failure has no end
  CHECK(b.run().requests[0].fate == Fate::rejected_node);
}

TEST_CASE("sim/failures: a request whose node failed waits ten seconds for another node, as under a conductor") {
  for (const char* node : {"d0", "p0"}) {
    for (const double down_s : {5.0, 9.5, 12.0}) {
      CAPTURE(std::string(node));
      CAPTURE(down_s);
      Bench b("1p1d");
      b.add(0, 0, 24, 400);
      b.options.failures = {{.role = node[0], .index = 0, .at_s = 1, .back_s = 1 + down_s}};
      const ClusterRun run = b.run();
      const RequestRecord& r = run.requests[0];
      CHECK(r.attempts == 2);
      CHECK(r.fate == (down_s < 10 ? Fate::served : Fate::rejected_node));
      if (down_s < 10)
        CHECK(r.end_s > 1 + down_s);
      else
        CHECK(r.end_s == doctest::Approx(11));
    }
  }
}

TEST_CASE("sim/failures: every one of many requests that wait for a node is placed when it comes back") {
  Bench b("2p1d");
  for (int i = 0; i < 30; ++i) b.add(0.02 * i, 0, 4, 500);
  add_failures(b, {"d0@3s-8s"});
  const ClusterRun run = b.run();
  for (const RequestRecord& r : run.requests) CHECK(r.fate == Fate::served);
  CHECK(run.retried >= 30);
}

TEST_CASE("sim/failures: the blocks of a prefill that was given up are computed again") {
  Bench b("1p2d");
  b.add(0, 0, 24);
  add_failures(b, {"d0@0.5s-0.55s", "d1@0.6s-0.65s"});
  const ClusterRun run = b.run();
  REQUIRE(run.requests[0].fate == Fate::served);
  REQUIRE(run.requests[0].attempts > 1);
  CHECK(run.requests[0].dram_tokens == 0);
  Bench whole("1p1d");
  whole.add(0, 0, 24);
  CHECK(run.requests[0].prefill_s >= whole.run().requests[0].prefill_s + 0.4);
}

TEST_CASE("sim/failures: a request that counted on the blocks of a prefill that was given up computes them") {
  Bench b("1p2d");
  b.add(0, 20, 4);    // on d0, computing when it dies
  b.add(0.1, 20, 4);  // on d1, behind it
  add_failures(b, {"d0@0.5s"});
  const ClusterRun run = b.run();
  const RequestRecord &first = run.requests[0], &behind = run.requests[1];
  REQUIRE((first.fate == Fate::served && behind.fate == Fate::served));
  REQUIRE(first.attempts + behind.attempts == 3);
  const RequestRecord& retried = first.attempts == 2 ? first : behind;
  const RequestRecord& other = first.attempts == 2 ? behind : first;
  REQUIRE(&retried == &first);
  CHECK(other.dram_tokens == 0);
  CHECK(retried.dram_tokens == 20 * 512);  // which the other one has computed meanwhile
}

TEST_CASE("sim/failures: a request that fetches loses nothing with the prefill of its node that is given up") {
  const auto bench = [] {
    Bench b("2p4d");
    b.options.layer_wise = false;  // a prefill that is given up has handed nothing over
    b.add(0, 24, 1);
    b.add(20, 0, 80);      // keeps the node of the shared blocks busy
    b.add(20.05, 10, 40);  // on the other node, which will have ten of them
    b.add(20.1, 24, 4);    // behind it: fetches those ten as well, which are not there yet
    return b;
  };
  Bench whole = bench();
  const ClusterRun before = whole.run();
  REQUIRE(before.requests[2].prefill != before.requests[0].prefill);
  REQUIRE(before.requests[3].prefill == before.requests[2].prefill);
  REQUIRE(before.requests[3].decode != before.requests[2].decode);
  CHECK(before.requests[3].dram_tokens == 0);
  CHECK(before.requests[3].remote_tokens == 24 * 512);
  Bench b = bench();
  const std::string failure = "d" + std::to_string(before.requests[2].decode) + "@20.5s";
  add_failures(b, {failure.c_str()});
  const ClusterRun run = b.run();
  REQUIRE(run.requests[2].attempts == 2);
  REQUIRE(run.requests[3].attempts == 1);
  CHECK(run.requests[3].remote_tokens == 24 * 512);
  double tokens = 10 * 512;  // that the first attempt of the third request fetched
  for (size_t i = 0; i < b.trace.size(); ++i)
    tokens += static_cast<double>(b.trace[i].input_tokens + run.requests[i].remote_tokens);
  CHECK(run.moved_bytes == doctest::Approx(tokens * static_cast<double>(b.profile.kv_bytes_per_token)));
}

TEST_CASE("sim/failures: a node that failed sends nothing more of a prefix, and the request computes the rest") {
  const auto bench = [] {
    Bench b("2p2d");
    b.profile.paths.net.bytes_per_s = 3e9;  // the prefix takes 1.3 s
    b.add(0, 24, 1);
    b.add(20, 0, 80);    // keeps the node of the shared blocks busy
    b.add(20.1, 24, 4);  // fetches them
    return b;
  };
  Bench whole = bench();
  const ClusterRun before = whole.run();
  REQUIRE(before.requests[2].prefill != before.requests[0].prefill);
  REQUIRE(before.requests[2].remote_tokens == 24 * 512);
  Bench b = bench();
  const std::string failure = "p" + std::to_string(before.requests[0].prefill) + "@20.5s";
  add_failures(b, {failure.c_str()});
  const ClusterRun run = b.run();
  REQUIRE(run.requests[2].fate == Fate::served);
  CHECK(run.requests[2].attempts == 1);
  CHECK(run.requests[2].remote_tokens == 0);
  Bench alone("1p2d");
  alone.add(0, 0, 28);
  CHECK(run.requests[2].prefill_s == doctest::Approx(alone.run().requests[0].prefill_s));
}

}  // namespace failures_test

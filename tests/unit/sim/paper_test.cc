// The rules by hand, on traces small enough to work out; the published figures are in tests/cli/sim_published_test.py.
#include "sim/paper.h"

#include "sim/paper_decode.h"
#include "test.h"

using namespace mc;
using namespace mc::sim;

namespace {

PaperPrefillOptions two_nodes(std::string_view policy, sched::FetchRule rule = sched::FetchRule::threshold) {
  PaperPrefillOptions out;
  out.nodes = 2;
  out.rule = find_paper_rule(policy, rule);
  REQUIRE(out.rule != nullptr);
  return out;
}

double prefill_s(double n, double p) {
  return kPaperCost.prefill(n, p);
}

const std::vector<uint32_t> kPrompt = {0, 1, 2, 3};  // 2,000 tokens

}  // namespace

TEST_CASE("sim/paper: the constants are those of LLaMA3-70B on 8 x A800") {
  // Layers x (K and V) x width / grouped queries x bytes of an element.
  CHECK(kPaperTokenBytes == 80.0 * 2 * 8192 / 8 * 2);
  CHECK(prefill_s(8192, 0) == doctest::Approx(.9988).epsilon(1e-4));
  CHECK(prefill_s(131072, 0) == doctest::Approx(27.56).epsilon(1e-4));
  // Reuse pays above B = G 2 d s / (gqa (a p d + b d^2)): 5.9 GB/s for 8,192 tokens.
  const double d = 8192, p = 8192, flops = 8 * 312e12;
  CHECK(flops * 2 * d * 2 / (8 * (4 * p * d + 22 * d * d)) == doctest::Approx(5.9e9).epsilon(.2 / 5.9));
}

TEST_CASE("sim/paper: an exact repeat still computes one token") {
  PaperPrefill prefill(two_nodes("cache-aware"), 4);
  CHECK(prefill.place(0, 2000, kPrompt).reused_tokens == 0);
  const PaperPlacement again = prefill.place(1000, 2000, kPrompt);
  CHECK(again.node == 0);
  CHECK(again.reused_tokens == 1999);
  CHECK(again.ttft_s == doctest::Approx(prefill_s(2000, 1999)));
}

TEST_CASE("sim/paper: blocks are resident from dispatch, before their prefill has ended") {
  PaperPrefill prefill(two_nodes("kv-centric"), 4);
  CHECK(prefill.place(0, 2000, kPrompt).node == 0);
  const PaperPlacement second = prefill.place(0, 2000, kPrompt);
  CHECK(second.node == 1);
  CHECK(second.fetched());
  CHECK(second.fetch_s == doctest::Approx(1999 * kPaperTokenBytes / 87e9));
  CHECK(second.ttft_s == doctest::Approx(second.fetch_s + prefill_s(2000, 1999)));
}

TEST_CASE("sim/paper: the cost rule computes on a slow wire, the threshold rule fetches regardless") {
  for (const auto rule : {sched::FetchRule::cost, sched::FetchRule::threshold}) {
    PaperPrefillOptions options = two_nodes("kv-centric", rule);
    options.bytes_per_s = 2e9;  // 0.16 ms a token, computing takes 0.11
    PaperPrefill prefill(options, 4);
    prefill.place(0, 2000, kPrompt);
    prefill.place(0, 100'000, {});  // node 1, for long
    prefill.place(0, 120'000, {});  // node 0, for longer
    CHECK(prefill.place(0, 2000, kPrompt).fetched() == (rule == sched::FetchRule::threshold));
  }
}

TEST_CASE("sim/paper: a larger threshold is content with less of the prefix") {
  for (const double theta : {1.0, 2.0}) {
    PaperPrefillOptions options = two_nodes("kv-centric");
    options.theta = theta;
    PaperPrefill prefill(options, 8);
    const std::vector<uint32_t> half = {0, 1};
    prefill.place(0, 1000, half);                             // node 0 has half
    prefill.place(0, 100'000, {});                            // node 1 is busy
    CHECK(prefill.place(1, 2000, kPrompt).node == 0);         // now the whole
    prefill.place(2, 1000, std::vector<uint32_t>{4, 5});      // node 0 again
    prefill.place(300, 200'000, {});                          // node 0 is busy
    const PaperPlacement p = prefill.place(300, 1000, half);  // node 1 fetches half: it has nothing
    CHECK(p.node == 1);
    CHECK(p.fetched());
    // Node 1 holds 2 of the 4 blocks that node 0 has: 4 > theta x 2 only for theta below 2.
    CHECK(prefill.place(300, 2000, kPrompt).fetched() == (theta < 2));
  }
}

TEST_CASE("sim/paper: load counts seconds, load-count requests that have not ended") {
  PaperPrefill seconds(two_nodes("load"), 1), requests(two_nodes("load-count"), 1);
  for (PaperPrefill* prefill : {&seconds, &requests}) {
    CHECK(prefill->place(0, 100'000, {}).node == 0);
    CHECK(prefill->place(0, 1000, {}).node == 1);
  }
  CHECK(seconds.place(0, 1000, {}).node == 1);
  CHECK(requests.place(0, 1000, {}).node == 0);
  CHECK(requests.place(.001, 1000, {}).node == 1);
  // Node 1's two are done, node 0 is still busy with its first.
  CHECK(requests.place(10, 1000, {}).node == 1);
}

TEST_CASE("sim/paper: for load-count a request that ends now has ended") {
  PaperPrefill prefill(two_nodes("load-count"), 1);
  prefill.place(0, 100'000, {});
  const PaperPlacement second = prefill.place(0, 1000, {});
  CHECK(second.node == 1);
  CHECK(prefill.place(second.end_s, 1000, {}).node == 1);
}

TEST_CASE("sim/paper: affinity goes to the longest match, among equals to the shortest wait") {
  PaperPrefill prefill(two_nodes("affinity"), 4);
  CHECK(prefill.place(0, 100'000, {}).node == 0);
  CHECK(prefill.place(0, 2000, kPrompt).node == 1);
  for (int i = 0; i < 200; ++i) CHECK(prefill.place(0, 2000, kPrompt).node == 1);
}

TEST_CASE("sim/paper: random draws once a request from the seed's mt19937_64") {
  PaperPrefillOptions options = two_nodes("random");
  options.nodes = 1000;
  options.seed = 5489;  // the generator's own default: its first draw is in the standard's neighbourhood
  PaperPrefill prefill(options, 1);
  CHECK(prefill.place(0, 10, {}).node == 14514284786278117030u % 1000);
}

TEST_CASE("sim/paper-decode: a request joins at the next step's start and its first token is not a step") {
  PaperDecode decode(1, 3);
  decode.arrive(0, 0, 1000, 3);     // two steps
  decode.arrive(.001, 1, 2000, 2);  // joins the second
  decode.arrive(.002, 2, 10, 1);    // its prefill made the only token
  decode.finish();
  const auto step = [](double rows, double context) { return kPaperCost.step(rows, context); };
  CHECK(decode.tbt_s()[0] == std::max(step(1, 1001), step(2, 1002 + 2001)));
  CHECK(decode.tbt_s()[1] == step(2, 1002 + 2001));
  CHECK(decode.tbt_s()[2] == 0);
  CHECK(decode.batch_max() == 2);
}

TEST_CASE("sim/paper-decode: a request that arrives as a step ends waits for the one then begun") {
  PaperDecode decode(1, 2);
  const double first_step_s = kPaperCost.step(1, 1001);
  decode.arrive(0, 0, 1000, 3);
  decode.arrive(first_step_s, 1, 2000, 2);
  decode.finish();
  CHECK(decode.tbt_s()[0] == kPaperCost.step(1, 1002));
  CHECK(decode.tbt_s()[1] == kPaperCost.step(1, 2001));
}

TEST_CASE("sim/paper-decode: waiting requests count when the node is chosen, ties go to the first") {
  PaperDecode decode(2, 3);
  decode.arrive(0, 0, 1000, 3);     // node 0
  decode.arrive(.001, 1, 1000, 3);  // node 1: idle
  decode.arrive(.002, 2, 1000, 3);  // equal: node 0, whose first request then shares its second step
  decode.finish();
  CHECK(decode.tbt_s()[0] > decode.tbt_s()[1]);
}

TEST_CASE("sim/paper-decode: TBT is the mean of the longest tenth of the steps, rounded up") {
  PaperDecode decode(1, 1);
  decode.arrive(0, 0, 99, 12);  // 11 steps with contexts 100 to 110: the longest two count
  decode.finish();
  CHECK(decode.tbt_s()[0] == doctest::Approx((kPaperCost.step(1, 110) + kPaperCost.step(1, 109)) / 2).epsilon(1e-12));
}

TEST_CASE("sim/paper: twice the speed halves the arrivals and leaves an endless cache's hits alone") {
  std::vector<TraceRequest> trace;
  for (uint64_t i = 0; i < 50; ++i) trace.push_back({1000.0 * static_cast<double>(i), 1500, 2, {i % 7, i % 7 + 10, i}});
  const TraceBlocks blocks(trace);
  PaperOptions options;
  options.prefill = two_nodes("kv-centric");
  options.prefill.nodes = 1;
  options.prefill.cache_blocks = kUnlimitedBlocks;
  const PaperRun once = run_paper(trace, blocks, options);
  options.speedup = 2;
  const PaperRun twice = run_paper(trace, blocks, options);
  CHECK(once.token_hit == twice.token_hit);
  CHECK(once.placements[49].end_s - once.placements[49].ttft_s == 49);
  CHECK(twice.placements[49].end_s - twice.placements[49].ttft_s == 24.5);
}

TEST_CASE("sim/paper: a cluster is written 8p or 8p8d") {
  REQUIRE_OK(parse_paper_cluster("8p"));
  CHECK(parse_paper_cluster("8p")->decode == 0);
  CHECK(parse_paper_cluster("10p6d")->prefill == 10);
  CHECK(parse_paper_cluster("10p6d")->decode == 6);
  for (const char* bad : {"", "p", "8", "0p", "8d", "8p8", "8pd", "8p8d1c", "-1p", "5000p", "8p 8d", "8p8dd"})
    CHECK_FALSE(parse_paper_cluster(bad).has_value());
}

TEST_CASE("sim/trace: equal ids are one block, and what is written reads the same") {
  const std::vector<TraceRequest> trace = {{0, 600, 1, {7, 1'000'000'000'000}}, {1.5, 100, 2, {1'000'000'000'000}}};
  const TraceBlocks blocks(trace);
  CHECK(blocks.unique() == 2);
  CHECK(blocks.of(0)[1] == blocks.of(1)[0]);
  CHECK(trace_line(trace[1]) ==
        "{\"timestamp\": 1.5, \"input_length\": 100, \"output_length\": 2, \"hash_ids\": [1000000000000]}\n");
}

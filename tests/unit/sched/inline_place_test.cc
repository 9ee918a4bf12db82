// The choice of a decode node that computes a short prompt itself.
#include "sched/inline_place.h"

#include <array>

#include "sched/sched.h"
#include "test.h"

namespace inline_place_test {

using namespace mc;
using namespace mc::sched;

namespace {

/// Prompts cost 1 ms a token, steps 10 ms and 1 ms a row, and the KV of a block takes 4 ms to read.
Cost cost() {
  Cost out;
  out.prefill_s = 0, out.prefill_s_per_token = 1e-3;
  out.decode_s = 10e-3, out.decode_s_per_row = 1e-3, out.decode_s_per_kv_token = 0;
  out.read_bytes_per_s = 1e6;
  return out;
}

/// A prompt of 100 tokens, p0 idle, and d0 and d1, which compute prompts of up to 128 tokens.
Snapshot snapshot() {
  Snapshot s;
  s.tokens = 100, s.answer_tokens = 10, s.block_tokens = 64, s.block_bytes = 4000;
  PrefillView p0;
  p0.name = "p0", p0.cost = cost(), p0.holder = 0;
  s.prefill = {p0};
  s.add_holder("p0"), s.add_holder("d0"), s.add_holder("d1");
  s.decode = {{.capacity_tokens = 10'000, .cost = cost(), .holder = 1, .name = "d0"},
              {.capacity_tokens = 10'000, .cost = cost(), .holder = 2, .name = "d1"}};
  s.inlines = {{.decode = 0, .tokens_max = 128}, {.decode = 1, .tokens_max = 128}};
  return s;
}

Placement run(const Snapshot& s, Options options = {}) {
  Rng rng(1);
  return place(s, *find_policy("kv-centric"), options, rng);
}

void rows(Snapshot& s, size_t decode, uint32_t count) {
  s.decode[decode].rows = count, s.decode[decode].kv_tokens = count * uint64_t{100};
}

}  // namespace

TEST_CASE("sched/inline_place: an idle decode node computes a short prompt, which saves the hand-over") {
  const Placement p = run(snapshot());
  REQUIRE(p.is_inlined);
  CHECK(p.inlined->decode == 0);
  CHECK(p.decode == 0);
  CHECK(p.ttft_s == doctest::Approx(0.1));
  CHECK(p.handed_over_s == doctest::Approx(0.108));
  CHECK(p.candidate == 0);  // the prefill node that was worse
}

TEST_CASE("sched/inline_place: a longer rest, no room, a bar or the client's wish take a pair of nodes") {
  Snapshot s = snapshot();
  CHECK_FALSE(run(s, {.may_inline = false}).is_inlined);
  s.tokens = 129;
  CHECK_FALSE(run(s).inlined);
  s.inlines[1].local_blocks = 1;  // 65 tokens are left on d1
  CHECK(run(s).decode == 1);
  CHECK(run(s).inlined->local_blocks == 1);
  s.decode[1].capacity_tokens = 129;
  CHECK_FALSE(run(s).inlined);
  s.tokens = 100;
  s.bars = {{.prefill = -1, .decode = 0}};
  CHECK(run(s).decode == 1);
  s.decode[1].accepting = false;
  CHECK_FALSE(run(s).inlined);
}

TEST_CASE("sched/inline_place: the sooner of pair and decode node has the prompt, and admission sees its time") {
  Snapshot s = snapshot();
  rows(s, 0, 5), rows(s, 1, 5);  // the steps under way and beside the chunk take 15 ms each
  Placement p = run(s);
  CHECK_FALSE(p.is_inlined);
  REQUIRE(p.inlined);
  CHECK(p.inlined->ttft_s == doctest::Approx(0.130));
  CHECK(p.ttft_s == doctest::Approx(0.1));
  s.prefill[0].queue_s = 0.1;
  p = run(s, {.ttft_slo_s = 0.15});  // the pair would miss it
  CHECK(p.is_inlined);
  CHECK(p.verdict.admit);
  CHECK(p.ttft_s == doctest::Approx(0.130));
  s.inlines[0].queue_s = s.inlines[1].queue_s = 0.5;
  p = run(s, {.ttft_slo_s = 0.15});
  CHECK(p.reason == NoPlace::predicted_slo_miss);
  CHECK_FALSE(p.is_inlined);
  s.inlines[1].queue_s = 0.01;
  CHECK(run(s).decode == 1);
}

TEST_CASE("sched/inline_place: the gap between two tokens of running requests stays within the bound of TBT") {
  Snapshot s = snapshot();
  rows(s, 0, 1), rows(s, 1, 1);
  s.prefill[0].queue_s = 1;
  CHECK(run(s, {.tbt_slo_s = 0.112}).is_inlined);  // a step of 11 ms and the chunk of 100 ms
  CHECK_FALSE(run(s, {.tbt_slo_s = 0.110}).inlined);
  CHECK(run(s, {.tbt_slo_s = 0.110}).candidate == 0);
  rows(s, 1, 0);  // nobody waits for tokens there
  CHECK(run(s, {.tbt_slo_s = 0.110}).decode == 1);
}

TEST_CASE("sched/inline_place: the books of a decode node have its prompts, its blocks in memory and its cost") {
  Board board;
  BoardMember p0, d0;
  p0.slot = 0, p0.name = "p0", p0.prefill = true, p0.announced = cost();
  d0.slot = 1, d0.name = "d0", d0.decode = true, d0.announced = cost();
  d0.capacity_tokens = 10'000, d0.inline_tokens = 128;
  board.set_members(std::array{p0, d0}, 64, 4000);
  Booking b;
  b.prefill = b.decode = 1, b.prefill_s = 0.1, b.tokens = 100;
  board.place(b, TimePoint{});
  board.check(std::vector<const Booking*>{&b}, {});
  CHECK(board.requests(1) == 1);
  Board::Ask ask;
  ask.tokens = 300;
  const std::vector<kv::NodeMatch> matches = {{.node = 1, .resident = 3, .expected = 4, .on_disk = 1}};
  ask.matches = matches;
  Snapshot& s = board.look(ask, TimePoint{} + 40ms);
  REQUIRE(s.inlines.size() == 1);
  CHECK(s.inlines[0].queue_s == doctest::Approx(0.06));
  CHECK(s.inlines[0].local_blocks == 2);  // the last one is on disk
  CHECK(s.inlines[0].tokens_max == 128);
  CHECK(s.prefill.size() == 1);
  board.end_prefill(b, TimePoint{} + 50ms);
  board.arrive(b);
  board.check(std::vector<const Booking*>{&b}, {});
  CHECK(board.look(ask, TimePoint{} + 50ms).inlines[0].queue_s == 0);
  for (int i = 0; i < 50; ++i) board.prefilled(1, 100, 0, 0.2);
  CHECK(board.look(ask, TimePoint{} + 50ms).decode[0].cost.prefill(100, 0) == doctest::Approx(0.2).epsilon(0.05));
  board.end(b, TimePoint{} + 60ms);
  board.check({}, {});
  CHECK(s.decode[0].rows == 0);
}

}  // namespace inline_place_test

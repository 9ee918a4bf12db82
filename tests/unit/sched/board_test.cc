// The books of a cluster and the snapshot of them.
#include "sched/board.h"

#include "base/rng.h"
#include "test.h"

using namespace mc;
using namespace mc::sched;

namespace {

constexpr TimePoint kStart{};

BoardMember member(uint32_t slot, NodeId name, bool prefill) {
  BoardMember out;
  out.slot = slot, out.name = std::move(name);
  out.prefill = prefill, out.decode = !prefill;
  out.capacity_tokens = 10'000;
  out.announced.prefill_s = 0, out.announced.prefill_s_per_token = 1e-3;
  return out;
}

std::vector<BoardMember> two_and_two() {
  return {member(0, "d0", false), member(1, "d1", false), member(2, "p0", true), member(3, "p1", true)};
}

Booking booking(int prefill, int decode, double seconds, uint64_t tokens) {
  Booking out;
  out.prefill = prefill, out.decode = decode, out.prefill_s = seconds, out.tokens = tokens;
  return out;
}

}  // namespace

TEST_CASE("sched/board: a placed request counts at its two nodes until each has done its part") {
  Board board;
  board.set_members(two_and_two(), 64, 4096);
  Booking b = booking(2, 0, 2, 100);
  b.sources = {3};
  board.place(b, kStart);
  board.check(std::vector<const Booking*>{&b}, {});
  Snapshot& s = board.look({}, kStart + 500ms);
  CHECK(s.prefill[0].queue_s == doctest::Approx(1.5));
  CHECK(s.prefill[0].unfinished == 1);
  CHECK(s.holders[3].transfers_leaving == 1);
  CHECK(s.decode[0].rows == 1);
  CHECK(s.decode[0].arrived_rows == 0);
  board.end_prefill(b, kStart + 3s);
  board.arrive(b);
  board.add_tokens(b, 5);
  board.check(std::vector<const Booking*>{&b}, {});
  CHECK(board.look({}, kStart + 3s).prefill[0].queue_s == 0);
  CHECK(s.holders[3].transfers_leaving == 0);
  CHECK(s.decode[0].arrived_kv_tokens == 105);
  CHECK(board.ended_prefills(2) == 1);
  board.end(b, kStart + 4s);
  board.check({}, {});
  CHECK(s.decode[0].rows == 0);
  CHECK_FALSE(b.placed);
}

TEST_CASE("sched/board: a view says whether the node has reported its kind of work") {
  Board board;
  board.set_members(two_and_two(), 64, 4096);
  CHECK_FALSE(board.look({}, kStart).prefill[0].measured);
  CHECK_FALSE(board.look({}, kStart).decode[1].measured);
  board.prefilled(2, 100, 0, 0.1);
  board.stepped(1, 1, 100, 0.1);
  const Snapshot& s = board.look({}, kStart);
  CHECK((s.prefill[0].measured && !s.prefill[1].measured));
  CHECK((s.decode[1].measured && !s.decode[0].measured));
}

TEST_CASE("sched/board: a request that leaves a queue takes only its own predicted part of the queue with it") {
  Board board;
  board.set_members(two_and_two(), 64, 4096);
  Booking runs = booking(2, 0, 20, 100), waits = booking(2, 0, 1, 10), last = booking(2, 0, 10, 10);
  board.place(runs, kStart);
  board.place(waits, kStart);
  board.end(waits, kStart + 19s);  // the client of the waiting request went
  CHECK(board.queue_s(2, kStart + 19s) == doctest::Approx(1));
  board.place(last, kStart + 19s);
  CHECK(board.queue_s(2, kStart + 19s) == doctest::Approx(11));
  board.end(runs, kStart + 19s);  // 19 of its 20 seconds are over
  CHECK(board.queue_s(2, kStart + 19s) == doctest::Approx(10));
  board.end_prefill(last, kStart + 25s);
  CHECK(board.queue_s(2, kStart + 25s) == 0);
}

TEST_CASE("sched/board: tokens counted by node and tokens counted by request come to the same books") {
  Board one_by_one, at_once;
  one_by_one.set_members(two_and_two(), 64, 4096);
  at_once.set_members(two_and_two(), 64, 4096);
  Booking a = booking(2, 0, 1, 100), b = booking(2, 0, 1, 100), other = booking(3, 0, 1, 40);
  Booking* const arriving[] = {&a, &b, &other};
  one_by_one.place(a, kStart);
  at_once.place(b, kStart), at_once.place(other, kStart);
  for (Booking* booking : arriving) {
    Board& board = booking == &a ? one_by_one : at_once;
    board.end_prefill(*booking, kStart);
    board.arrive(*booking);
  }
  for (int i = 0; i < 7; ++i) one_by_one.add_tokens(a, 1);
  at_once.grow(0, 14);  // seven of each row
  CHECK(one_by_one.look({}, kStart).decode[0].arrived_kv_tokens == 107);
  CHECK(at_once.look({}, kStart).decode[0].arrived_kv_tokens == 154);
  at_once.end(other, kStart, 7);
  CHECK(at_once.look({}, kStart).decode[0].kv_tokens == one_by_one.look({}, kStart).decode[0].kv_tokens);
  at_once.end(b, kStart, 7);
  one_by_one.end(a, kStart);
  at_once.check({}, {});
  one_by_one.check({}, {});
}

TEST_CASE("sched/board: a node that serves both phases is busy with the rows that it decodes") {
  Board board;
  BoardMember both = member(0, "m0", true);
  both.decode = true;
  board.set_members(std::vector<BoardMember>{both}, 64, 4096);
  Booking decodes = booking(0, 0, 1, 100), computes = booking(0, 0, 1, 50);
  board.place(decodes, kStart);
  board.end_prefill(decodes, kStart);
  board.arrive(decodes);
  board.place(computes, kStart);
  CHECK(board.look({}, kStart).prefill[0].unfinished == 2);
  board.check(std::vector<const Booking*>{&decodes, &computes}, {});
  board.end(decodes, kStart);
  CHECK(board.look({}, kStart).prefill[0].unfinished == 1);
}

TEST_CASE("sched/board: a change of members keeps the books of those that stay and forgets the others") {
  Board board;
  board.set_members(two_and_two(), 64, 4096);
  Booking stays = booking(2, 0, 1, 100), goes = booking(3, 0, 1, 50);
  board.place(stays, kStart);
  board.place(goes, kStart);
  board.end(goes, kStart);
  auto members = two_and_two();
  members.pop_back();                        // p1
  members.push_back(member(4, "p2", true));  // a new node
  board.set_members(members, 64, 4096);
  board.check(std::vector<const Booking*>{&stays}, {});
  CHECK(board.find("p1") == -1);
  const Snapshot& s = board.look({}, kStart);
  REQUIRE(s.prefill.size() == 2);
  CHECK(s.prefill[0].queue_s == doctest::Approx(1));
  CHECK(s.prefill[1].name == "p2");
  CHECK(s.prefill[1].queue_s == 0);
  CHECK(s.decode[0].kv_tokens == 100);
}

TEST_CASE("sched/board: one request's restrictions are gone with the next look") {
  Board board;
  auto members = two_and_two();
  members[1].model = "other";
  members[3].draining = true;
  board.set_members(members, 64, 4096);
  const auto accepting = [&](const Board::Ask& ask) {
    std::string out;
    const Snapshot& s = board.look(ask, kStart);
    for (const auto& view : s.prefill) out += view.accepting ? view.name + " " : "";
    for (const auto& view : s.decode) out += view.accepting ? view.name + " " : "";
    return out;
  };
  CHECK(accepting({}) == "p0 d0 d1 ");
  const NodeId d1 = "d1";
  Board::Ask pinned, avoiding, modelled;
  pinned.decode = &d1;
  CHECK(accepting(pinned) == "p0 d1 ");
  avoiding.avoid = 0;
  CHECK(accepting(avoiding) == "p0 d1 ");
  avoiding.avoid = 2;  // the only prefill node that does not drain
  CHECK(accepting(avoiding) == "p0 d0 d1 ");
  const std::string model = "other";
  modelled.model = &model;
  CHECK(accepting(modelled) == "d1 ");
  CHECK(accepting({}) == "p0 d0 d1 ");
}

TEST_CASE("sched/board: a node that has served nothing is taken to be as slow as those that have") {
  Board board;
  board.set_members(two_and_two(), 64, 4096);
  for (int i = 0; i < 20; ++i) board.prefilled(2, 1000, 0, 3);  // three times what it announced
  const Snapshot& s = board.look({}, kStart);
  CHECK(s.prefill[0].cost.prefill(1000, 0) == doctest::Approx(3).epsilon(0.1));
  CHECK(s.prefill[1].cost.prefill(1000, 0) == doctest::Approx(3).epsilon(0.1));
}

TEST_CASE("sched/board: the snapshot shows who holds blocks of this request and of no earlier one") {
  Board board;
  auto members = two_and_two();
  members[3].readable = false;
  board.set_members(members, 64, 4096);
  const std::vector<kv::NodeMatch> first = {{.node = 2, .resident = 3, .expected = 5},
                                            {.node = 3, .resident = 4, .expected = 4}};
  Board::Ask ask;
  ask.matches = first;
  const Snapshot& s = board.look(ask, kStart);
  CHECK(s.prefill[0].resident_blocks == 5);
  CHECK(s.holders[2].readable_blocks == 3);
  CHECK(s.holders[2].pending_blocks == 5);
  CHECK(s.prefill[1].resident_blocks == 4);
  CHECK(s.holders[3].readable_blocks == 0);
  board.look({}, kStart);
  for (const auto& view : s.prefill) CHECK(view.resident_blocks == 0);
  for (const auto& holder : s.holders) CHECK(holder.readable_blocks + holder.pending_blocks == 0);
}

TEST_CASE("sched/board: blocks on a node's disk cost the time of reading them, which the node's reports change") {
  Board board;
  board.set_members(two_and_two(), 64, 4096);
  board.loads(2, {.disk = 0.25});
  board.loads(3, {.disk = 0.5});
  const std::vector<kv::NodeMatch> matches = {{.node = 2, .resident = 6, .expected = 6, .on_disk = 4},
                                              {.node = 3, .resident = 8, .expected = 8, .on_disk = 2}};
  Board::Ask ask;
  ask.tokens = 64 * 9, ask.matches = matches;
  Snapshot& s = board.look(ask, kStart);
  CHECK(s.prefill[0].load_s == doctest::Approx(1));
  CHECK(s.holders[3].disk_blocks == 2);
  board.loads(2, {.disk = 0.125});
  CHECK(board.look(ask, kStart).prefill[0].load_s == doctest::Approx(0.5));
  Candidate c;
  c.node = 0, c.local_blocks = 6, c.load_s = s.prefill[0].load_s;
  predict(s, c);
  CHECK(c.ttft_s == doctest::Approx(0.5 + 64 * 3 * 1e-3));
  c.holder = 3, c.fetch_blocks = 2;
  predict(s, c);
  CHECK(c.fetch_s > 1);  // both of the blocks that p1 has in addition are on its disk
  CHECK(c.ttft_s == doctest::Approx(c.fetch_s + 64 * 1e-3));  // they come while the node reads its own disk
  Candidate slow = c;
  slow.load_s = 5;
  predict(s, slow);
  CHECK(slow.ttft_s == doctest::Approx(5 + 64 * 1e-3));
  Candidate queued = c;
  s.prefill[0].queue_s = 10;
  predict(s, queued);
  CHECK(queued.ttft_s == doctest::Approx(10 + 64 * 1e-3));  // the disk is read while the request waits
  board.loads(2, {.disk = -1});
  CHECK(board.look(ask, kStart).prefill[0].load_s == doctest::Approx(0.5));  // no time: ignored
}

TEST_CASE("sched/board: cached blocks that are not on a node's device cost their copies where computing is shorter") {
  Board board;
  board.set_members(two_and_two(), 64, 4096);
  const std::vector<kv::NodeMatch> matches = {{.node = 2, .resident = 8, .expected = 8, .on_device = 2},
                                              {.node = 3, .resident = 8, .expected = 8}};
  Board::Ask ask;
  ask.tokens = 64 * 9, ask.matches = matches;
  Snapshot& s = board.look(ask, kStart);
  Candidate c;
  c.node = 0, c.local_blocks = 8;
  predict(s, c);
  const double computed_s = c.prefill_s;
  CHECK(c.to_device_s == 0);  // the node has no such tier
  CHECK(c.ttft_s == doctest::Approx(computed_s));
  board.loads(2, {.device = computed_s / 12});
  predict(s, c);
  CHECK(c.to_device_s == doctest::Approx(computed_s / 2));  // of the six blocks that are not there
  CHECK(c.ttft_s == doctest::Approx(computed_s));           // beside the computing
  board.loads(2, {.device = computed_s / 2});
  board.loads(3, {.device = computed_s / 8});
  predict(s, c);
  CHECK(c.ttft_s == doctest::Approx(3 * computed_s));
  Options options;
  Rng rng(1);
  const Placement placement = place(board.look(ask, kStart), *find_policy("kv-centric"), options, rng);
  REQUIRE(placement.candidate >= 0);
  CHECK(placement.candidates[static_cast<size_t>(placement.candidate)].node == 1);  // it copies eight in less time
  board.loads(2, {.device = -1});
  CHECK(board.look(ask, kStart).devices[0].block_s == doctest::Approx(computed_s / 2));  // no time: ignored
}

TEST_CASE("sched/board: reads change the cost of their own pair of nodes, and two slow sources that of all others") {
  Board board;
  board.set_members(two_and_two(), 64, 1'000'000);
  const auto fetch_s = [&](size_t prefill, int holder, TimePoint now) {
    const Snapshot& s = board.look({}, now);
    return fetch_seconds(s, reader_of(s.prefill[prefill]), holder, 10);
  };
  CHECK(board.look({}, kStart).transfers == nullptr);
  for (int i = 0; i < 3; ++i) board.read(2, 3, 1e7, 1, kStart);  // from p0 into p1, a hundred times slower
  CHECK(fetch_s(1, 2, kStart) == doctest::Approx(1));
  CHECK(fetch_s(1, 0, kStart) == doctest::Approx(0.01));
  CHECK(fetch_s(0, 3, kStart) == doctest::Approx(0.01));
  CHECK(board.transfers().seconds(2, 3, 1e7, kStart) == doctest::Approx(1));
  for (int i = 0; i < 3; ++i) board.read(0, 3, 1e7, 0.5, kStart);
  CHECK(fetch_s(1, 1, kStart) == doctest::Approx(0.5));  // the link of p1 itself
  CHECK(fetch_s(1, 1, kStart + 3600s) == doctest::Approx(0.01));
  auto members = two_and_two();
  members.erase(members.begin());
  board.set_members(members, 64, 1'000'000);
  CHECK(fetch_s(1, 1, kStart) == doctest::Approx(1));
  members[2].readable = false;
  board.set_members(members, 64, 1'000'000);
  CHECK(fetch_s(1, 1, kStart) > 1e6);
  board.check({}, {});
}

TEST_CASE("sched/board: a decode node is one of the holders") {
  Board board;
  board.set_members(two_and_two(), 64, 4096);
  const Snapshot& s = board.look({}, kStart);
  for (const DecodeView& node : s.decode) CHECK(s.holder_names[static_cast<size_t>(node.holder)] == node.name);
}

TEST_CASE("sched/board: whatever happens to requests, the books are their sum") {
  Rng rng(test::seed());
  Board board;
  board.set_members(two_and_two(), 64, 4096);
  std::vector<Booking> all(20);
  TimePoint now = kStart;
  for (int i = 0; i < 2000; ++i) {
    now += Duration(rng.between(0, 100'000'000));
    Booking& b = all[rng.below(all.size())];
    if (!b.placed) {
      b = booking(2 + static_cast<int>(rng.below(2)), static_cast<int>(rng.below(2)), 0.1, rng.below(1000));
      if (rng.chance(0.3)) b.sources = {static_cast<int>(rng.below(4))};
      board.place(b, now);
    } else if (b.queued && rng.chance(0.5)) {
      board.end_prefill(b, now);
    } else if (!b.queued && !b.arrived) {
      board.arrive(b);
    } else if (rng.chance(0.5)) {
      board.add_tokens(b, 1);
    } else {
      board.end(b, now);
    }
    std::vector<const Booking*> bookings;
    for (const Booking& one : all) bookings.push_back(&one);
    board.check(bookings, {});
  }
}

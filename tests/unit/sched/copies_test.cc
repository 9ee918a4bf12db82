// Copies of hot prefixes under way.
#include "sched/copies.h"

#include "test.h"

namespace copies_test {

using namespace mc;
using namespace mc::sched;

namespace {

/// Three prefill nodes, the first of which holds a prefix that everybody asks for.
struct Bench {
  static ReplicateOptions options() {
    ReplicateOptions o;
    o.replicas_max = 3, o.bytes_per_s = 1e9;
    return o;
  }
  Bench() : copies(options()) {
    for (uint32_t i = 0; i < 3; ++i) {
      BoardMember m;
      m.slot = i, m.name = "p" + std::to_string(i), m.prefill = true;
      members.push_back(m);
    }
    board.set_members(members, 64, 4096);
    for (uint8_t i = 0; i < 8; ++i) hashes.emplace_back().bytes[0] = static_cast<uint8_t>(1 + i);
  }
  std::optional<CopyOrders::Order> request() {
    const std::vector<kv::NodeMatch> matches = {{.node = 0, .resident = 8, .expected = 8}};
    Board::Ask ask;
    ask.tokens = 8 * 64 + 1;
    ask.matches = matches;
    const Snapshot& s = board.look(ask, now);
    Candidate chosen;
    chosen.local_blocks = 8, chosen.prefill_s = 5;
    return copies.consider(hashes, s, chosen, board, now);
  }
  std::optional<CopyOrders::Order> hot() {
    for (int i = 0; i < 1000000; ++i)
      if (auto order = request()) return order;
    return std::nullopt;
  }

  TimePoint now{};
  std::vector<BoardMember> members;
  std::vector<BlockHash> hashes;
  Board board;
  CopyOrders copies;
};

}  // namespace

TEST_CASE("sched/copies: a hot prefix is copied once at a time, and its transfer is in the books") {
  Bench b;
  const auto order = b.hot();
  REQUIRE(order);
  CHECK(order->source == 0);
  CHECK(order->target != 0);
  CHECK(order->end_block == 8);
  CHECK(b.copies.size() == 1);
  b.board.check({}, b.copies.sources());
  CHECK_FALSE(b.request());
  CHECK(b.copies.end(order->number, true, 8, b.board, b.now));
  CHECK_FALSE(b.copies.end(order->number, true, 8, b.board, b.now));
  b.board.check({}, {});
  CHECK(b.copies.stats().copies == 1);
  CHECK(b.copies.stats().blocks == 8);
}

TEST_CASE("sched/copies: one that fails is paid back, and none is ordered for a while") {
  Bench b;
  const double before = b.copies.budget_bytes(b.now);
  const auto order = b.hot();
  REQUIRE(order);
  CHECK(b.copies.budget_bytes(b.now) == doctest::Approx(before - static_cast<double>(order->bytes)));
  SUBCASE("its node went") {
    b.copies.end_of(order->target, b.board, b.now);
  }
  SUBCASE("it is late") {
    CHECK(b.copies.next_wakeup() == b.now + CopyOrders::kTimeout);
    b.now = b.copies.next_wakeup();
    b.copies.end_late(b.board, b.now);
  }
  CHECK(b.copies.size() == 0);
  CHECK(b.copies.stats().failed == 1);
  CHECK(b.copies.budget_bytes(b.now) == doctest::Approx(before));
  CHECK_FALSE(b.request());
  b.now += CopyOrders::kPauseAfterFailure;
  CHECK(b.hot());
}

}  // namespace copies_test

// Held requests: who goes next, and what each waits for.
#include "sched/line.h"

#include <list>
#include <map>

#include "test.h"

namespace line_test {

using namespace mc;
using namespace mc::sched;

namespace {

/// Two prefill nodes and a decode node, whose queues are bookings.
struct Bench {
  explicit Bench(LineOptions::Hold hold = LineOptions::Hold::on) : line(options(hold)) {
    line.tenants().set_tenants({});
    std::vector<BoardMember> members;
    for (const auto& [slot, name] : {std::pair{0u, "d0"}, {1u, "p0"}, {2u, "p1"}}) {
      BoardMember m;
      m.slot = slot, m.name = name;
      m.prefill = slot > 0, m.decode = slot == 0;
      m.capacity_tokens = 100'000;
      m.announced.prefill_s = 0, m.announced.prefill_s_per_token = 1e-3;
      members.push_back(m);
    }
    board.set_members(members, 64, 4096);
  }
  static LineOptions options(LineOptions::Hold hold) {
    LineOptions out;
    out.hold = hold;
    out.lead = 100ms;
    return out;
  }
  HeldRequest request(const RequestId& id, double seconds = 1) const {
    HeldRequest r;
    r.id = id, r.tokens = 1000, r.work_s = seconds, r.arrived = now;
    return r;
  }
  /// Runs something on the node for so long.
  Booking& busy(int slot, double seconds) {
    Booking& b = bookings.emplace_back();
    b.prefill = slot, b.decode = 0, b.prefill_s = seconds, b.tokens = 10;
    board.place(b, now);
    return b;
  }
  void end(Booking& b) {
    board.end_prefill(b, now);
    line.room_changed();
  }
  /// One round in which every request that has its turn runs on `slot`, or finds no place (-1).
  std::vector<RequestId> round(int slot, double seconds = 1) {
    std::vector<RequestId> out;
    line.begin_round(board, now);
    while (const auto id = line.take_turn(board, now)) {
      out.push_back(*id);
      if (slot < 0) {
        line.put_back(*id, board, now);
        continue;
      }
      line.erase(*id);
      busy(slot, seconds);
    }
    line.end_round(board, now);
    line.check();
    return out;
  }

  HeldRequest bounded(const RequestId& id, const std::string& destination = "/") const {
    HeldRequest r = request(id);
    r.destination = destination;
    r.expires = now + 100s;
    return r;
  }
  void push_bounded(const RequestId& id, const std::string& destination = "/") { line.push(bounded(id, destination)); }
  /// One round in which admission refuses every request for the decode load.
  std::vector<RequestId> refuse_round() {
    return refuse_round([](const RequestId&) { return true; });
  }
  /// One round in which admission refuses some requests for the decode load. The others run and end at once.
  template <class Refuses>
  std::vector<RequestId> refuse_round(const Refuses& refuses) {
    Placement refused;
    refused.reason = NoPlace::predicted_slo_miss;
    refused.verdict.bound = Bound::tbt;
    std::vector<RequestId> out;
    line.begin_round(board, now);
    while (const auto id = line.take_turn(board, now)) {
      out.push_back(*id);
      if (!refuses(*id)) {
        line.erase(*id);
        continue;
      }
      CHECK(line.turn_of(*id, refused) == Line::Turn::wait);
      line.put_back(*id, board, now);
    }
    line.end_round(board, now);
    line.check();
    return out;
  }

  TimePoint now{};
  Board board;
  Line line;
  std::list<Booking> bookings;
};

using Ids = std::vector<RequestId>;

}  // namespace

TEST_CASE("sched/line: nobody has a turn while all nodes are busy, and time alone gives it") {
  Bench b;
  b.busy(1, 1), b.busy(2, 5);
  b.line.push(b.request("a"));
  CHECK(b.round(1).empty());
  CHECK(b.line.next_wakeup() == b.now + 900ms + 1us);
  b.now = b.line.next_wakeup();
  CHECK(b.line.wants_round(b.now));
  CHECK(b.round(1) == Ids{"a"});
  CHECK(b.line.size() == 0);
  CHECK(b.line.next_wakeup() == kNever);
}

TEST_CASE("sched/line: a request that found no place is not asked again before a node gets room") {
  Bench b;
  b.line.push(b.request("a"));
  CHECK(b.round(-1) == Ids{"a"});
  CHECK(b.round(-1).empty());
  b.line.room_changed();
  CHECK(b.round(-1) == Ids{"a"});
}

TEST_CASE("sched/line: a pinned request waits for its node alone and holds up no other") {
  Bench b;
  Booking& running = b.busy(1, 5);
  HeldRequest pinned = b.request("pinned");
  pinned.pin = "p0";
  b.line.push(pinned);
  b.line.push(b.request("free"));
  CHECK(b.round(2) == Ids{"free"});
  CHECK(b.line.contains("pinned"));
  b.end(running);
  CHECK(b.round(1) == Ids{"pinned"});
}

TEST_CASE("sched/line: a request without nodes has no turn until they are back") {
  Bench b;
  b.line.push(b.request("a"));
  b.line.set_has_nodes("a", false);
  CHECK(b.round(1).empty());
  b.line.room_changed();
  CHECK(b.round(1).empty());
  b.line.set_has_nodes("a", true);
  CHECK(b.round(1) == Ids{"a"});
}

TEST_CASE("sched/line: a request waits for its prefix while that is worth it, once, and not for ever") {
  Bench b;
  Booking& maker = b.busy(1, 1);
  b.line.push(b.request("a", 2));
  b.line.begin_round(b.board, b.now);
  REQUIRE(b.line.take_turn(b.board, b.now) == "a");
  const std::vector<kv::NodeMatch> matches = {{.node = 1, .resident = 0, .expected = 20}};
  Board::Ask ask;
  ask.tokens = 2000;
  ask.matches = matches;
  const Snapshot& s = b.board.look(ask, b.now);
  Candidate chosen;
  chosen.node = 1;  // p1, without the prefix
  chosen.prefill_s = 2;
  SUBCASE("it comes back when the node has ended a prefill") {
    CHECK(b.line.wait_for_prefix("a", s, chosen, b.board, b.now) == NodeId("p0"));
    b.line.put_back("a", b.board, b.now);
    b.line.end_round(b.board, b.now);
    CHECK(b.round(2).empty());
    b.end(maker);
    CHECK(b.round(2) == Ids{"a"});
  }
  SUBCASE("it comes back when that takes much longer than predicted, and does not wait again") {
    CHECK(b.line.wait_for_prefix("a", s, chosen, b.board, b.now) == NodeId("p0"));
    b.line.put_back("a", b.board, b.now);
    b.line.end_round(b.board, b.now);
    b.now += 2101ms;
    b.line.begin_round(b.board, b.now);
    REQUIRE(b.line.take_turn(b.board, b.now) == "a");
    CHECK(b.line.prefix_node("a", b.now) == nullptr);
    CHECK_FALSE(b.line.wait_for_prefix("a", s, chosen, b.board, b.now));
    b.line.erase("a");
    b.line.end_round(b.board, b.now);
  }
  SUBCASE("not when computing it is as fast") {
    chosen.prefill_s = 1.1;
    CHECK_FALSE(b.line.wait_for_prefix("a", s, chosen, b.board, b.now));
    b.line.erase("a");
    b.line.end_round(b.board, b.now);
  }
  b.line.check();
}

TEST_CASE("sched/line: a request waits for what may come before it is late, and is refused for what will not") {
  using Turn = Line::Turn;
  Bench b;
  HeldRequest bounded = b.request("bounded");
  bounded.expires = b.now + 10s;
  b.line.push(bounded);
  b.line.push(b.request("unbounded"));
  Placement found;
  found.candidate = 0;
  CHECK(b.line.turn_of("bounded", found) == Turn::go);
  Placement none;
  none.reason = NoPlace::no_prefill;
  CHECK(b.line.turn_of("bounded", none) == Turn::wait);
  none.reason = NoPlace::no_pair;
  CHECK(b.line.turn_of("unbounded", none) == Turn::wait);
  none.reason = NoPlace::no_decode;
  CHECK(b.line.turn_of("bounded", none) == Turn::wait_for_nodes);
  none.reason = NoPlace::predicted_slo_miss;
  for (const Bound bound : {Bound::tbt, Bound::kv}) {
    none.verdict.bound = bound;
    CHECK(b.line.turn_of("bounded", none) == Turn::wait);
    CHECK(b.line.turn_of("unbounded", none) == Turn::refuse);
  }
  none.verdict.hopeless = true;
  CHECK(b.line.turn_of("bounded", none) == Turn::refuse);
  none.verdict.hopeless = false, none.verdict.bound = Bound::ttft;
  CHECK(b.line.turn_of("bounded", none) == Turn::refuse);
}

TEST_CASE("sched/line: a request is predicted to miss TTFT behind others' work, and not where nobody waits") {
  Bench b;
  b.busy(1, 30), b.busy(2, 30);
  const auto miss_s = [&](double slo_s) {
    return b.line.predicted_miss_s(b.request("new"), slo_s, b.board.queues("", b.now), b.now);
  };
  CHECK_FALSE(miss_s(1));
  b.line.push(b.request("first", 4));
  CHECK_FALSE(miss_s(33));
  REQUIRE(miss_s(32.5));
  CHECK(*miss_s(32.5) == doctest::Approx(33));  // 30 s of queue, half of 4 s, and 1 s of its own
}

TEST_CASE("sched/line: requests are held while tenants or priorities ask for it") {
  Bench b(LineOptions::Hold::automatic);
  CHECK_FALSE(b.line.holds());
  CHECK(b.line.holds(1));
  CHECK_FALSE(b.line.admit(0, 1, 10, b.now));
  CHECK(b.line.holds());
  b.line.leave(0, 1, std::nullopt, b.now);
  CHECK_FALSE(b.line.holds());
  b.line.push(b.request("a"));
  CHECK(b.line.holds());
  b.line.erase("a");
  CHECK_FALSE(b.line.holds());
}

TEST_CASE("sched/line: an event asks a few of those that wait, and the rest a moment later") {
  Bench b;
  for (int i = 0; i < 200; ++i) b.line.push(b.request("r" + std::to_string(i)));
  size_t asked = b.round(-1).size();
  CHECK(asked == 64);
  while (b.line.wants_round(b.line.next_wakeup()) && b.line.next_wakeup() != kNever) {
    b.now = b.line.next_wakeup();
    const size_t more = b.round(-1).size();
    CHECK(more <= 64);
    asked += more;
    if (asked >= 200) break;
  }
  CHECK(asked == 200);
}

TEST_CASE("sched/line: of those that admission refused for the decode load a few are asked when room comes up") {
  Bench b;
  for (int i = 0; i < 50; ++i) b.push_bounded("r" + std::to_string(10 + i));
  CHECK(b.refuse_round() == Ids{"r10"});  // the others are behind it
  b.line.room_changed();
  CHECK(b.refuse_round() == Ids{"r10", "r11", "r12", "r13"});
  CHECK(b.refuse_round().empty());
  b.line.room_changed();
  CHECK(b.refuse_round() == Ids{"r10", "r11", "r12", "r13"});
}

TEST_CASE("sched/line: a few that nothing can admit keep up the others for a moment and not for ever") {
  Bench b;
  for (int i = 0; i < 10; ++i) b.push_bounded("r" + std::to_string(10 + i));
  CHECK(b.refuse_round() == Ids{"r10"});
  const Ids front = {"r10", "r11", "r12", "r13"};
  for (const Ids& next : {front, Ids{"r14", "r15", "r16", "r17"}, Ids{"r18", "r19"}, front}) {
    TimePoint wakeup = b.line.next_wakeup();
    if (wakeup == b.now + 1ms) {  // there are more to ask, but not before the pause ends
      b.now = wakeup;
      CHECK(b.refuse_round().empty());
      wakeup = b.line.next_wakeup();
    }
    CHECK(wakeup > b.now + 900ms);
    CHECK(wakeup <= b.now + 1s);
    b.now = wakeup;
    CHECK(b.line.wants_round(b.now));
    CHECK(b.refuse_round() == next);
  }
}

TEST_CASE("sched/line: who comes later does not take the room that earlier ones wait for") {
  Bench b;
  b.push_bounded("first");
  CHECK(b.refuse_round() == Ids{"first"});
  b.now += 500ms;
  b.push_bounded("second");
  CHECK(b.refuse_round().empty());
  b.push_bounded("first of another model", "other/");
  CHECK(b.refuse_round() == Ids{"first of another model"});
  HeldRequest urgent = b.bounded("urgent");
  urgent.priority = -1;
  b.line.push(urgent);
  CHECK(b.refuse_round() == Ids{"urgent"});
  b.line.room_changed();
  CHECK(b.refuse_round() == Ids{"urgent", "first", "second", "first of another model"});
}

TEST_CASE("sched/line: as long as room lasts, those behind the first few have their turns") {
  Bench b;
  for (int i = 0; i < 30; ++i) b.push_bounded("r" + std::to_string(10 + i));
  CHECK(b.refuse_round() == Ids{"r10"});
  b.line.room_changed();
  size_t placed = 0;
  do {
    placed += b.round(1, 0).size();
    b.now = std::max(b.now + 1us, std::min(b.line.next_wakeup(), b.now + 1s));
  } while (b.line.wants_round(b.now));
  CHECK(placed == 30);
  CHECK(b.line.size() == 0);
}

namespace {

/// Runs the line on a busy cluster, where some node gets room after 200 ms and again every 200 ms. Calls `asked(id)` at
/// every turn; true: the request is refused for the decode load.
template <class Asked>
void run_busy(Bench& b, Duration length, const Asked& asked) {
  const TimePoint end = b.now + length;
  TimePoint next_room = b.now + 200ms;
  while (b.now < end) {
    b.now = std::max(b.now + 1us, std::min({next_room, b.line.next_wakeup(), end}));
    if (b.now >= next_room) {
      b.line.room_changed();
      next_room += 200ms;
    }
    if (b.line.wants_round(b.now)) b.refuse_round(asked);
  }
}

}  // namespace

TEST_CASE("sched/line: on a busy cluster four refused requests hold up the others of their tenant for one pause") {
  Bench b;
  for (int i = 0; i < 4; ++i) b.push_bounded("long" + std::to_string(i));
  CHECK(b.refuse_round() == Ids{"long0"});
  const TimePoint start = b.now;
  for (int i = 0; i < 40; ++i) b.push_bounded("short" + std::to_string(10 + i));
  size_t placed = 0;
  TimePoint last{};
  run_busy(b, 5s, [&](const RequestId& id) {
    if (id.starts_with("long")) return true;
    ++placed, last = b.now;
    return false;
  });
  CHECK(placed == 40);
  CHECK(last - start >= 900ms);          // the first requests keep their place for one pause
  CHECK(last - start <= 1s + 10 * 1ms);  // then 4 requests are asked each millisecond as long as none is refused
}

TEST_CASE("sched/line: on a busy cluster each of N refused requests is asked again within N/4 + 1 seconds") {
  Bench b;
  std::map<RequestId, std::vector<TimePoint>> turns;
  for (int i = 0; i < 30; ++i) turns["r" + std::to_string(10 + i)] = {};
  for (const auto& [id, times] : turns) b.push_bounded(id);
  CHECK(b.refuse_round() == Ids{"r10"});
  const TimePoint start = b.now;
  // The end of the queue moves away as fast as the sweep approaches it.
  for (int i = 0; i < 28 * 4; ++i) {
    b.push_bounded("s" + std::to_string(1000 + i));
    run_busy(b, 250ms, [&](const RequestId& id) {
      if (const auto at = turns.find(id); at != turns.end()) at->second.push_back(b.now);
      return true;
    });
  }
  CHECK(turns["r10"].size() >= 28 * 4);  // the first four are asked at each change
  CHECK(turns["r13"].size() >= 28 * 4);
  for (auto at = turns.find("r14"); at != turns.end(); ++at) {
    CAPTURE(at->first);
    // The first sweep has 31 to 35 requests. The next one has those and the 32 or so that came in its 9 seconds.
    REQUIRE(at->second.size() >= 2);
    CHECK(at->second[0] - start <= (35 / 4 + 1) * 1s);
    CHECK(at->second[1] - start <= (35 / 4 + 1 + 67 / 4 + 1) * 1s);
    CHECK(at->second.size() <= 3);  // others do not cost the cluster a search for a place at each change
  }
}

TEST_CASE("sched/line: a request that waited for its pinned node does not pass those that wait for load") {
  Bench b;
  Booking& running = b.busy(1, 5);
  b.push_bounded("first");
  HeldRequest pinned = b.bounded("pinned");
  pinned.pin = "p0";
  b.line.push(pinned);
  CHECK(b.refuse_round() == Ids{"first"});
  b.end(running);
  CHECK(b.refuse_round() == Ids{"first"});  // pinned is behind it
  b.line.room_changed();
  CHECK(b.refuse_round() == Ids{"first", "pinned"});
}

TEST_CASE("sched/line: one event sets a bounded number of requests aside, however many wait") {
  Bench b;
  b.line.tenants().set_tenants(std::vector<Tenant>{{.name = "many"}, {.name = "one"}});
  const uint32_t many = b.line.tenants().find("many"), one = b.line.tenants().find("one");
  const size_t count = 10'000, most = 512;
  for (size_t i = 0; i < count; ++i) {
    HeldRequest r = b.bounded("r" + std::to_string(10'000 + i));
    r.tenant = many;
    b.line.push(r);
  }
  HeldRequest other = b.bounded("other");
  other.tenant = one;
  b.line.push(other);
  const TimePoint start = b.now;
  std::map<RequestId, TimePoint> asked;
  size_t rounds = 0, before = 0;
  while (b.line.wants_round(b.now) && rounds < 100) {
    for (const RequestId& id : b.refuse_round()) asked.try_emplace(id, b.now);
    ++rounds;
    const size_t aside = b.line.tenants().aside();
    CHECK(aside - before <= most + 2);  // and the requests that had their turn
    before = aside;
    if (aside == count + 1) break;
    b.now = b.line.next_wakeup();
  }
  CHECK(before == count + 1);
  CHECK(rounds == count / most + 1);
  CHECK(b.now - start <= 20 * 1ms);
  REQUIRE(asked.contains("other"));
  CHECK(asked["other"] - start <= 20 * 1ms);
}

}  // namespace line_test

// Lease messages of a reader and a holder over channels that are lists of this test, with the holder's own Lender
// behind them.
#include "node/lease_carrier.h"

#include <random>

#include "bench.h"
#include "node/lender.h"
#include "wire/codec.h"

namespace lease_carrier_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;

namespace {

const InstanceId kReader = instance(4), kHolder = instance(1);

/// Calls and answers that nobody has carried to the other side yet.
struct Lines final : LeaseLines {
  struct Call {
    uint64_t number;
    uint16_t method;
    wire::Bytes payload;
  };
  struct Answer {
    uint64_t number;
    uint16_t status;
    wire::Bytes payload;
  };
  bool ready = true;
  size_t room = 4096;
  uint64_t last = 0;
  std::vector<Call> calls;
  std::vector<Answer> answers;

  uint64_t call(const InstanceId&, wire::LeaseMethod method, std::span<const uint8_t> payload, TimePoint) override {
    if (!ready) return 0;
    calls.push_back({++last, static_cast<uint16_t>(method), {payload.begin(), payload.end()}});
    return last;
  }
  bool answer(const InstanceId&, uint64_t number, wire::LeaseStatus status, std::span<const uint8_t> payload,
              TimePoint) override {
    if (payload.size() > room) return false;
    answers.push_back({number, static_cast<uint16_t>(status), {payload.begin(), payload.end()}});
    return true;
  }
};

struct Blocks final : BlockSource {
  kv::EventLog log;
  Shelf shelf{layout_of(2), 16, 16, kv::kLruTail, log};
  std::vector<BlockHash> hashes = kv::chain(NamespaceId{}, std::vector<uint32_t>(64 * 4, 5), 64);

  Blocks() {
    shelf.slabs.push_back(0);
    for (size_t i = 0; i < hashes.size(); ++i) {
      const auto page = shelf.pool.allocate(1);
      REQUIRE_OK(page);
      kv::BlockMeta meta{hashes[i], i == 0 ? BlockHash{} : hashes[i - 1], {}, static_cast<uint32_t>(i * 64), {1, 2}};
      shelf.pool.unpin(shelf.pool.publish((*page)[0], std::move(meta)).page);
    }
  }
  Shelf* shelf_of(const NamespaceId&) override { return &shelf; }
  bool is_pending(const BlockHash&) const override { return false; }
};

/// A reader "p1" and a holder "p0".
struct Joint {
  Blocks blocks;
  BlockMemory memory;
  Numbers numbers;
  DiskTier disk{{.capacity_bytes = 1 << 20}, blocks.log, numbers};
  Lender lender{blocks, memory, disk, 30s};
  Lines lines;  // of both: calls are the reader's, answers the holder's
  LeaseCarrier reader{lines}, holder{lines};
  TimePoint now{};
  std::vector<Send> by_control;  // of the reader, in order
  std::vector<wire::LeaseGrant> grants;
  size_t grants_by_control = 0;
  std::vector<wire::LeaseRenewed> renewed, renewed_by_control;

  Send request(uint64_t lease, uint32_t wait_ms = 0) const {
    wire::LeaseRequest out;
    out.lease = lease, out.hashes = blocks.hashes, out.ttl_ms = 1000, out.wait_ms = wait_ms;
    return {"p0", kHolder, out};
  }
  static Send renewal(uint64_t lease, uint32_t round = 1) {
    return {"p0", kHolder, wire::LeaseRenew{lease, round, 1000}};
  }
  static Send release(uint64_t lease) { return {"p0", kHolder, wire::LeaseRelease{lease}}; }
  void send(const Send& message) {
    if (!reader.send(message, now)) by_control.push_back(message);
    fall();
  }
  void fall() {
    for (Send& message : reader.take_fallen()) by_control.push_back(std::move(message));
  }

  /// The holder's machine gets a message.
  void give(const Received& message) {
    Actions out;
    if (const auto* asked = std::get_if<wire::LeaseRequest>(&message.message))
      lender.on_request(message.from, message.instance, *asked, true, now, out);
    if (const auto* released = std::get_if<wire::LeaseRelease>(&message.message))
      lender.on_release(message.instance, released->lease, now);
    if (const auto* renew = std::get_if<wire::LeaseRenew>(&message.message))
      lender.on_renew(message.from, message.instance, *renew, now, out);
    for (const auto& answer : sent<wire::LeaseRenewed>(out, "p1"))
      if (!holder.send({"p1", kReader, answer}, now)) renewed_by_control.push_back(answer);
    for (const auto& grant : sent<wire::LeaseGrant>(out, "p1")) {
      if (holder.send({"p1", kReader, grant}, now)) continue;
      ++grants_by_control;
      reader.heard({"p0", kHolder, grant}, now);
      grants.push_back(grant);
    }
  }
  void carry_call() {
    const Lines::Call call = lines.calls.front();
    lines.calls.erase(lines.calls.begin());
    holder.on_request("p1", kReader, call.number, call.method, call.payload, now);
    while (const auto message = holder.next()) give(*message);
  }
  void carry_answer() {
    const Lines::Answer answer = lines.answers.front();
    lines.answers.erase(lines.answers.begin());
    reader.on_answer(kHolder, answer.number, Code::ok, answer.status, answer.payload, now);
    take();
  }
  void carry_control() {
    const Send message = by_control.front();
    by_control.erase(by_control.begin());
    const Received received{"p1", kReader, message.message};
    holder.heard(received, now);
    give(received);
  }
  void take() {
    while (const auto message = reader.next()) {
      if (const auto* answer = std::get_if<wire::LeaseRenewed>(&message->message))
        renewed.push_back(*answer);
      else
        grants.push_back(std::get<wire::LeaseGrant>(message->message));
    }
    fall();
  }
  void carry_all() {
    while (!lines.calls.empty() || !lines.answers.empty() || !by_control.empty()) {
      while (!lines.calls.empty()) carry_call();
      while (!lines.answers.empty()) carry_answer();
      while (!by_control.empty()) carry_control();
    }
  }
  size_t leases() const { return blocks.shelf.leases.size(); }
};

}  // namespace

TEST_CASE("node/lease_carrier: a lease is requested, granted and released over the channel alone") {
  Joint j;
  j.send(j.request(7));
  CHECK(j.lines.calls.size() == 1);
  j.now += 3ms;
  j.carry_call();
  CHECK(j.leases() == 1);
  j.carry_answer();
  REQUIRE(j.grants.size() == 1);
  CHECK(j.grants[0].lease == 7);
  CHECK(j.grants[0].blocks.size() == 4);
  j.send(Joint::release(7));
  j.carry_all();
  CHECK(j.leases() == 0);
  CHECK(j.by_control.empty());
  CHECK(j.grants_by_control == 0);
  CHECK(j.reader.idle());
  CHECK(j.holder.idle());
  CHECK(j.reader.stats().by_channel == 1);
  CHECK(j.holder.stats().served == 1);
  const auto times = j.reader.take_times();
  REQUIRE(times.size() == 1);
  CHECK(times[0].by_channel);
  CHECK(times[0].seconds == doctest::Approx(3e-3));
}

TEST_CASE("node/lease_carrier: requests that may wait, and all where no channel is ready, go by control") {
  Joint j;
  j.send(j.request(1, 500));
  j.lines.ready = false;
  j.send(j.request(2));
  CHECK(j.by_control.size() == 2);
  CHECK(j.reader.stats().by_control == 2);
  j.carry_all();
  CHECK(j.grants_by_control == 2);
  // the release stays behind the request that went by control, although there is a channel now
  j.lines.ready = true;
  j.send(Joint::release(1));
  j.send(Joint::release(2));
  CHECK(j.lines.calls.empty());
  j.carry_all();
  CHECK(j.leases() == 0);
  CHECK_FALSE(j.reader.take_times().front().by_channel);
}

TEST_CASE("node/lease_carrier: other messages are none of the carrier's") {
  Joint j;
  CHECK_FALSE(j.reader.send({"c0", kHolder, wire::DemoteDone{}}, j.now));
  CHECK_FALSE(j.holder.send({"p1", kReader, wire::LeaseGrant{}}, j.now));
  CHECK(j.lines.calls.empty());
}

TEST_CASE("node/lease_carrier: a grant that does not fit into a slot goes by control") {
  Joint j;
  j.lines.room = 100;
  j.send(j.request(7));
  j.carry_all();
  CHECK(j.grants_by_control == 1);
  CHECK(j.grants.size() == 1);
  CHECK(j.holder.stats().late == 1);
  CHECK(j.reader.idle());
  j.send(Joint::release(7));
  j.carry_all();
  CHECK(j.leases() == 0);
}

TEST_CASE("node/lease_carrier: a grant that does not come at once goes by control, and the call ends") {
  Joint j;
  j.send(j.request(7));
  const Lines::Call call = j.lines.calls.front();
  j.lines.calls.clear();
  j.holder.on_request("p1", kReader, call.number, call.method, call.payload, j.now);
  j.now += 19ms;
  j.holder.on_time(j.now);
  CHECK(j.lines.answers.empty());
  CHECK(j.holder.next_wakeup() == j.now + 1ms);
  j.now += 1ms;
  j.holder.on_time(j.now);
  CHECK(j.holder.next_wakeup() == kNever);
  j.carry_answer();
  CHECK(j.reader.idle());
  CHECK(j.by_control.empty());
  while (const auto message = j.holder.next()) j.give(*message);  // the machine is done now
  CHECK(j.grants_by_control == 1);
  j.send(Joint::release(7));
  CHECK(j.by_control.size() == 1);
  j.carry_all();
  CHECK(j.leases() == 0);
}

TEST_CASE("node/lease_carrier: a call that fails is repeated by control, whether the holder got it or not") {
  for (const bool arrived : {false, true}) {
    CAPTURE(arrived);
    Joint j;
    j.send(j.request(7));
    if (arrived)
      j.carry_call();
    else
      j.lines.calls.clear();
    j.lines.answers.clear();
    j.reader.on_answer(kHolder, 1, Code::timeout, 0, {}, j.now);
    j.take();
    REQUIRE(j.by_control.size() == 1);
    j.carry_all();
    REQUIRE(j.grants.size() == 1);
    CHECK(j.grants[0].blocks.size() == 4);
    CHECK(j.leases() == 1);
    CHECK(j.reader.stats().repeated == 1);
    j.send(Joint::release(7));
    j.carry_all();
    CHECK(j.leases() == 0);
  }
}

TEST_CASE("node/lease_carrier: a request that is repeated while the holder has it open is answered by control") {
  Joint j;
  j.send(j.request(7));
  const Lines::Call call = j.lines.calls.front();
  j.holder.on_request("p1", kReader, call.number, call.method, call.payload, j.now);
  j.reader.calls_lost(kHolder, j.now);  // before the holder's machine got the message
  j.take();
  REQUIRE(j.by_control.size() == 1);
  j.holder.heard({"p1", kReader, j.by_control.front().message}, j.now);
  CHECK(j.holder.idle());
  REQUIRE(j.lines.answers.size() == 1);
  CHECK(j.lines.answers[0].status == static_cast<uint16_t>(wire::LeaseStatus::by_message));
  while (const auto message = j.holder.next()) j.give(*message);
  CHECK(j.grants_by_control == 1);
}

TEST_CASE("node/lease_carrier: a release waits for the end of its request's call") {
  for (const bool fails : {false, true}) {
    CAPTURE(fails);
    Joint j;
    j.send(j.request(7));
    j.send(Joint::release(7));
    CHECK(j.lines.calls.size() == 1);
    CHECK(j.by_control.empty());
    j.carry_call();
    CHECK(j.leases() == 1);
    if (fails) {
      j.reader.calls_lost(kHolder, j.now);
      j.take();
      CHECK(std::holds_alternative<wire::LeaseRelease>(j.by_control.at(0).message));
    }
    j.carry_all();
    CHECK(j.leases() == 0);
    CHECK(j.grants.empty());  // nobody waits for it
    CHECK(j.reader.idle());
  }
}

TEST_CASE("node/lease_carrier: a renewal and its answer travel over the channel, and by control where that fails") {
  Joint j;
  j.send(j.request(7));
  j.carry_all();
  REQUIRE(j.leases() == 1);
  SUBCASE("over the channel") {
    j.send(Joint::renewal(7));
    CHECK(j.by_control.empty());
    j.carry_all();
    REQUIRE(j.renewed.size() == 1);
    CHECK(j.renewed[0].ttl_ms == 1000);
    CHECK(j.renewed_by_control.empty());
  }
  SUBCASE("over the channel, for a lease that has ended") {
    j.send(Joint::renewal(8));
    j.carry_all();
    REQUIRE(j.renewed.size() == 1);
    CHECK(j.renewed[0].ttl_ms == 0);
  }
  SUBCASE("by control without a channel") {
    j.lines.ready = false;
    j.send(Joint::renewal(7));
    REQUIRE(j.by_control.size() == 1);
    j.carry_control();
    REQUIRE(j.renewed_by_control.size() == 1);
    CHECK(j.renewed_by_control[0].ttl_ms == 1000);
    j.lines.ready = true;
  }
  SUBCASE("by control while the call of an earlier one is open") {
    j.send(Joint::renewal(7));
    j.send(Joint::renewal(7, 2));
    REQUIRE(j.by_control.size() == 1);
    j.carry_control();
    REQUIRE(j.renewed_by_control.size() == 1);
    CHECK(j.renewed_by_control[0].round == 2);
    j.carry_all();
    CHECK(j.renewed.size() == 1);
    j.send(Joint::renewal(7, 3));
    CHECK(j.by_control.empty());
    j.carry_all();
    CHECK(j.renewed.size() == 2);
  }
  SUBCASE("by control when the holder has seen the call of an earlier one and answered neither") {
    j.send(Joint::renewal(7));
    j.send(Joint::renewal(7, 2));
    REQUIRE(j.by_control.size() == 1);
    const Lines::Call call = j.lines.calls.front();
    j.lines.calls.clear();
    j.holder.on_request("p1", kReader, call.number, call.method, call.payload, j.now);
    j.carry_control();
    REQUIRE(j.renewed_by_control.size() == 1);
    CHECK(j.renewed_by_control[0].round == 2);
    while (const auto message = j.holder.next()) j.give(*message);
    j.carry_all();
    REQUIRE(j.renewed.size() == 1);
    CHECK(j.renewed[0].round == 1);
  }
  SUBCASE("by control after a call that was lost") {
    j.send(Joint::renewal(7));
    j.lines.calls.clear();
    j.reader.calls_lost(kHolder, j.now);
    j.take();
    REQUIRE(j.by_control.size() == 1);
    j.carry_control();
    CHECK(j.renewed_by_control.size() == 1);
  }
  SUBCASE("by control after an answer to another renewal") {
    for (const auto& wrong : {wire::LeaseRenewed{8, 1, 1000}, wire::LeaseRenewed{7, 2, 1000}}) {
      j.send(Joint::renewal(7));
      const uint64_t number = j.lines.calls.back().number;
      j.lines.calls.clear();
      j.reader.on_answer(kHolder, number, Code::ok, 0, wire::encode(wrong), j.now);
      j.take();
      CHECK(std::exchange(j.by_control, {}).size() == 1);
    }
    CHECK(j.renewed.empty());
  }
  SUBCASE("whose answer is late") {
    j.holder.on_request("p1", kReader, 50, 5, wire::encode(Joint::renewal(7).message), j.now);
    CHECK(j.holder.next_wakeup() > j.now);
    j.now = j.holder.next_wakeup();
    j.lines.answers.clear();
    j.holder.on_time(j.now);
    REQUIRE(j.lines.answers.size() == 1);
    CHECK(j.lines.answers[0].status == static_cast<uint16_t>(wire::LeaseStatus::by_message));
    j.lines.answers.clear();
    while (const auto message = j.holder.next()) j.give(*message);
    CHECK(j.renewed_by_control.size() == 1);
  }
  CHECK(j.reader.idle());
  CHECK(j.holder.idle());
  j.send(Joint::release(7));
  j.carry_all();
  CHECK(j.leases() == 0);
}

TEST_CASE("node/lease_carrier: a call with wrong bytes is refused, and the caller's message goes by control") {
  Joint j;
  const wire::Bytes garbage = {0x83, 0xff, 0x01};
  const auto right = wire::encode(j.request(7).message);
  for (uint16_t method : {uint16_t{0}, uint16_t{1}, uint16_t{2}, uint16_t{5}, uint16_t{9}})
    j.holder.on_request("p1", kReader, method + 100u, method, garbage, j.now);
  j.holder.on_request("p1", kReader, 5, 2, right, j.now);  // a release needs no more than its number, which is there
  CHECK(j.holder.next().has_value());
  CHECK(j.holder.stats().refused == 5);
  j.holder.on_request("p1", kReader, 6, 1, right, j.now);
  j.holder.on_request("p1", kReader, 7, 1, right, j.now);  // a number twice
  CHECK(j.holder.stats().refused == 6);
  j.lines.answers.clear();
  // the same from a holder: garbage, a grant of another lease, a status that there is not
  wire::LeaseGrant other;
  other.lease = 8;
  const std::vector<Lines::Answer> wrong = {{0, 0, garbage}, {0, 0, wire::encode(other)}, {0, 77, {}}, {0, 0, {}}};
  for (const Lines::Answer& answer : wrong) {
    Joint r;
    r.send(r.request(7));
    r.reader.on_answer(kHolder, 1, Code::ok, answer.status, answer.payload, r.now);
    r.take();
    CHECK(r.grants.empty());
    CHECK(r.by_control.size() == 1);
    CHECK(r.reader.idle());
  }
}

TEST_CASE("node/lease_carrier: whatever fails when, every lease is granted once or more and none is left") {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](uint32_t bound) { return static_cast<uint32_t>(random() % bound); };
    Joint j;
    std::vector<uint64_t> released;
    uint64_t asked = 0;
    uint32_t renewals = 0;
    for (int step = 0; step < 120; ++step) {
      switch (below(9)) {
        case 0:
        case 1: j.send(j.request(++asked)); break;
        case 2:
          if (!j.lines.calls.empty()) j.carry_call();
          break;
        case 3:
          if (!j.lines.answers.empty()) j.carry_answer();
          break;
        case 4:
          if (!j.by_control.empty()) j.carry_control();
          break;
        case 5: j.lines.ready = below(4) > 0; break;
        case 6:
          if (below(4) > 0) break;
          j.lines.calls.clear();
          j.lines.answers.clear();
          j.reader.calls_lost(kHolder, j.now);
          if (below(2) > 0) j.holder.requests_lost(kReader);
          j.take();
          break;
        case 7:
          if (asked == 0) break;
          released.push_back(1 + below(static_cast<uint32_t>(asked)));  // also before its grant, and twice
          j.send(Joint::release(released.back()));
          break;
        case 8: j.send(Joint::renewal(1 + below(static_cast<uint32_t>(asked + 1)), ++renewals)); break;
      }
    }
    j.carry_all();
    for (uint64_t lease = 1; lease <= asked; ++lease) {
      const bool granted = std::ranges::any_of(j.grants, [&](const auto& grant) { return grant.lease == lease; });
      const bool given_up = std::ranges::find(released, lease) != released.end();
      CHECK((granted || given_up));
      j.send(Joint::release(lease));
    }
    j.carry_all();
    CHECK(j.leases() == 0);
    CHECK(j.reader.idle());
    CHECK(j.holder.idle());
  }
}

}  // namespace lease_carrier_test

// Lookups over channels that are lists of this test.
#include "bench.h"
#include "node/lease_carrier.h"

namespace lookup_test {

using namespace mc;
using namespace mc::node;
using namespace mc::node::bench;
using wire::HeldIn;
using wire::LeaseStatus;

namespace {

const InstanceId kReader = instance(4), kHolder = instance(3);

/// The last call and the last answer of a carrier.
struct Lines final : LeaseLines {
  bool ready = true;
  uint64_t last = 0;
  std::optional<wire::LeaseMethod> called;
  wire::Bytes payload;
  std::optional<LeaseStatus> answered;

  uint64_t call(const InstanceId&, wire::LeaseMethod method, std::span<const uint8_t> bytes, TimePoint) override {
    if (!ready) return 0;
    called = method, payload.assign(bytes.begin(), bytes.end());
    return ++last;
  }
  bool answer(const InstanceId&, uint64_t, LeaseStatus status, std::span<const uint8_t> bytes, TimePoint) override {
    answered = status, payload.assign(bytes.begin(), bytes.end());
    return true;
  }
};

std::vector<BlockHash> chain(uint32_t blocks) {
  return kv::chain(NamespaceId{}, std::vector<uint32_t>(size_t{64} * blocks, 5), 64);
}

Lookup lookup(uint64_t number, std::vector<BlockHash> hashes) {
  return {number, "c0", kHolder, std::move(hashes)};
}

}  // namespace

TEST_CASE("node/lookup: a holder answers from its table at once, and its machine gets nothing") {
  const auto hashes = chain(3);
  std::vector<uint64_t> memory(kv::BlockTable::bytes_for(8) / 8);
  kv::BlockTable table(std::as_writable_bytes(std::span(memory)), 1);
  table.apply({.tier = kv::Tier::host, .hash = hashes[0]});
  table.apply({.tier = kv::Tier::disk, .hash = hashes[2]});
  Lines there, here;
  LeaseCarrier holder(there), reader(here);
  reader.look_up(lookup(7, hashes), {});
  REQUIRE(here.called == wire::LeaseMethod::lookup);
  CHECK_FALSE(reader.idle());

  holder.on_request("p1", kReader, 1, 3, here.payload, {});
  CHECK(there.answered == LeaseStatus::refused);  // it publishes no table
  holder.answer_from(table);
  holder.on_request("p1", kReader, 2, 3, here.payload, {});
  REQUIRE(there.answered == LeaseStatus::done);
  CHECK(holder.stats().lookups_served == 1);
  CHECK(holder.idle());
  CHECK_FALSE(holder.next().has_value());

  reader.on_answer(kHolder, 1, Code::ok, 0, there.payload, {});
  const auto answer = reader.next_answer();
  REQUIRE(answer.has_value());
  CHECK(answer->lookup == 7);
  CHECK(answer->code == Code::ok);
  CHECK(answer->held == std::vector<HeldIn>{HeldIn::memory, HeldIn::none, HeldIn::disk});
  CHECK(reader.idle());
}

TEST_CASE("node/lookup: a holder refuses bytes that are no lookup") {
  std::vector<uint64_t> memory(kv::BlockTable::bytes_for(8) / 8);
  const kv::BlockTable table(std::as_writable_bytes(std::span(memory)), 1);
  Lines lines;
  LeaseCarrier holder(lines);
  holder.answer_from(table);
  for (const size_t size : {size_t{0}, size_t{15}, size_t{17}, (wire::kLookupBlocksMax + 1) * 16}) {
    holder.on_request("p1", kReader, 1, 3, std::vector<uint8_t>(size), {});
    CHECK(lines.answered == LeaseStatus::refused);
  }
  CHECK(holder.stats().refused == 4);
  CHECK(holder.stats().lookups_served == 0);
}

TEST_CASE("node/lookup: each lookup ends once, whatever becomes of its call") {
  Lines lines;
  LeaseCarrier reader(lines);
  const auto ended = [&] {
    const auto answer = reader.next_answer();
    REQUIRE(answer.has_value());
    CHECK(answer->held.empty());
    CHECK_FALSE(reader.next_answer().has_value());
    CHECK(reader.idle());
    return answer->code;
  };
  lines.ready = false;
  reader.look_up(lookup(1, chain(2)), {});
  CHECK(ended() == Code::busy);
  lines.ready = true;
  reader.look_up(lookup(2, chain(2)), {});
  reader.on_answer(kHolder, lines.last, Code::timeout, 0, {}, {});
  CHECK(ended() == Code::timeout);
  reader.look_up(lookup(3, chain(2)), {});
  reader.on_answer(kHolder, lines.last, Code::ok, 2, {}, {});  // a holder of an older release
  CHECK(ended() == Code::unsupported);
  reader.look_up(lookup(4, chain(2)), {});
  reader.on_answer(kHolder, lines.last, Code::ok, 0, std::vector<uint8_t>{1}, {});
  CHECK(ended() == Code::corrupt);
  reader.look_up(lookup(5, chain(2)), {});
  reader.calls_lost(kHolder, {});
  CHECK(ended() == Code::peer_lost);
  reader.look_up(lookup(6, chain(2)), {});
  reader.forget(kHolder);
  CHECK(ended() == Code::peer_lost);
  reader.on_answer(kHolder, lines.last, Code::ok, 0, std::vector<uint8_t>{1, 1}, {});  // late
  CHECK_FALSE(reader.next_answer().has_value());
  CHECK(reader.stats().lookups_asked == 6);
  CHECK(reader.stats().lookups_failed == 6);
}

TEST_CASE("node/lookup: a touch reaches the holder's machine, and gets an empty answer at once") {
  Lines there, here;
  LeaseCarrier holder(there), reader(here);
  here.ready = false;
  reader.touch({"c0", kHolder, chain(2)}, {});
  CHECK_FALSE(here.called.has_value());
  here.ready = true;
  reader.touch({"c0", kHolder, chain(2)}, {});
  REQUIRE(here.called == wire::LeaseMethod::touch);
  CHECK(reader.idle());  // nobody waits for it
  holder.on_request("p1", kReader, 1, 4, here.payload, {});
  CHECK(there.answered == LeaseStatus::done);
  CHECK(there.payload.empty());
  const auto touched = holder.next_touch();
  REQUIRE(touched.has_value());
  CHECK(touched->from == "p1");
  CHECK(touched->instance == kReader);
  CHECK(touched->hashes == chain(2));
  holder.on_request("p1", kReader, 2, 4, std::vector<uint8_t>(17), {});
  CHECK(there.answered == LeaseStatus::refused);
  CHECK_FALSE(holder.next_touch().has_value());
  reader.on_answer(kHolder, here.last, Code::ok, 0, {}, {});
  CHECK(reader.take_fallen().empty());
}

}  // namespace lookup_test

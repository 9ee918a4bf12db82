// The table of members alone: the refusal of nodes, and the memory of refusals.
#include "node/members.h"

#include <algorithm>

#include "base/errors.h"
#include "test.h"

namespace members_test {

using namespace mc;
using namespace mc::node;

namespace {

InstanceId instance(uint8_t n) {
  InstanceId id;
  id.bytes[0] = n;
  return id;
}

/// The members of a conductor with the keys of /run/a.key.
Members with_keys() {
  MembersOptions options;
  options.keys = [](const InstanceId& node) { return KeyMark{"/run/a.key", {7, node.bytes[0]}}; };
  return Members(options);
}

wire::Hello hello(const std::string& key_file, wire::Bytes key_check) {
  wire::Hello out;
  out.role = wire::Role::cache, out.name = "c0";
  out.key_file = key_file, out.key_check = std::move(key_check);
  return out;
}

}  // namespace

TEST_CASE("node/members: a node with other keys than the conductor's is refused, and both key files are named") {
  const Members members = with_keys();
  const auto refused = members.objection(hello("/home/b.key", {8, 1}), instance(1));
  REQUIRE(refused.has_value());
  CHECK(refused->mc == err::kWrongKey);
  CHECK(refused->message ==
        "the node has the keys of /home/b.key, the conductor has those of /run/a.key, and the two differ");
  CHECK_FALSE(members.objection(hello("/home/b.key", {7, 1}), instance(1)).has_value());
  CHECK(members.objection(hello("/home/b.key", {7, 1}), instance(2)).has_value());  // the mark of another node
  CHECK_FALSE(members.objection(hello("", {}), instance(1)).has_value());  // --insecure data, or an older release
  CHECK_FALSE(Members({}).objection(hello("/home/b.key", {8, 1}), instance(1)).has_value());
}

TEST_CASE("node/members: a key file of any length takes a bounded part of the refusal") {
  const auto refused = with_keys().objection(hello(std::string(1 << 20, 'x'), {8}), instance(1));
  REQUIRE(refused.has_value());
  CHECK(refused->message.size() < 400);
}

TEST_CASE("node/members: of many refusals the last ones are kept and all are counted") {
  Members members({});
  for (uint8_t n = 0; n < 100; ++n) members.note_refused({instance(n), "c0", wire::Role::cache, "", {}});
  CHECK(members.refused().count == 100);
  CHECK(members.refused().last.size() == Members::kRefusedMax);
  CHECK(members.refused().last.back().instance == instance(99));
  const std::string large(size_t{1} << 20, 'x');
  members.note_refused({instance(1), large, wire::Role::cache, large, {.message = large, .ours = large}});
  const auto& cut = members.refused().last.back();
  for (const std::string* text : {&cut.name, &cut.control_uri, &cut.why.message, &cut.why.ours}) {
    CHECK_EQ(text->size(), Members::kRefusedTextMax);
    CHECK_LE(text->capacity(), 2 * Members::kRefusedTextMax);
  }
}

TEST_CASE("node/members: a full cluster refuses a new name, and takes a new process of a known one") {
  Members members({});
  for (size_t i = 0; i < Members::kNodesMax; ++i) {
    const std::string name = "c" + std::to_string(i);
    CHECK_FALSE(members.room_objection(name).has_value());
    InstanceId id;
    id.bytes[1] = static_cast<uint8_t>(i / 256), id.bytes[0] = static_cast<uint8_t>(i % 256);
    members.join(name, id, hello("", {}), TimePoint{} + 1s);
  }
  const auto refused = members.room_objection("c");
  REQUIRE(refused.has_value());
  CHECK(refused->mc == err::kClusterFull);
  CHECK(refused->message == "the cluster has 8192 nodes, and the conductor takes no more");
  CHECK_FALSE(members.room_objection("c17").has_value());
  members.remove("c17", "test");
  CHECK_FALSE(members.room_objection("c").has_value());
}

TEST_CASE("node/members: nodes that leave out the last part of their snapshots fill no more than the bound of all") {
  MembersOptions options;
  options.blocks_max.of_node = 50, options.blocks_max.of_all = 30, options.blocks_max.always = 2;
  Members members(options);
  size_t kept = 0;
  for (uint8_t n = 1; n <= 20; ++n) {
    const std::string name = "c" + std::to_string(n);
    members.join(name, instance(n), hello("", {}), TimePoint{} + 1s);
    Members::Node& node = *members.find(name);
    wire::BlockSnapshot part;
    part.seq = 9, part.part_count = 100, part.blocks.resize(4);
    for (part.part = 0; part.part < 10; ++part.part) members.on_snapshot(node, part);
    CHECK(node.snapshot.size() >= 2);
    kept += node.snapshot.size();
  }
  CHECK(kept == 30 + 19 * 2);
}

TEST_CASE("node/members: a snapshot is taken once when a node joins and once a second at most, up to the bound") {
  MembersOptions options;
  options.blocks_max.of_node = 5;
  Members members(options);
  TimePoint now = TimePoint{} + 1s;
  members.join("c0", instance(1), hello("", {}), now);
  Members::Node& node = *members.find("c0");
  const auto part = [](uint32_t number, uint32_t count) {
    wire::BlockSnapshot out;
    out.seq = 9, out.part = number, out.part_count = count;
    for (uint8_t i = 0; i < 4; ++i) {
      out.blocks.emplace_back();
      out.blocks.back().hash.bytes[0] = static_cast<uint8_t>(1 + 4 * number + i);
    }
    return out;
  };
  members.on_snapshot(node, part(0, 1));  // a node sends it when it joins
  CHECK(members.index().resident_count(node.ordinal) == 4);
  Actions out;
  wire::Heartbeat ahead;  // it has events of which the conductor has not heard
  ahead.event_seq = 1000, ahead.peers_version = UINT64_MAX;
  const auto asked = [&] {
    out.clear();
    members.on_heartbeat(node, ahead, now, out);
    return std::ranges::any_of(out, [](const Action& a) {
      const auto* send = std::get_if<Send>(&a);
      return send && std::holds_alternative<wire::IndexSync>(send->message);
    });
  };
  CHECK_FALSE(asked());
  members.on_snapshot(node, part(1, 1));
  CHECK(members.index().resident_count(node.ordinal) == 4);
  now += 1s;
  CHECK(asked());
  CHECK_FALSE(asked());
  for (uint32_t i = 0; i < 100; ++i) {
    members.on_snapshot(node, part(i, 101));
    CHECK(node.snapshot.size() <= 5);
  }
  members.on_snapshot(node, part(100, 101));
  CHECK(members.index().resident_count(node.ordinal) == 5);
  CHECK(members.index().seq(node.ordinal) == 9);
  members.on_snapshot(node, part(0, 1));  // nobody asked for a second one
  CHECK(members.index().resident_count(node.ordinal) == 5);
  CHECK_FALSE(asked());
  wire::BlockEvents more;
  more.first_seq = 10;
  for (uint8_t i = 0; i < 50; ++i) {
    more.events.push_back({true, {}});
    more.events.back().block.hash.bytes[1] = static_cast<uint8_t>(1 + i);
  }
  members.on_events(node, more, now, out);
  CHECK(members.index().resident_count(node.ordinal) == 5);
  CHECK(members.index().block_count() == 5);
  members.check();
}

}  // namespace members_test

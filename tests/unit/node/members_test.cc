// The table of members alone: the refusal of nodes, and the memory of refusals.
#include "node/members.h"

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

}  // namespace members_test

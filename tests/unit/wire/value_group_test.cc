#include "wire/value_group.h"

#include <cstring>

#include "base/hash.h"
#include "unit/wire/exact.h"
#include "unit/wire/golden.h"

namespace value_group_test {

using namespace mc;
using namespace mc::wire;

namespace {

std::string group_of(std::vector<GroupMember> members) {
  auto value = encode_group(std::move(members));
  REQUIRE_OK(value);
  return *value;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Puts the checksum of the head and the directory right.
std::string sealed(std::string value, uint32_t directory_bytes) {
  std::memset(value.data() + 16, 0, 4);
  const uint32_t crc = crc32c(bytes_of(value).first(kGroupHeadBytes + directory_bytes));
  std::memcpy(value.data() + 16, &crc, sizeof crc);
  return value;
}

const std::string kValue = [] {
  auto value = encode_group({{"layer.1", "second"}, {"layer.0", "first"}, {"none", ""}});
  return value ? *value : std::string();
}();
constexpr uint32_t kDirectory = 3 * kGroupEntryBytes + 7 + 7 + 4;

}  // namespace

TEST_CASE("wire/value_group: the bytes are those of the golden file") {
  test::check_golden("value_group.txt", "group " + test::hex(bytes_of(kValue)) + "\n");
}

TEST_CASE("wire/value_group: members come back in the order of their names with their checksums") {
  const auto members = parse_group(kValue);
  REQUIRE_OK(members);
  REQUIRE(members->size() == 3);
  CHECK((*members)[0].name == "layer.0");
  CHECK((*members)[0].bytes == "first");
  CHECK((*members)[1].bytes == "second");
  CHECK((*members)[1].crc == crc32c(bytes_of("second")));
  CHECK((*members)[2].bytes.empty());
  CHECK(find_member(*members, "none") == &(*members)[2]);
  CHECK(find_member(*members, "layer.1")->bytes == "second");
  CHECK(find_member(*members, "layer") == nullptr);
  CHECK(find_member(*members, "z") == nullptr);
}

TEST_CASE("wire/value_group: a value that is cut, longer or of another kind is no group") {
  std::vector<std::byte> bytes(bytes_of(kValue).begin(), bytes_of(kValue).end());
  test::check_exact(bytes, [](std::span<const std::byte> part) {
    return parse_group({reinterpret_cast<const char*>(part.data()), part.size()});
  });
  CHECK(parse_group("").error().code == Code::not_found);
  CHECK(parse_group("plain text of a value, longer than a head").error().code == Code::not_found);
  CHECK(parse_group(kValue.substr(0, 12)).error().code == Code::corrupt);
}

TEST_CASE("wire/value_group: each changed byte of head and directory is seen") {
  for (size_t at = 0; at < kGroupHeadBytes + kDirectory; ++at) {
    CAPTURE(at);
    std::string value = kValue;
    value[at] = static_cast<char>(value[at] ^ 1);
    CHECK_FALSE(parse_group(value).has_value());
  }
}

TEST_CASE("wire/value_group: lies behind a right checksum are refused") {
  const auto lie = [](size_t at, char byte) {
    std::string value = kValue;
    value[at] = byte;
    return parse_group(sealed(value, kDirectory));
  };
  REQUIRE_OK(lie(0, 'M'));  // the truth
  CHECK(lie(4, 2).error().code == Code::unsupported);
  for (const auto& [at, byte] : {std::pair<size_t, char>{6, 1}, {8, 0}, {8, 2}, {8, 4}, {9, 17}, {20, 1}}) {
    CAPTURE(at);
    CHECK(lie(at, byte).error().code == Code::corrupt);
  }
  constexpr size_t kFirst = kGroupHeadBytes, kSecond = kFirst + kGroupEntryBytes + 7;
  CHECK(lie(kFirst, 4).error().code == Code::corrupt);             // fewer bytes than there are
  CHECK(lie(kFirst, 100).error().code == Code::corrupt);           // more than there are
  CHECK(lie(kFirst + 7, '\x80').error().code == Code::corrupt);    // more than a number of bytes can be
  CHECK(lie(kFirst + 12, 0).error().code == Code::corrupt);        // no name
  CHECK(lie(kFirst + 12, 6).error().code == Code::corrupt);        // a name that ends too early
  CHECK(lie(kFirst + 13, '\x7f').error().code == Code::corrupt);   // a name that is too long
  CHECK(lie(kFirst + 14, 1).error().code == Code::corrupt);        // a reserved field
  CHECK(lie(kSecond + 16 + 6, '0').error().code == Code::corrupt); // the name of the first member again
}

TEST_CASE("wire/value_group: a directory longer than its members can have is refused before it is summed") {
  std::string value = kValue + std::string(3 * kGroupNameMax, '\0');
  const uint32_t longest = 3 * (kGroupEntryBytes + kGroupNameMax);
  for (const uint32_t directory : {longest, longest + 1}) {
    CAPTURE(directory);
    std::memcpy(value.data() + 12, &directory, sizeof directory);
    const auto members = parse_group(value);  // the checksum is wrong in both cases
    REQUIRE_FALSE(members.has_value());
    CHECK((members.error().what == "the group has a directory that is too long") == (directory > longest));
  }
}

TEST_CASE("wire/value_group: names that are no names, doubled or too many are refused when a group is made") {
  CHECK(encode_group({}).error().code == Code::invalid);
  CHECK(encode_group({{"", "x"}}).error().code == Code::invalid);
  CHECK(encode_group({{"a", "x"}, {"b", "y"}, {"a", "z"}}).error().code == Code::invalid);
  const std::string longest(kGroupNameMax, 'n'), longer(kGroupNameMax + 1, 'n');
  CHECK(parse_group(group_of({{longest, "x"}}))->at(0).name == longest);
  CHECK(encode_group({{longer, "x"}}).error().code == Code::invalid);
  std::vector<std::string> names;
  for (size_t i = 0; i <= kGroupMembersMax; ++i) names.push_back("m" + std::to_string(i));
  std::vector<GroupMember> members(names.size());
  for (size_t i = 0; i < names.size(); ++i) members[i].name = names[i];
  CHECK(encode_group(members).error().code == Code::invalid);
  members.pop_back();
  CHECK(parse_group(group_of(members))->size() == kGroupMembersMax);
}

}  // namespace value_group_test

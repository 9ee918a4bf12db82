#include "wire/value_group.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/assert.h"
#include "base/hash.h"

namespace mc::wire {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kGroupMagic = 0x7247'564d;  // "MVGr"
constexpr uint16_t kGroupVersion = 1;
constexpr size_t kGroupMembersAt = 8, kGroupDirectoryAt = 12, kGroupCrcAt = 16;

template <class T>
void put_group_at(std::string& out, size_t at, T value) {
  MC_ASSERT_LE(at + sizeof value, out.size());
  std::memcpy(out.data() + at, &value, sizeof value);
}

template <class T>
T group_at(std::string_view bytes, size_t at) {
  T value;
  MC_ASSERT_LE(at + sizeof value, bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

uint32_t group_sum(std::string_view bytes, uint32_t seed = 0) {
  return crc32c({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, seed);
}

/// The checksum of a head and its directory, with 0 in place of the checksum itself.
uint32_t group_head_crc(std::string_view bytes) {
  MC_ASSERT_LE(kGroupHeadBytes, bytes.size());
  char head[kGroupHeadBytes];
  std::memcpy(head, bytes.data(), sizeof head);
  std::memset(head + kGroupCrcAt, 0, sizeof(uint32_t));
  return group_sum(bytes.substr(sizeof head), group_sum({head, sizeof head}));
}

Error corrupt_group(const std::string& what) {
  return {Code::corrupt, "the group " + what};
}

}  // namespace

Result<std::string> encode_group(std::vector<GroupMember> members) {
  const auto invalid = [](const std::string& what) { return Error{Code::invalid, what}; };
  if (members.empty() || members.size() > kGroupMembersMax)
    return invalid("a group has 1 to " + std::to_string(kGroupMembersMax) + " members, not " +
                   std::to_string(members.size()));
  std::ranges::sort(members, {}, &GroupMember::name);
  size_t directory = 0, bytes = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const std::string_view name = members[i].name;
    if (name.empty() || name.size() > kGroupNameMax)
      return invalid("the name of a member has 1 to " + std::to_string(kGroupNameMax) + " bytes, not " +
                     std::to_string(name.size()));
    if (i > 0 && name == members[i - 1].name) return invalid("two members have the name " + std::string(name));
    directory += kGroupEntryBytes + name.size();
    bytes += members[i].bytes.size();
  }
  std::string out;
  out.reserve(kGroupHeadBytes + directory + bytes);
  out.resize(kGroupHeadBytes);
  put_group_at(out, 0, kGroupMagic);
  put_group_at(out, 4, kGroupVersion);
  put_group_at(out, kGroupMembersAt, static_cast<uint32_t>(members.size()));
  put_group_at(out, kGroupDirectoryAt, static_cast<uint32_t>(directory));
  for (const GroupMember& member : members) {
    const size_t at = out.size();
    out.resize(at + kGroupEntryBytes);
    put_group_at(out, at, uint64_t{member.bytes.size()});
    put_group_at(out, at + 8, group_sum(member.bytes));
    put_group_at(out, at + 12, static_cast<uint16_t>(member.name.size()));
    out += member.name;
  }
  MC_ASSERT_EQ(out.size(), kGroupHeadBytes + directory);
  put_group_at(out, kGroupCrcAt, group_head_crc(out));
  for (const GroupMember& member : members) out += member.bytes;
  return out;
}

Result<std::vector<GroupMember>> parse_group(std::string_view value) {
  if (value.size() < 4 || group_at<uint32_t>(value, 0) != kGroupMagic)
    return Error{Code::not_found, "the value is no group"};
  if (value.size() < kGroupHeadBytes) return corrupt_group("ends in its head");
  if (const auto version = group_at<uint16_t>(value, 4); version != kGroupVersion)
    return Error{Code::unsupported, "the group has version " + std::to_string(version) + ", and only " +
                                        std::to_string(kGroupVersion) + " can be read"};
  const size_t count = group_at<uint32_t>(value, kGroupMembersAt);
  const size_t directory = group_at<uint32_t>(value, kGroupDirectoryAt);
  if (count == 0 || count > kGroupMembersMax) return corrupt_group("has " + std::to_string(count) + " members");
  if (directory > count * (kGroupEntryBytes + kGroupNameMax)) return corrupt_group("has a directory that is too long");
  if (directory > value.size() - kGroupHeadBytes) return corrupt_group("ends in its directory");
  if (group_at<uint16_t>(value, 6) != 0 || group_at<uint32_t>(value, 20) != 0)
    return corrupt_group("has a reserved field that is not 0");
  const size_t end = kGroupHeadBytes + directory;
  if (group_head_crc(value.substr(0, end)) != group_at<uint32_t>(value, kGroupCrcAt))
    return corrupt_group("has a directory that does not match its checksum");
  std::vector<GroupMember> members;
  size_t at = kGroupHeadBytes, place = end;
  for (size_t i = 0; i < count; ++i) {
    if (end - at < kGroupEntryBytes) return corrupt_group("has a directory that is too short");
    const auto bytes = group_at<uint64_t>(value, at);
    const size_t name_bytes = group_at<uint16_t>(value, at + 12);
    if (group_at<uint16_t>(value, at + 14) != 0) return corrupt_group("has a reserved field that is not 0");
    if (name_bytes == 0 || name_bytes > kGroupNameMax || end - at - kGroupEntryBytes < name_bytes)
      return corrupt_group("has a name of " + std::to_string(name_bytes) + " bytes, of member " + std::to_string(i));
    if (bytes > value.size() - place)
      return corrupt_group("has a member " + std::to_string(i) + " that ends behind the value");
    const GroupMember member{.name = value.substr(at + kGroupEntryBytes, name_bytes),
                             .bytes = value.substr(place, static_cast<size_t>(bytes)),
                             .crc = group_at<uint32_t>(value, at + 8)};
    if (!members.empty() && member.name <= members.back().name) return corrupt_group("has names that are not in order");
    members.push_back(member);
    at += kGroupEntryBytes + name_bytes;
    place += member.bytes.size();
  }
  if (at != end || place != value.size()) return corrupt_group("has bytes that belong to no member");
  return members;
}

const GroupMember* find_member(std::span<const GroupMember> members, std::string_view name) {
  const auto found = std::ranges::lower_bound(members, name, {}, &GroupMember::name);
  return found != members.end() && found->name == name ? &*found : nullptr;
}

}  // namespace mc::wire

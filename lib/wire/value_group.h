// A group: one value of the store of values (node/value_store.h) that holds several named members. Because it is one
// value, its members appear, are evicted, leased, pinned, written to disk and removed together, or not at all.
//
//   | magic | version | 0   | members | directory bytes | crc | 0   | directory | bytes of the members
//     u32     u16       u16   u32       u32               u32   u32
//   entry of the directory: | bytes | crc of the bytes | length of the name | 0   | name
//                             u64     u32                u16                  u16
//
// Little-endian. The members are in the strict order of their names, and their bytes follow the directory in that order
// without a gap up to the end of the value. `crc` is the CRC32C of the head and the directory, with 0 in its place.
// Golden bytes: tests/golden/wire/value_group.txt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::wire {

inline constexpr size_t kGroupHeadBytes = 24;
inline constexpr size_t kGroupEntryBytes = 16;  // and the name
inline constexpr size_t kGroupMembersMax = 4096;
inline constexpr size_t kGroupNameMax = 1024;

struct GroupMember {
  std::string_view name;
  std::string_view bytes;
  uint32_t crc = 0;  // CRC32C of `bytes`; parse_group() does not compare them
};

/// The value of a group. Sorts the members and sums their bytes, whatever `crc` says. Code::invalid: too many members,
/// none, two of one name, or a name that has not 1 to kGroupNameMax bytes.
Result<std::string> encode_group(std::vector<GroupMember> members);
/// The members, which point into `value`. Code::not_found: the value is no group. Code::unsupported: another version.
/// Code::corrupt names the fault of the rest.
Result<std::vector<GroupMember>> parse_group(std::string_view value);
/// The member of that name; null: there is none. `members` are those of parse_group().
const GroupMember* find_member(std::span<const GroupMember> members, std::string_view name);

}  // namespace mc::wire

// links: wire
// Groups of values: members of whatever parses lie inside the value, one behind the other, and make the same directory
// again. Each input is tried as it is and with the checksum of its head and directory put right.
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/hash.h"
#include "fuzz_target.h"
#include "wire/value_group.h"

namespace mc::value_group_fuzz {
namespace {

using namespace mc::wire;

constexpr size_t kDirectoryAt = 12, kCrcAt = 16;

void try_value(std::string_view value) {
  const auto members = parse_group(value);
  if (!members) return;
  if (members->empty() || members->size() > kGroupMembersMax) std::abort();
  const char* next = nullptr;
  for (const GroupMember& member : *members) {
    if (member.name.empty() || member.name.size() > kGroupNameMax) std::abort();
    if (member.bytes.data() < value.data() || member.bytes.data() + member.bytes.size() > value.data() + value.size())
      std::abort();
    if (next != nullptr && member.bytes.data() != next) std::abort();
    next = member.bytes.data() + member.bytes.size();
    if (find_member(*members, member.name) != &member) std::abort();
  }
  if (next != value.data() + value.size()) std::abort();
  const auto again = encode_group(*members);  // the sums of the bytes may be others
  if (!again || again->size() != value.size()) std::abort();
  const auto same = parse_group(*again);
  if (!same || same->size() != members->size()) std::abort();
  for (size_t i = 0; i < same->size(); ++i)
    if ((*same)[i].name != (*members)[i].name || (*same)[i].bytes != (*members)[i].bytes) std::abort();
}

}  // namespace

FUZZ_TARGET(value_group) {
  std::string value(reinterpret_cast<const char*>(data), size);
  try_value(value);
  if (size < kGroupHeadBytes) return 0;
  uint32_t directory = 0, crc = 0;
  std::memcpy(&directory, value.data() + kDirectoryAt, sizeof directory);
  directory %= static_cast<uint32_t>(size - kGroupHeadBytes + 1);
  std::memcpy(value.data() + kDirectoryAt, &directory, sizeof directory);
  std::memcpy(value.data() + kCrcAt, &crc, sizeof crc);
  crc = mc::crc32c({reinterpret_cast<const std::byte*>(value.data()), kGroupHeadBytes + directory});
  std::memcpy(value.data() + kCrcAt, &crc, sizeof crc);
  try_value(value);
  return 0;
}

}  // namespace mc::value_group_fuzz

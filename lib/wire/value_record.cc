#include "wire/value_record.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/assert.h"
#include "base/hash.h"

namespace mc::wire {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kMagic = 0x6c61'564d;  // "MVal"
constexpr uint16_t kVersion = 1, kReplicasVersion = 2;
constexpr size_t kReplicasSizeAt = 10, kRecordCrcAt = 56;
constexpr size_t kReplicasHead = 14;

template <class T>
void put_at(std::vector<std::byte>& out, size_t at, T value) {
  MC_ASSERT_LE(at + sizeof value, out.size());
  std::memcpy(out.data() + at, &value, sizeof value);
}

template <class T>
T get_at(std::span<const std::byte> bytes, size_t at) {
  T value;
  MC_ASSERT_LE(at + sizeof value, bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// The checksum of a record, with 0 in place of the checksum itself.
uint32_t record_crc(std::span<const std::byte> bytes) {
  static constexpr std::array<std::byte, sizeof(uint32_t)> kZero{};
  MC_ASSERT_LE(kRecordCrcAt + kZero.size(), bytes.size());
  const uint32_t head = crc32c(kZero, crc32c(bytes.first(kRecordCrcAt)));
  return crc32c(bytes.subspan(kRecordCrcAt + kZero.size()), head);
}

/// The third part of a record; empty without replicas.
std::vector<std::byte> replicas_bytes(const ReplicaSet& set) {
  if (set.is_single()) return {};
  MC_ASSERT(is_plausible(set));
  std::vector<std::byte> out(kReplicasHead);
  put_at(out, 0, set.version);
  put_at(out, 8, set.revision);
  put_at(out, 12, static_cast<uint8_t>(set.copies));
  put_at(out, 13, static_cast<uint8_t>(set.holders.size()));
  for (const std::string& holder : set.holders) {
    out.push_back(static_cast<std::byte>(holder.size()));
    const auto* text = reinterpret_cast<const std::byte*>(holder.data());
    out.insert(out.end(), text, text + holder.size());
  }
  return out;
}

Result<ReplicaSet> parse_replicas(std::span<const std::byte> bytes) {
  const Error corrupt{Code::corrupt, "value record: its replicas are malformed"};
  if (bytes.size() < kReplicasHead) return corrupt;
  ReplicaSet set{.version = get_at<uint64_t>(bytes, 0),
                 .revision = get_at<uint32_t>(bytes, 8),
                 .copies = get_at<uint8_t>(bytes, 12),
                 .holders = {}};
  const size_t count = get_at<uint8_t>(bytes, 13);
  bytes = bytes.subspan(kReplicasHead);
  for (size_t i = 0; i < count; ++i) {
    if (bytes.empty()) return corrupt;
    const size_t size = get_at<uint8_t>(bytes, 0);
    if (size >= bytes.size()) return corrupt;
    set.holders.emplace_back(reinterpret_cast<const char*>(bytes.data()) + 1, size);
    bytes = bytes.subspan(1 + size);
  }
  if (!bytes.empty() || set.is_single() || !is_plausible(set)) return corrupt;
  return set;
}

}  // namespace

std::vector<std::byte> encode(const ValueRecord& record) {
  const std::vector<std::byte> replicas = replicas_bytes(record.replicas);
  const size_t texts_end = kValueRecordHead + record.tenant.size() + record.name.size();
  MC_ASSERT_LE(texts_end + replicas.size(), kValueRecordMax);
  std::vector<std::byte> out(texts_end);
  put_at(out, 0, kMagic);
  put_at(out, 4, replicas.empty() ? kVersion : kReplicasVersion);
  put_at(out, kReplicasSizeAt, static_cast<uint16_t>(replicas.size()));
  put_at(out, 6, static_cast<uint16_t>(record.tenant.size()));
  put_at(out, 8, static_cast<uint16_t>(record.name.size()));
  put_at(out, 12, record.number);
  put_at(out, 20, record.data);
  put_at(out, 28, record.bytes);
  put_at(out, 36, record.expires_ms);
  put_at(out, 44, record.pinned_ms);
  put_at(out, 52, record.crc);
  if (!record.tenant.empty()) std::memcpy(out.data() + kValueRecordHead, record.tenant.data(), record.tenant.size());
  if (!record.name.empty())
    std::memcpy(out.data() + kValueRecordHead + record.tenant.size(), record.name.data(), record.name.size());
  out.insert(out.end(), replicas.begin(), replicas.end());
  put_at(out, kRecordCrcAt, record_crc(out));
  return out;
}

Result<ValueRecord> parse_value_record(std::span<const std::byte> bytes) {
  if (bytes.size() < kValueRecordHead || bytes.size() > kValueRecordMax || get_at<uint32_t>(bytes, 0) != kMagic)
    return Error{Code::corrupt, "value record: no record in " + std::to_string(bytes.size()) + " bytes"};
  const auto version = get_at<uint16_t>(bytes, 4);
  if (version != kVersion && version != kReplicasVersion)
    return Error{Code::unsupported, "value record: version " + std::to_string(version) + ", this build reads 1 and 2"};
  const size_t replicas = get_at<uint16_t>(bytes, kReplicasSizeAt);
  if ((version == kVersion) != (replicas == 0))
    return Error{Code::unsupported, "value record: version " + std::to_string(version) + " with " +
                                        std::to_string(replicas) + " bytes of replicas"};
  const size_t tenant = get_at<uint16_t>(bytes, 6), name = get_at<uint16_t>(bytes, 8);
  if (kValueRecordHead + tenant + name + replicas != bytes.size())
    return Error{Code::corrupt, "value record: its texts have not the length that the head says"};
  if (get_at<uint32_t>(bytes, kRecordCrcAt) != record_crc(bytes))
    return Error{Code::corrupt, "value record: the bytes do not match their checksum"};
  const auto number = get_at<uint64_t>(bytes, 12), data = get_at<uint64_t>(bytes, 20);
  const auto size = get_at<uint64_t>(bytes, 28);
  if (number - 1 >= kValueNumberMost || data - 1 >= kValueNumberMost || size > kValueBytesMost)
    return Error{Code::corrupt, "value record: number " + std::to_string(number) + ", data " + std::to_string(data) +
                                    " or size " + std::to_string(size) + " is out of range"};
  ReplicaSet set;
  if (replicas > 0) {
    MC_TRY(parsed, parse_replicas(bytes.last(replicas)));
    set = std::move(parsed);
  }
  const char* texts = reinterpret_cast<const char*>(bytes.data()) + kValueRecordHead;
  return ValueRecord{.tenant = std::string(texts, tenant),
                     .name = std::string(texts + tenant, name),
                     .number = number,
                     .data = data,
                     .bytes = size,
                     .crc = get_at<uint32_t>(bytes, 52),
                     .expires_ms = get_at<int64_t>(bytes, 36),
                     .pinned_ms = get_at<int64_t>(bytes, 44),
                     .replicas = std::move(set)};
}

}  // namespace mc::wire

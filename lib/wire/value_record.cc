#include "wire/value_record.h"

#include <bit>
#include <cstring>

#include "base/assert.h"
#include "base/copy_crc.h"

namespace mc::wire {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kMagic = 0x6c61'564d;  // "MVal"
constexpr uint16_t kVersion = 1;
constexpr size_t kReservedAt = 10, kCrcAt = 56;

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

uint32_t record_crc(std::span<const std::byte> bytes) {
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  put_at(copy, kCrcAt, uint32_t{0});
  return sum_crc32c(copy);
}

}  // namespace

std::vector<std::byte> encode(const ValueRecord& record) {
  MC_ASSERT_LE(kValueRecordHead + record.tenant.size() + record.name.size(), kValueRecordMax);
  std::vector<std::byte> out(kValueRecordHead + record.tenant.size() + record.name.size());
  put_at(out, 0, kMagic);
  put_at(out, 4, kVersion);
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
  put_at(out, kCrcAt, record_crc(out));
  return out;
}

Result<ValueRecord> parse_value_record(std::span<const std::byte> bytes) {
  if (bytes.size() < kValueRecordHead || bytes.size() > kValueRecordMax || get_at<uint32_t>(bytes, 0) != kMagic)
    return Error{Code::corrupt, "value record: no record in " + std::to_string(bytes.size()) + " bytes"};
  if (const auto version = get_at<uint16_t>(bytes, 4); version != kVersion)
    return Error{Code::unsupported, "value record: version " + std::to_string(version) + ", this build reads 1"};
  if (const auto reserved = get_at<uint16_t>(bytes, kReservedAt); reserved != 0)
    return Error{Code::unsupported,
                 "value record: the reserved bytes are " + std::to_string(reserved) + ", this build reads 0"};
  const size_t tenant = get_at<uint16_t>(bytes, 6), name = get_at<uint16_t>(bytes, 8);
  if (kValueRecordHead + tenant + name != bytes.size())
    return Error{Code::corrupt, "value record: its texts have not the length that the head says"};
  if (get_at<uint32_t>(bytes, kCrcAt) != record_crc(bytes))
    return Error{Code::corrupt, "value record: the bytes do not match their checksum"};
  const auto number = get_at<uint64_t>(bytes, 12), data = get_at<uint64_t>(bytes, 20);
  const auto size = get_at<uint64_t>(bytes, 28);
  if (number - 1 >= kValueNumberMost || data - 1 >= kValueNumberMost || size > kValueBytesMost)
    return Error{Code::corrupt, "value record: number " + std::to_string(number) + ", data " + std::to_string(data) +
                                    " or size " + std::to_string(size) + " is out of range"};
  const char* texts = reinterpret_cast<const char*>(bytes.data()) + kValueRecordHead;
  return ValueRecord{.tenant = std::string(texts, tenant),
                     .name = std::string(texts + tenant, name),
                     .number = number,
                     .data = data,
                     .bytes = size,
                     .crc = get_at<uint32_t>(bytes, 52),
                     .expires_ms = get_at<int64_t>(bytes, 36),
                     .pinned_ms = get_at<int64_t>(bytes, 44)};
}

}  // namespace mc::wire

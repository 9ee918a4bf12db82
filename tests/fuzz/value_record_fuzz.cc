// links: wire
// Records of durable values: whatever parses is within its bounds and must encode to the bytes it came from. Each input
// is tried as it is, with its lengths and its checksum put right, and with its numbers put right too, to get behind
// those doors.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/hash.h"
#include "fuzz_target.h"
#include "wire/value_record.h"

namespace mc::value_record_fuzz {
namespace {

using namespace mc::wire;

constexpr size_t kTenantAt = 6, kNameAt = 8, kReplicasAt = 10, kNumberAt = 12, kDataAt = 20, kBytesAt = 28, kCrcAt = 56;

void try_bytes(std::span<const std::byte> bytes) {
  const auto record = parse_value_record(bytes);
  if (!record) return;
  if (!is_plausible(record->replicas)) std::abort();
  if (record->number > kValueNumberMost || record->data > kValueNumberMost || record->bytes > kValueBytesMost)
    std::abort();
  const auto again = encode(*record);
  if (again.size() != bytes.size() || std::memcmp(again.data(), bytes.data(), bytes.size()) != 0) std::abort();
}

void try_sealed(std::vector<std::byte>& bytes) {
  uint32_t crc = 0;
  std::memcpy(bytes.data() + kCrcAt, &crc, sizeof crc);
  crc = mc::crc32c(bytes);
  std::memcpy(bytes.data() + kCrcAt, &crc, sizeof crc);
  try_bytes(bytes);
}

}  // namespace

FUZZ_TARGET(value_record) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  try_bytes(bytes);
  if (size < kValueRecordHead) return 0;
  auto texts = static_cast<uint16_t>(std::min<size_t>(size - kValueRecordHead, UINT16_MAX));
  uint16_t tenant, replicas;
  std::memcpy(&replicas, bytes.data() + kReplicasAt, sizeof replicas);
  replicas = std::min(replicas, texts);
  texts = static_cast<uint16_t>(texts - replicas);
  std::memcpy(bytes.data() + kReplicasAt, &replicas, sizeof replicas);
  std::memcpy(&tenant, bytes.data() + kTenantAt, sizeof tenant);
  tenant = std::min(tenant, texts);
  const auto name = static_cast<uint16_t>(texts - tenant);
  std::memcpy(bytes.data() + kTenantAt, &tenant, sizeof tenant);
  std::memcpy(bytes.data() + kNameAt, &name, sizeof name);
  try_sealed(bytes);
  for (const size_t at : {kNumberAt, kDataAt, kBytesAt}) {
    uint64_t number;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    number = number % (at == kBytesAt ? kValueBytesMost : kValueNumberMost) + 1;
    std::memcpy(bytes.data() + at, &number, sizeof number);
  }
  try_sealed(bytes);
  return 0;
}

}  // namespace mc::value_record_fuzz

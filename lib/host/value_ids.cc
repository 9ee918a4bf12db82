#include "host/value_ids.h"

#include <cstring>
#include <span>

#include "base/assert.h"
#include "base/hash.h"
#include "wire/value_record.h"

namespace mc::host {
namespace {

constexpr int kKindShift = 56, kChunkShift = 40;

uint64_t name_of(const Id128& id) {
  uint64_t name;
  std::memcpy(&name, id.bytes.data() + sizeof name, sizeof name);
  return name;
}

uint64_t spread_of(uint64_t name) {
  const uint64_t spread = name * 0x9e37'79b9'7f4a'7c15;
  return spread ^ spread >> 32;
}

}  // namespace

Id128 value_block_id(ValueBlock kind, uint64_t number, uint64_t chunk) {
  MC_ASSERT(number < (uint64_t{1} << kChunkShift) && chunk < (uint64_t{1} << (kKindShift - kChunkShift)));
  const uint64_t name = static_cast<uint64_t>(kind) << kKindShift | chunk << kChunkShift | number;
  const uint64_t spread = spread_of(name);
  Id128 id;
  std::memcpy(id.bytes.data(), &spread, sizeof spread);
  std::memcpy(id.bytes.data() + sizeof spread, &name, sizeof name);
  return id;
}

ValueBlock kind_of(const Id128& id) {
  return static_cast<ValueBlock>(name_of(id) >> kKindShift);
}
uint64_t number_of(const Id128& id) {
  return name_of(id) & ((uint64_t{1} << kChunkShift) - 1);
}
uint64_t chunk_of(const Id128& id) {
  return name_of(id) >> kChunkShift & ((uint64_t{1} << (kKindShift - kChunkShift)) - 1);
}

uint64_t key_mark(std::string_view tenant, std::string_view name) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(name)), crc32c(std::as_bytes(std::span(tenant))));
  return 1 + crc % UINT16_MAX;
}

bool is_value_block(const Id128& id) {
  uint64_t spread;
  std::memcpy(&spread, id.bytes.data(), sizeof spread);
  const ValueBlock kind = kind_of(id);
  const bool is_known = kind == ValueBlock::bytes || kind == ValueBlock::record;
  return is_known && number_of(id) <= wire::kValueNumberMost && spread == spread_of(name_of(id));
}

}  // namespace mc::host

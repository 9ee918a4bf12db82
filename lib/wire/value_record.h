// The record of a durable value in the store of a cache node (lib/store): the key, its times and the place of its
// bytes. The bytes are blocks of their own, so a new pin or key writes one page.
//
//   | magic | version | tenant | name  | number | data | bytes | expires | pinned | value crc | crc | tenant | name |
//     u32     u16       u16      u16+2   u64      u64    u64     i64       i64      u32         u32
//
// Little-endian. `tenant` and `name` in the head are lengths, and their texts follow the head. `crc` is the CRC32C of
// everything else. A value with replicas has a record of version 2: the two bytes after the length of the name have the
// length of a third part, which follows the texts. Version 1 has 0 there.
//
//   | version of the value | revision of the holders | copies | holders | length | name of a holder | ...
//     u64                    u32                       u8       u8        u8
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "wire/replica_set.h"

namespace mc::wire {

struct ValueRecord {
  std::string tenant, name;
  uint64_t number = 0;     // of this record; of two records of one key the higher one counts
  uint64_t data = 0;       // number under which the bytes are kept; copies of a value share them
  uint64_t bytes = 0;      // of the value
  uint32_t crc = 0;        // CRC32C of the value
  int64_t expires_ms = 0;  // Unix time at which the value ends; 0 = it does not end
  int64_t pinned_ms = 0;   // Unix time until which it is pinned
  ReplicaSet replicas = {};
  bool operator==(const ValueRecord&) const = default;
};

inline constexpr size_t kValueRecordHead = 60;
inline constexpr size_t kValueRecordMax = 4096;  // one page of a store

/// Numbers are from 1 to kValueNumberMost, and values have at most kValueBytesMost bytes. No node writes another
/// record, so one with a right checksum was made by somebody else.
inline constexpr uint64_t kValueNumberMost = uint64_t{1} << 39;
inline constexpr uint64_t kValueBytesMost = uint64_t{64} << 20;

/// At most kValueRecordMax bytes: the texts fit.
std::vector<std::byte> encode(const ValueRecord& record);
/// Code::corrupt or Code::unsupported, naming the fault.
Result<ValueRecord> parse_value_record(std::span<const std::byte> bytes);

}  // namespace mc::wire

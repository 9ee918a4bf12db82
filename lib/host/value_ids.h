// Names of the blocks of a store of durable values (host/value_disk.h). An id is 16 bytes: the last eight name the
// block, and the first eight are spread over all values for the tables of the store.
//
//   | spread of name | kind << 56 | chunk << 40 | number |
//         u64                       u64
#pragma once

#include <cstdint>
#include <string_view>

#include "base/ids.h"

namespace mc::host {

/// Folder of the values in the directory of --ssd.
inline constexpr std::string_view kValuesFolder = "values";

enum class ValueBlock : uint8_t { bytes = 1, record = 2 };

/// `number` is that of a record, or that under which the bytes of a value are kept, of which `chunk` is a part. The
/// chunk of a record is the mark of its key, and 0 in records of older releases.
Id128 value_block_id(ValueBlock kind, uint64_t number, uint64_t chunk);
ValueBlock kind_of(const Id128& id);
uint64_t number_of(const Id128& id);
uint64_t chunk_of(const Id128& id);
/// 1 to 65,535, which names the key of a record that cannot be read well enough to withhold older values of the key.
uint64_t key_mark(std::string_view tenant, std::string_view name);
/// Whether a store of values has made it. Ids of KV blocks are hashes, and one of 2^64 of them would pass.
bool is_value_block(const Id128& id);

/// The bytes of a value are cut into blocks of at most so many bytes.
inline constexpr size_t kValueChunkMost = size_t{1} << 20;

}  // namespace mc::host

// Checks a store of durable values (host/value_disk.h) that no node uses: each record, and the bytes of each value.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/value_ids.h"
#include "store/store.h"

namespace mc::host {

/// Opens the disk of the store for reading alone, or for repair.
using OpenValues = std::function<Result<std::unique_ptr<store::Disk>>(store::Access)>;

struct ValueFindings {
  struct Damage {
    uint64_t record = 0;       // its number
    std::string tenant, name;  // empty: the record cannot be read
    std::string what;
    bool is_lost = false;  // a checksum failed or bytes are missing: the value can never be read again
  };
  uint64_t values = 0, bytes = 0;  // of the newest record of each key
  std::vector<Damage> damaged;
  std::vector<std::string> lost;  // promises of the store that the start found broken
  uint64_t dropped = 0;           // damaged values that were removed
};

/// The error of a store of values that cannot be opened, with the directory. MC6008 and MC6009 get the next step for
/// values, which nothing else has.
Error value_store_error(const std::string& directory, Error error);
/// Whether the store has blocks of values. Reads no block.
bool holds_values(const store::Store& store);
/// With `repairs`, values that are lost are removed, with the older records of their keys: an old value does not come
/// back. What cannot be read for another reason stays. `capacity_bytes`: those of the segments that are there.
Result<ValueFindings> check_values(const OpenValues& open, uint64_t capacity_bytes, bool repairs);

}  // namespace mc::host

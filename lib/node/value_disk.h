// The disk of a store of values, as the door of the store calls it. lib/host implements it over a block store.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "node/value_store.h"
#include "wire/value_record.h"

namespace mc::node {

/// Any thread may call anything, and calls wait for the disk.
class ValueDisk {
 public:
  virtual ~ValueDisk() = default;
  /// A number that no record has.
  virtual uint64_t new_number() = 0;
  /// The records that an earlier process left, one for each key and none that has expired. They are given once.
  virtual std::vector<wire::ValueRecord> take_found() = 0;
  /// Durable when it returns. If `value` is given, its bytes are written under record.data. If it is null, they are on
  /// disk already.
  /// MC5008: the disk is full. MC5009: it failed. Then a part of the record may be there until take_back().
  virtual Result<void> write(const wire::ValueRecord& record, const ValueBytes* value) = 0;
  /// Writes the record of the key that a value is moved to, and removes the records of the key `from`, whose record
  /// `number` shares its bytes. Durable when it returns, and done as one: a power cut in the call leaves the value
  /// under one of the two keys. MC4007: the record `number` was dropped. MC5008, MC5009: the value is under `from`.
  virtual Result<void> move(const wire::ValueRecord& record, const ValueKey& from, uint64_t number) = 0;
  /// Removes the record of this number, every older one of its key, and bytes that no record has any more. An unknown
  /// number is no error. A power cut may bring the records back. MC5009: they are still there.
  virtual Result<void> drop(uint64_t number) = 0;
  /// Removes all records of the key durably, also those that another call is removing. A key without records is no
  /// error, and costs nothing. MC5009: they are still there.
  virtual Result<void> drop_key(const ValueKey& key) = 0;
  /// Removes the record alone, durably: the value that the key had before stays. An unknown number is no error.
  virtual Result<void> take_back(uint64_t number) = 0;
  /// The bytes of a value. MC6004: they are not what was written; MC5009: the disk failed; MC4007: they were dropped.
  virtual Result<SharedValue> load(const DiskCopy& copy, uint64_t bytes, uint32_t crc) = 0;
  /// Makes room before a write needs it. The caller has answered its client.
  virtual void keep_room() = 0;
  virtual uint64_t used_bytes() const = 0;
  virtual uint64_t capacity_bytes() const = 0;
};

}  // namespace mc::node

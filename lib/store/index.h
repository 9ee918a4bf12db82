// Where each block lies: id -> place, in memory. Any thread may call it. A reader holds the file of a place while it
// reads, so that space is not reused under it.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "store/disk.h"
#include "wire/store_format.h"

namespace mc::store {

struct Place {
  FileId file = 0;
  uint32_t page = 0;  // in the file
  uint32_t bytes = 0;
  uint32_t crc = 0;
  bool operator==(const Place&) const = default;
};

/// One entry of the log on its way to the disk. `value` has entry.bytes bytes and belongs to the caller.
struct Item {
  wire::StoreEntry entry;
  const std::byte* value = nullptr;
  FileId file = 0;  // where the log put it
  Place place() const { return {file, entry.page, entry.bytes, entry.crc}; }
};

class Index {
 public:
  void reserve(size_t blocks);
  /// Entries that have reached the disk, in their order.
  void apply(std::span<Item* const> items);
  /// During recovery, which no other thread sees.
  void apply_one(const wire::StoreEntry& entry, FileId file);

  /// The places of these ids, each held for reading, and with `mark` marked as read. No place: the id has none.
  void hold(std::span<const Id128> ids, std::span<std::optional<Place>> places, bool mark);
  void release(std::span<const std::optional<Place>> places);
  std::optional<Place> find(const Id128& id) const;

  enum class Use : uint8_t { elsewhere, unread, read };
  /// Whether `place` is still the id's, and was read since the last call, whose mark it clears.
  Use take_use(const Id128& id, const Place& place);
  /// True: `from` was the place, and now it is `to`.
  bool move(const Id128& id, const Place& from, const Place& to);
  /// True: `place` was the id's, and the id is gone.
  bool forget(const Id128& id, const Place& place);
  /// Forgets all blocks of a file; the number of them.
  uint64_t forget_file(FileId file);
  /// From now on forgotten ids are kept for take_forgotten().
  void keep_forgotten();
  /// Ids that were forgotten since the last call and have no block now.
  std::vector<Id128> take_forgotten();
  /// Returns when no reader holds the file. Its blocks were forgotten or moved before.
  void wait_unread(FileId file);

  void for_each(const std::function<void(const Id128&, uint32_t bytes)>& visit) const;
  uint64_t count() const;
  uint64_t live_bytes() const;

 private:
  struct Slot {
    Place place;
    bool read = false;
  };
  void put(const Id128& id, const Place& place);
  void erase(std::unordered_map<Id128, Slot, Id128Hash>::iterator at);

  mutable std::mutex mutex_;
  std::unordered_map<Id128, Slot, Id128Hash> slots_;
  std::map<FileId, uint64_t> holds_;  // readers by file
  std::condition_variable unread_;
  uint64_t live_bytes_ = 0;
  bool keeps_forgotten_ = false;
  std::vector<Id128> forgotten_;
};

}  // namespace mc::store

// Durable values of a cache node in a block store of their own (lib/store), which forgets nothing to make space. A
// value is a record (wire/value_record.h) and the blocks of its bytes:
//
//   put     bytes and record in one flush, the record last: a record whose bytes are missing was damaged
//   move    the new record and the drop of the old one in one group of the store
//   remove  a drop of the record and of the bytes
//   start   the records are read, and the bytes are read and checked when somebody asks for them
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "host/value_ids.h"
#include "node/value_disk.h"
#include "store/store.h"

namespace mc::host {

inline constexpr uint64_t kValueDiskLeast = uint64_t{16} << 20;
/// Files that the disk of values may have open.
uint64_t value_disk_files(uint64_t capacity_bytes);

/// The values of a node in the blocks of a store.
class BlockValueDisk final : public node::ValueDisk {
 public:
  struct Options {
    std::string directory;
    uint64_t capacity_bytes = 0;
    std::string io = "auto";  // kind of the store's disk
  };
  /// Errors have a number and name the directory.
  static Result<std::unique_ptr<BlockValueDisk>> open(const Options& options);
  /// Returns an error if open() would fail. Changes nothing.
  static Result<void> check(const Options& options);
  /// On a disk that is open already, with the time of the start; for tests.
  static Result<std::unique_ptr<BlockValueDisk>> open(std::unique_ptr<store::Disk> disk, uint64_t capacity_bytes,
                                                      int64_t unix_ms);

  uint64_t new_number() override { return ++number_; }
  std::vector<wire::ValueRecord> take_found() override { return std::move(found_); }
  Result<void> write(const wire::ValueRecord& record, const node::ValueBytes* value) override;
  Result<void> move(const wire::ValueRecord& record, const node::ValueKey& from, uint64_t number) override;
  Result<void> drop(uint64_t number) override;
  Result<void> drop_key(const node::ValueKey& key) override;
  Result<void> take_back(uint64_t number) override;
  Result<node::SharedValue> load(const node::DiskCopy& copy, uint64_t bytes, uint32_t crc) override;
  void keep_room() override;
  uint64_t used_bytes() const override { return store_->used_bytes(); }
  uint64_t capacity_bytes() const override { return store_->room_bytes(); }
  const store::Restart& restart() const { return store_->restart(); }

 private:
  struct Known {
    node::ValueKey key;
    uint64_t data = 0, bytes = 0;
    Id128 id;  // of the block of the record
  };
  /// Records that could not be read at the start.
  struct Unread {
    bool all_lost = true;                // none of them may be read later
    std::map<uint64_t, uint64_t> marks;  // the highest number for each mark of a key
  };

  explicit BlockValueDisk(std::unique_ptr<store::Store> store);
  void recover(int64_t unix_ms);
  std::vector<wire::ValueRecord> read_records(std::vector<Id128> ids, Unread& unread);
  size_t chunk_bytes() const;
  void append_chunks(uint64_t data, uint64_t bytes, std::vector<Id128>& to) const;
  void add(uint64_t number, const Known& known);
  Known forget(uint64_t number, std::vector<Id128>& blocks);
  struct Drop {
    std::vector<Id128> blocks;
    std::vector<std::pair<uint64_t, Known>> records;  // taken out of the tables
  };
  void take_out(uint64_t number, Drop& drop);
  void append_dropping(const node::ValueKey& key, std::vector<Id128>& blocks) const;
  Result<void> write_drop(const Drop& drop, store::Level level);
  void end_drop(const Drop& drop, bool is_done);

  std::unique_ptr<store::Store> store_;
  std::atomic<uint64_t> number_{0};  // the highest in use; a count, ordered with nothing
  std::vector<wire::ValueRecord> found_;
  std::mutex making_room_;
  bool has_failed_ = false;                              // keep_room(), which logs a failure once; under making_room_
  std::mutex mutex_;                                     // of the rest
  std::map<uint64_t, Known> records_;                    // by number
  std::map<node::ValueKey, std::set<uint64_t>> by_key_;  // numbers
  std::map<uint64_t, uint64_t> uses_;                    // records by number of their data
  std::multimap<node::ValueKey, Id128> dropping_;        // blocks of records whose drop is being written
};

}  // namespace mc::host

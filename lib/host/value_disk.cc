#include "host/value_disk.h"

#include <algorithm>
#include <functional>

#include "base/assert.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/units.h"
#include "host/block_disk.h"
#include "host/value_check.h"
#include "store/pages.h"

namespace mc::host {
namespace {

constexpr size_t kRecordsAtOnce = 256;

/// The size of the segments of a new store. A small store has 16 segments.
uint64_t value_segment_bytes(uint64_t capacity_bytes) {
  constexpr uint64_t kLeast = uint64_t{1} << 20, kMost = uint64_t{256} << 20, kUsualCount = 64;
  const uint64_t small = std::clamp(capacity_bytes / 16, kLeast, uint64_t{16} << 20);
  return std::clamp(capacity_bytes / kUsualCount, small, kMost) / store::kPageBytes * store::kPageBytes;
}

Error disk_error(std::string what, const Error& error) {
  if (error.code == Code::no_space)
    return user_error(err::kStoreFull, "the disk of the store of values is full: " + error.what, "durability",
                      "remove values, or start the node with a larger --values-disk and --ssd");
  return user_error(err::kValueDisk, std::move(what) + ": " + error.what, "durability");
}

Result<void> check_number(const wire::ValueRecord& record) {
  if (record.number <= wire::kValueNumberMost) return {};
  return user_error(err::kValueDisk, "the store of values has no number left for a record", "durability",
                    "put the values into a new store");
}

/// After a disk fault the next durable call also fails, even if its own data is sound: earlier groups were lost. The
/// store has left the file of the fault by then, so the second attempt writes to another one.
Result<void> twice(const std::function<Result<void>()>& call) {
  auto done = call();
  return done || done.error().code != Code::io ? done : call();
}

}  // namespace

uint64_t value_disk_files(uint64_t capacity_bytes) {
  constexpr uint64_t kFilesBeside = 16;  // directory, lock, superblocks, rings, and a segment that is being made
  return capacity_bytes == 0 ? 0 : capacity_bytes / value_segment_bytes(capacity_bytes) + kFilesBeside;
}

Result<void> BlockValueDisk::check(const Options& options) {
  MC_TRY(disk, look_at_store(options.directory, options.io));
  if (!disk) return {};
  auto opened = store::Store::open(std::move(disk), {.capacity_bytes = options.capacity_bytes,
                                                     .segment_bytes = value_segment_bytes(options.capacity_bytes),
                                                     .keeps_all = true,
                                                     .access = store::Access::read_only});
  if (!opened) return value_store_error(options.directory, std::move(opened).error());
  return {};
}

Result<std::unique_ptr<BlockValueDisk>> BlockValueDisk::open(const Options& options) {
  auto disk = store::open_disk(options.io, options.directory);
  if (!disk) return as_user_error(err::kFileAccess, std::move(disk).error());
  auto opened = open(std::move(disk->disk), options.capacity_bytes, SystemClock::instance().unix_ms());
  if (!opened) return value_store_error(options.directory, std::move(opened).error());
  return opened;
}

Result<std::unique_ptr<BlockValueDisk>> BlockValueDisk::open(std::unique_ptr<store::Disk> disk, uint64_t capacity_bytes,
                                                             int64_t unix_ms) {
  store::Options settings;
  settings.capacity_bytes = capacity_bytes;
  settings.segment_bytes = value_segment_bytes(capacity_bytes);
  settings.keeps_all = true;
  MC_TRY(opened, store::Store::open(std::move(disk), settings));
  std::unique_ptr<BlockValueDisk> out(new BlockValueDisk(std::move(opened)));
  out->recover(unix_ms);
  return out;
}

BlockValueDisk::BlockValueDisk(std::unique_ptr<store::Store> store) : store_(std::move(store)) {}

/// Fixed for a directory, because the size of its segments is.
size_t BlockValueDisk::chunk_bytes() const {
  return std::min<size_t>(kValueChunkMost, store_->value_bytes_max());
}

void BlockValueDisk::append_chunks(uint64_t data, uint64_t bytes, std::vector<Id128>& to) const {
  for (uint64_t at = 0, chunk = 0; at < bytes; at += chunk_bytes(), ++chunk)
    to.push_back(value_block_id(ValueBlock::bytes, data, chunk));
}

// ---- the start -------------------------------------------------------------------------------

std::vector<wire::ValueRecord> BlockValueDisk::read_records(std::vector<Id128> ids, Unread& unread) {
  std::vector<wire::ValueRecord> out;
  store::PageBuffer memory;
  const std::span<std::byte> room = memory.room(kRecordsAtOnce * store::kPageBytes);
  for (size_t begin = 0; begin < ids.size(); begin += kRecordsAtOnce) {
    const size_t count = std::min(kRecordsAtOnce, ids.size() - begin);
    std::vector<store::Get> gets;
    for (size_t i = 0; i < count; ++i)
      gets.push_back({.id = ids[begin + i], .room = room.subspan(i * store::kPageBytes, store::kPageBytes)});
    store_->get(gets);
    for (const store::Get& get : gets) {
      auto record = get.code == Code::ok ? wire::parse_value_record(get.room.first(get.bytes))
                                         : Result<wire::ValueRecord>(Error{get.code, "it cannot be read"});
      const uint64_t mark = chunk_of(get.id);
      const bool is_own = record && record->number == number_of(get.id) &&
                          (mark == 0 || mark == key_mark(record->tenant, record->name));
      if (is_own) {
        out.push_back(std::move(*record));
        continue;
      }
      const bool is_lost = record || record.error().code == Code::corrupt;
      unread.all_lost = unread.all_lost && is_lost;
      uint64_t& highest = unread.marks[mark];
      highest = std::max(highest, number_of(get.id));
      log_warn(is_lost ? "the record of a value was lost" : "the record of a value cannot be read now",
               {{"record", number_of(get.id)}, {"why", record ? "it has another number or key" : record.error().what}});
    }
  }
  return out;
}

void BlockValueDisk::recover(int64_t unix_ms) {
  std::vector<Id128> records, chunks;
  uint64_t highest = 0;
  store_->for_each([&](const Id128& id, uint32_t) {
    const bool is_ours = is_value_block(id);
    if (is_ours) highest = std::max(highest, number_of(id));
    (is_ours && kind_of(id) == ValueBlock::record ? records : chunks).push_back(id);
  });
  number_ = highest;
  const std::set<Id128> ids(records.begin(), records.end());
  std::map<node::ValueKey, wire::ValueRecord> newest;
  Unread unread;
  for (wire::ValueRecord& record : read_records(std::move(records), unread)) {
    if (records_.contains(record.number)) {  // no node writes a number twice; both records stay on disk
      log_warn("a second record has the number of a value's record; it is ignored", {{"record", record.number}});
      continue;
    }
    const Id128 marked = value_block_id(ValueBlock::record, record.number, key_mark(record.tenant, record.name));
    const Id128 id = ids.contains(marked) ? marked : value_block_id(ValueBlock::record, record.number, 0);
    add(record.number, {{record.tenant, record.name}, record.data, record.bytes, id});
    wire::ValueRecord& kept = newest[{record.tenant, record.name}];
    if (record.number > kept.number) kept = std::move(record);
  }
  // A crash leaves older records of a key, and bytes whose record was not written. Times to live may be over.
  std::vector<Id128> garbage;
  for (auto& [key, record] : newest) {
    const bool expired = record.expires_ms != 0 && record.expires_ms <= unix_ms;
    const auto newer = unread.marks.find(key_mark(key.tenant, key.name));
    const bool replaced = newer != unread.marks.end() && newer->second > record.number;
    if (replaced)
      log_warn("a value is not served, because the newest record of its key cannot be read",
               {{"tenant", key.tenant}, {"key", key.name}, {"record", newer->second}});
    const std::set<uint64_t> numbers = by_key_[key];
    for (const uint64_t number : numbers) {
      if (number == record.number && !expired && !replaced) continue;
      (void)forget(number, garbage);
    }
    if (!expired && !replaced) found_.push_back(std::move(record));
  }
  for (const Id128& id : chunks)
    if (!is_value_block(id) || !uses_.contains(number_of(id))) garbage.push_back(id);
  if (garbage.empty()) return;
  if (!unread.all_lost)  // after a later start, or by a newer build, the records may be read
    return log_warn("remains of values stay on disk, because records could not be read", {{"blocks", garbage.size()}});
  if (const auto done = store_->drop(garbage, store::Level::written); !done)
    log_warn("remains of values stay on disk", {{"blocks", garbage.size()}, {"why", done.error().what}});
}

// ---- the tables ------------------------------------------------------------------------------

void BlockValueDisk::add(uint64_t number, const Known& known) {
  const bool fresh = records_.emplace(number, known).second;
  MC_ASSERT(fresh);
  by_key_[known.key].insert(number);
  ++uses_[known.data];
}

/// Takes a record out of the tables, and appends the blocks that nothing needs any more.
BlockValueDisk::Known BlockValueDisk::forget(uint64_t number, std::vector<Id128>& blocks) {
  const auto record = records_.find(number);
  MC_ASSERT(record != records_.end());
  Known known = std::move(record->second);
  records_.erase(record);
  const auto numbers = by_key_.find(known.key);
  MC_ASSERT(numbers != by_key_.end());
  numbers->second.erase(number);
  if (numbers->second.empty()) by_key_.erase(numbers);
  blocks.push_back(known.id);
  const auto uses = uses_.find(known.data);
  MC_ASSERT(uses != uses_.end());
  if (--uses->second > 0) return known;
  uses_.erase(uses);
  append_chunks(known.data, known.bytes, blocks);
  return known;
}

// ---- calls -----------------------------------------------------------------------------------

Result<void> BlockValueDisk::write(const wire::ValueRecord& record, const node::ValueBytes* value) {
  MC_ASSERT_LE(record.number, number_.load(std::memory_order_relaxed));
  MC_CHECK(check_number(record));
  const FailsAlone uses_reserve(false);  // the bytes are in memory, and the rest is small
  const std::vector<std::byte> head = wire::encode(record);
  std::vector<Id128> ids;
  std::vector<store::Put> puts;
  if (value != nullptr) {
    MC_ASSERT_EQ(value->size(), record.bytes);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(value->view()));
    append_chunks(record.data, record.bytes, ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t at = i * chunk_bytes();
      puts.push_back({.id = ids[i], .bytes = bytes.subspan(at, std::min(chunk_bytes(), bytes.size() - at))});
    }
  }
  ids.push_back(value_block_id(ValueBlock::record, record.number, key_mark(record.tenant, record.name)));
  puts.push_back({.id = ids.back(), .bytes = head});
  {
    // The record is in the tables before it is written. So no other thread drops bytes that the record shares.
    const TableLock lock(mutex_);
    add(record.number, {{record.tenant, record.name}, record.data, record.bytes, ids.back()});
  }
  const auto done = twice([&] { return store_->put(puts, store::Level::durable); });
  if (done) return {};
  return disk_error("the value was not written to disk", done.error());
}

Result<void> BlockValueDisk::move(const wire::ValueRecord& record, const node::ValueKey& from, uint64_t number) {
  MC_CHECK(check_number(record));
  const FailsAlone uses_reserve(false);
  Drop others, old;
  {
    const std::lock_guard lock(mutex_);
    append_dropping(from, others.blocks);
    if (const auto numbers = by_key_.find(from); numbers != by_key_.end())
      for (const uint64_t other : std::set<uint64_t>(numbers->second))
        if (other != number) take_out(other, others);
  }
  // Other records of the old key would come back in place of the one that goes.
  if (!others.blocks.empty()) MC_CHECK(write_drop(others, store::Level::durable));
  const Id128 id = value_block_id(ValueBlock::record, record.number, key_mark(record.tenant, record.name));
  {
    const TableLock lock(mutex_);
    if (!records_.contains(number)) return user_error(err::kNotFound, "the value was removed meanwhile", "key");
    add(record.number, {{record.tenant, record.name}, record.data, record.bytes, id});
    take_out(number, old);
    MC_ASSERT_EQ(old.blocks.size(), size_t{1});  // the new record has the bytes
  }
  const std::vector<std::byte> head = wire::encode(record);
  const auto done = twice([&] { return store_->exchange({.id = id, .bytes = head}, old.blocks); });
  {
    const TableLock lock(mutex_);
    end_drop(old, done.has_value());
    std::vector<Id128> unwritten;
    if (!done) (void)forget(record.number, unwritten);
    MC_ASSERT_EQ(unwritten.size(), size_t{done ? 0u : 1u});  // the old record has the bytes
  }
  if (done) return {};
  return disk_error("the new key was not written to disk", done.error());
}

Result<void> BlockValueDisk::drop(uint64_t number) {
  const FailsAlone uses_reserve(false);
  Drop drop;
  {
    const std::lock_guard lock(mutex_);
    const auto record = records_.find(number);
    if (record == records_.end()) return {};
    const std::set<uint64_t> numbers = by_key_.at(record->second.key);
    for (const uint64_t older : numbers)
      if (older <= number) take_out(older, drop);
  }
  return write_drop(drop, store::Level::written);
}

Result<void> BlockValueDisk::drop_key(const node::ValueKey& key) {
  const FailsAlone uses_reserve(false);
  Drop drop;
  {
    const std::lock_guard lock(mutex_);
    append_dropping(key, drop.blocks);
    if (const auto numbers = by_key_.find(key); numbers != by_key_.end())
      for (const uint64_t number : std::set<uint64_t>(numbers->second)) take_out(number, drop);
  }
  return drop.blocks.empty() ? Result<void>() : write_drop(drop, store::Level::durable);
}

Result<void> BlockValueDisk::take_back(uint64_t number) {
  const FailsAlone uses_reserve(false);
  Drop drop;
  {
    const std::lock_guard lock(mutex_);
    if (!records_.contains(number)) return {};
    take_out(number, drop);
  }
  return write_drop(drop, store::Level::durable);
}

void BlockValueDisk::take_out(uint64_t number, Drop& drop) {
  drop.records.emplace_back(number, forget(number, drop.blocks));
  const Known& known = drop.records.back().second;
  dropping_.emplace(known.key, known.id);
}

/// A record that another call is removing may still be on disk. A second drop of it does no harm.
void BlockValueDisk::append_dropping(const node::ValueKey& key, std::vector<Id128>& blocks) const {
  const auto [first, last] = dropping_.equal_range(key);
  for (auto other = first; other != last; ++other) blocks.push_back(other->second);
}

Result<void> BlockValueDisk::write_drop(const Drop& drop, store::Level level) {
  const auto done = twice([&] { return store_->drop(drop.blocks, level); });
  {
    const std::lock_guard lock(mutex_);
    end_drop(drop, done.has_value());
  }
  if (done) return {};
  return disk_error("the removal was not written to disk", done.error());
}

/// Records that were not removed are back in the tables.
void BlockValueDisk::end_drop(const Drop& drop, bool is_done) {
  for (const auto& [number, known] : drop.records) {
    const auto [first, last] = dropping_.equal_range(known.key);
    const auto mine = std::find_if(first, last, [&](const auto& entry) { return entry.second == known.id; });
    MC_ASSERT(mine != last);
    dropping_.erase(mine);
    if (!is_done) add(number, known);  // it can be tried again
  }
}

Result<node::SharedValue> BlockValueDisk::load(const node::DiskCopy& copy, uint64_t bytes, uint32_t crc) {
  std::vector<Id128> ids;
  append_chunks(copy.data, bytes, ids);
  store::PageBuffer memory;
  const std::span<std::byte> room = memory.room(std::max<size_t>(static_cast<size_t>(bytes), 1));
  std::vector<store::Get> gets;
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t at = i * chunk_bytes();
    gets.push_back({.id = ids[i], .room = room.subspan(at, std::min(chunk_bytes(), room.size() - at))});
  }
  store_->get(gets);
  for (size_t i = 0; i < gets.size(); ++i) {
    if (gets[i].code == Code::ok && gets[i].bytes == std::min<uint64_t>(chunk_bytes(), bytes - i * chunk_bytes()))
      continue;
    if (gets[i].code == Code::io)
      return user_error(err::kValueDisk, "the disk of the store of values cannot be read", "key");
    const std::lock_guard lock(mutex_);
    if (!records_.contains(copy.number)) return user_error(err::kNotFound, "the value was removed meanwhile", "key");
    return user_error(err::kChecksum, "the value on disk is damaged", "key");
  }
  auto value = std::make_shared<const node::ValueBytes>(
      std::string_view(reinterpret_cast<const char*>(room.data()), static_cast<size_t>(bytes)));
  if (value->crc() != crc) return user_error(err::kChecksum, "the value on disk does not match its checksum", "key");
  return node::SharedValue(std::move(value));
}

/// One thread makes segments or takes some back, while the others go on.
void BlockValueDisk::keep_room() {
  const std::unique_lock lock(making_room_, std::try_to_lock);
  if (!lock) return;
  const auto more = store_->maintain();
  if (!std::exchange(has_failed_, !more) && !more)
    log_warn("making room for values ahead failed", {{"why", more.error().what}});
}

}  // namespace mc::host

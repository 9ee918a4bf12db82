#include "door/stored_values.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "product/metric_names.h"

namespace mc::door {
namespace {

using node::DiskCopy;
using node::Durability;
using node::SharedValue;
using node::ValueInfo;
using node::ValueKey;

constexpr int64_t kForeverMs = std::numeric_limits<int64_t>::max();
constexpr int64_t kTimeMostMs = int64_t{1000} * 366 * 86'400 * 2;  // of a record: twice the longest time of a request

ValueInfo info_of(const node::ValueBytes& value, const node::ValueTerms& terms) {
  ValueInfo info;
  info.bytes = value.size();
  info.crc = value.crc();
  if (terms.ttl < Duration::max()) info.ttl = terms.ttl;
  info.pin = terms.pin;
  info.replicas = terms.replicas;
  return info;
}

/// Each loss is logged once: the value is gone afterwards.
void log_damaged(const ValueKey& key, const std::string& why) {
  log_error("a value is damaged and was removed", {{"error", "MC" + std::to_string(static_cast<int>(err::kChecksum))},
                                                   {"tenant", key.tenant},
                                                   {"key", key.name},
                                                   {"why", why}});
}

/// The rest of a time that a record names.
Duration left_of(int64_t end_ms, int64_t now_ms) {
  if (end_ms == kForeverMs) return Duration::max();
  return std::chrono::milliseconds(std::clamp<int64_t>(end_ms - std::min(end_ms, now_ms), 0, kTimeMostMs));
}

}  // namespace

/// Keys that one call changes; locked_ has them.
class StoredValues::KeyLock {
 public:
  KeyLock(StoredValues& values, std::set<ValueKey> keys) : values_(values), keys_(std::move(keys)) {}
  ~KeyLock() {
    {
      const TableLock lock(values_.mutex_);
      for (const ValueKey& key : keys_) {
        const bool was_locked = values_.locked_.erase(key) == 1;
        MC_ASSERT(was_locked);
      }
    }
    values_.unlocked_.notify_all();
  }
  KeyLock(const KeyLock&) = delete;
  KeyLock& operator=(const KeyLock&) = delete;

 private:
  StoredValues& values_;
  const std::set<ValueKey> keys_;
};

/// Waits until no other call changes one of the keys.
Result<StoredValues::KeyLockPtr> StoredValues::lock_keys(std::set<ValueKey> keys, TimePoint until) {
  const FailsAlone uses_reserve(false);  // a key that stays locked is lost
  std::unique_lock lock(mutex_);
  const auto are_free = [&] {
    return std::none_of(keys.begin(), keys.end(), [&](const ValueKey& key) { return locked_.contains(key); });
  };
  if (until == kNever)
    unlocked_.wait(lock, are_free);
  else if (!unlocked_.wait_until(lock, until, are_free) || SystemClock::instance().now() >= until)
    return user_error(err::kDeadlineExceeded, "other calls were changing the key until the deadline of this one", "key",
                      "send the call again");
  const size_t locked = locked_.size();
  locked_.insert(keys.begin(), keys.end());
  MC_ASSERT_EQ(locked_.size(), locked + keys.size());
  lock.unlock();
  return KeyLockPtr(std::make_shared<const KeyLock>(*this, std::move(keys)));
}

StoredValues::StoredValues(const node::ValueLimits& limits, std::unique_ptr<node::ValueDisk> disk, const Clock& clock)
    : clock_(clock), memory_bytes_(limits.memory_bytes), disk_(std::move(disk)), store_(limits) {
  if (disk_) restore();
}

void StoredValues::restore() {
  const int64_t unix_ms = clock_.unix_ms();
  std::string why;
  for (const wire::ValueRecord& record : disk_->take_found()) {
    ValueInfo info;
    info.bytes = record.bytes;
    info.crc = record.crc;
    if (record.expires_ms != 0) info.ttl = std::max<Duration>(left_of(record.expires_ms, unix_ms), 1ms);
    info.pin = left_of(record.pinned_ms, unix_ms);
    info.copy = DiskCopy{record.number, record.data};
    info.replicas = record.replicas;
    const ValueKey key{record.tenant, record.name};
    if (const auto done = store_.restore(key, info, clock_.now()); !done) {
      left_out_.insert(key);
      why = done.error().what;
    }
  }
  if (!left_out_.empty())
    log_warn("values on disk can be removed and replaced, but not read: give a larger --values",
             {{"values", left_out_.size()}, {"why", why}});
}

Result<void> StoredValues::check_levels(const node::ValueTerms& terms) const {
  const Durability wanted = terms.durability;
  const std::string name(node::kDurabilityNames[static_cast<size_t>(wanted)]);
  if (wanted == Durability::d3 && terms.replicas.holders.size() < 2)
    return user_error(err::kNotDurable, "the level d3 keeps a value on two nodes, and this node keeps it on its own",
                      "durability", "put the value through a cache node that is a member of a cluster");
  if (wanted == Durability::d0 || disk_) return {};
  return user_error(err::kNotDurable, "the level " + name + " needs a disk, and this node keeps values in memory alone",
                    "durability",
                    "start the node with --ssd DIR:SIZE and a --values-disk of 16 MiB or more, or put the value at d0");
}

std::optional<ValueInfo> StoredValues::look(const ValueKey& key) {
  auto info = find(key);
  return info ? std::optional(std::move(*info)) : std::nullopt;
}

wire::ValueRecord StoredValues::record_of(const ValueKey& key, const ValueInfo& info) {
  MC_ASSERT(disk_ != nullptr);
  const int64_t now = clock_.unix_ms();
  wire::ValueRecord record{.tenant = key.tenant, .name = key.name};
  record.number = disk_->new_number();
  record.data = info.copy ? info.copy->data : record.number;
  record.bytes = info.bytes;
  record.crc = info.crc;
  record.replicas = info.replicas;
  if (info.ttl) record.expires_ms = now + *info.ttl / 1ms + 1;
  if (info.pin > Duration{}) record.pinned_ms = info.pin == Duration::max() ? kForeverMs : now + info.pin / 1ms + 1;
  return record;
}

Result<DiskCopy> StoredValues::write(const wire::ValueRecord& record, const node::ValueBytes* value) {
  if (auto done = disk_->write(record, value); !done) {
    failed_.fetch_add(1, std::memory_order_relaxed);
    take_back(record.number);
    return std::move(done).error();
  }
  written_.fetch_add(1, std::memory_order_relaxed);
  return DiskCopy{record.number, record.data};
}

/// Removes the record of a call that fails. What the disk does not remove now is removed later.
void StoredValues::take_back(uint64_t number) {
  if (disk_->take_back(number)) return;
  const TableLock lock(mutex_);
  remains_.push_back({.number = number, .is_alone = true});
}

/// Whether the key may get a value, before that is written. The lock on the key keeps the answer true, but for room.
Result<void> StoredValues::check_put(const ValueKey& key, size_t bytes, const node::ValueTerms& terms) {
  const TableLock lock(mutex_);
  return store_.check_put(key, bytes, terms, clock_.now());
}

Result<void> StoredValues::drop_key(const ValueKey& key) {
  auto done = disk_->drop_key(key);
  if (!done) failed_.fetch_add(1, std::memory_order_relaxed);
  return done;
}

StoredValues::Before StoredValues::before(const ValueKey& key) {
  const TableLock lock(mutex_);
  const TimePoint now = clock_.now();
  auto info = store_.find(key, now);
  if (!info) return {.info = {}, .value = nullptr, .time = now};
  return {.info = std::move(*info), .value = store_.bytes_of(key), .time = now};
}

/// Gives a key the value that it had, after a call that replaced or removed it in memory and fails. mutex_ is held.
void StoredValues::put_back(const ValueKey& key, const Before& before) {
  if (!before.info) return;
  ValueInfo info = *before.info;
  const TimePoint now = clock_.now();
  if (info.ttl) info.ttl = *info.ttl - (now - before.time);
  bool is_back = false;
  if (!info.ttl || *info.ttl > Duration{}) {
    const node::ValueTerms terms{
        .ttl = info.ttl.value_or(Duration::max()), .pin = info.pin, .replaces = true, .replicas = info.replicas};
    is_back = before.value ? store_.put(key, before.value, terms, now, info.copy).has_value()
                           : info.copy && store_.restore(key, info, now);
  }
  if (!is_back && info.copy) remains_.push_back({.number = info.copy->number});
}

// ---- put -------------------------------------------------------------------------------------

Result<StoredValues::PutResult> StoredValues::put(const ValueKey& key, SharedValue value, const node::ValueTerms& terms,
                                                  Later* later, TimePoint until) {
  MC_ASSERT(value != nullptr);
  MC_CHECK(check_levels(terms));
  if (!disk_) {
    const TableLock lock(mutex_);
    return store_.put(key, std::move(value), terms, clock_.now());
  }
  MC_TRY(key_lock, lock_keys({key}, until));
  const Before old = before(key);
  if (old.info && !terms.replaces) {
    MC_TRY(same, has_same(key, *old.info, *value));
    if (same && !old.info->copy && terms.durability > Durability::d0) {
      MC_CHECK(check_put(key, value->size(), {.replaces = true, .durability = terms.durability}));
      MC_CHECK(persist(key, *old.info, value));
    }
    if (same) return PutResult::unchanged;
  }
  // An old value on disk has to go before the answer, and the new one goes there with the same flush.
  const bool is_durable = old.info && old.info->copy;
  if (terms.durability > Durability::d1 || (terms.durability == Durability::d1 && (later == nullptr || is_durable)))
    return put_durably(key, value, terms);
  Result<PutResult> done = PutResult::unchanged;
  {
    const TableLock lock(mutex_);
    done = store_.put(key, value, terms, clock_.now());
    if (done && is_durable) store_.claim(*old.info->copy);
  }
  if (done) MC_CHECK(drop_replaced(key, old));
  if (!done || terms.durability == Durability::d0) return done;
  *later = [this, key, value, info = info_of(*value, terms), key_lock] {
    if (const auto kept = persist(key, info, value); !kept)
      log_warn("a value of level d1 stays in memory alone", {{"bytes", value->size()}, {"why", kept.error().what}});
  };
  return done;
}

/// The end of a call that put a value into memory alone: what the disk has of the key must not come back. If the disk
/// refuses, the key gets the value that it had.
Result<void> StoredValues::drop_replaced(const ValueKey& key, const Before& before) {
  auto done = drop_key(key);
  if (done) return {};
  const TableLock lock(mutex_);
  (void)store_.remove(key, clock_.now());
  put_back(key, before);
  return done;
}

Result<StoredValues::PutResult> StoredValues::put_durably(const ValueKey& key, const SharedValue& value,
                                                          const node::ValueTerms& terms) {
  MC_ASSERT(value != nullptr && terms.durability > Durability::d0);
  MC_CHECK(check_put(key, value->size(), terms));
  MC_TRY(copy, write(record_of(key, info_of(*value, terms)), value.get()));
  Result<PutResult> done = PutResult::unchanged;
  {
    const TableLock lock(mutex_);
    done = store_.put(key, value, terms, clock_.now(), copy);
  }
  if (!done) take_back(copy.number);
  return done;
}

Result<void> StoredValues::persist(const ValueKey& key, const ValueInfo& info, const SharedValue& value) {
  const TimePoint began = clock_.now();
  MC_TRY(copy, write(record_of(key, info), value.get()));
  {
    const TableLock lock(mutex_);
    if (store_.attach(key, copy, info.bytes, info.crc, clock_.now())) return {};
    // It was evicted, or its time to live is over.
    ValueInfo evicted = info;
    evicted.copy = copy;
    if (info.ttl) evicted.ttl = *info.ttl - (clock_.now() - began);
    const bool is_over = evicted.ttl && *evicted.ttl <= Duration{};
    if (!is_over) {
      const auto restored = store_.restore(key, evicted, clock_.now());
      if (restored) return {};
      remains_.push_back({.number = copy.number});
      return restored;
    }
    remains_.push_back({.number = copy.number});
  }
  return {};
}

/// Whether the key has these bytes already.
Result<bool> StoredValues::has_same(const ValueKey& key, const ValueInfo& info, const node::ValueBytes& value) {
  if (info.bytes != value.size() || info.crc != value.crc()) return false;
  const auto bytes = bytes_of(key, info);
  if (!bytes && bytes.error().mc == err::kNotFound) return false;  // it was evicted meanwhile
  MC_CHECK(bytes);
  return (*bytes)->view() == value.view();
}

/// Whether two keys have the same bytes. One call at a time loads values for that: two values have up to 128 MiB, and
/// they are not counted against the limit for request bodies. A call that gets no turn in time fails, since it holds
/// its keys and a disk thread.
Result<bool> StoredValues::are_same(const ValueKey& from, const ValueInfo& source, const ValueKey& to,
                                    const ValueInfo& there) {
  if (source.bytes != there.bytes || source.crc != there.crc) return false;
  if (source.copy && there.copy && source.copy->data == there.copy->data) return true;
  constexpr std::chrono::seconds kTurnMax{2};
  const std::unique_lock one_at_a_time(comparing_, kTurnMax);
  if (!one_at_a_time.owns_lock())
    return user_error(err::kQueueFull, "other calls compare values on disk, and no turn came within 2 s", "key");
  MC_TRY(value, bytes_of(from, source));
  return has_same(to, there, *value);
}

// ---- get -------------------------------------------------------------------------------------

Result<SharedValue> StoredValues::bytes_of(const ValueKey& key, const ValueInfo& info) {
  {
    const TableLock lock(mutex_);
    if (SharedValue value = store_.bytes_of(key)) return value;
  }
  if (!info.copy) return user_error(err::kNotFound, "the value was evicted meanwhile", "key");
  auto loaded = disk_->load(*info.copy, info.bytes, info.crc);
  ++(loaded ? loaded_ : failed_);
  const TableLock lock(mutex_);
  if (loaded) store_.promote(key, *info.copy, *loaded, clock_.now());
  if (!loaded && loaded.error().mc == err::kChecksum && store_.lose(key, *info.copy, clock_.now()))
    log_damaged(key, loaded.error().what);
  return loaded;
}

Result<StoredValues::Found> StoredValues::get(const ValueKey& key, Duration lease, bool may_wait) {
  constexpr int kTriesMax = 8;  // a value may be replaced while the disk reads it
  for (int attempt = 1;; ++attempt) {
    Found found;
    {
      const TableLock lock(mutex_);
      const TimePoint now = clock_.now();
      const auto info = store_.find(key, now);
      if (!may_wait && info && !info->in_memory) return Found{.value = nullptr, .info = *info};
      MC_TRY(there, store_.get(key, lease, now));
      found = std::move(there);
    }
    if (found.value) return found;
    auto bytes = bytes_of(key, found.info);
    if (!bytes && bytes.error().mc == err::kNotFound && attempt < kTriesMax) continue;
    if (!bytes && bytes.error().mc == err::kChecksum)
      return user_error(err::kChecksum, bytes.error().what + "; it was removed", "key",
                        "put the value again, and check the disk of the node");
    MC_CHECK(bytes);
    found.value = std::move(*bytes);
    if (found.value->size() == found.info.bytes && found.value->crc() == found.info.crc) return found;
    if (attempt == kTriesMax) return user_error(err::kQueueFull, "the value changes faster than it is read", "key");
  }
}

bool StoredValues::lose_memory(const ValueKey& key, const SharedValue& value) {
  const TableLock lock(mutex_);
  const bool is_there = store_.lose_memory(key, value, clock_.now());
  if (!is_there) log_damaged(key, "the value in memory does not match its checksum");
  return is_there;
}

Result<ValueInfo> StoredValues::find(const ValueKey& key) {
  const TableLock lock(mutex_);
  return store_.find(key, clock_.now());
}

bool StoredValues::is_in_memory(const ValueKey& key) {
  const auto info = look(key);
  return !info || info->in_memory;
}

StoredValues::Listing StoredValues::list(const std::string& tenant, std::string_view prefix, std::string_view after,
                                         size_t limit, Sums& sums) {
  const TableLock lock(mutex_);
  Listing out = store_.list(tenant, prefix, after, limit, clock_.now());
  sums = store_.sums().of(tenant);
  return out;
}

// ---- changes ---------------------------------------------------------------------------------

Result<void> StoredValues::remove(const ValueKey& key, TimePoint until, uint64_t version) {
  MC_TRY(key_lock, lock_keys({key}, until));
  {
    const TableLock lock(mutex_);
    const auto info = store_.find(key, clock_.now());
    if (!left_out_.contains(key)) MC_CHECK(info);
    if (info && info->replicas.version > version)
      return user_error(err::kValueDiffers, "the key has a newer value, which another put has just given it", "key");
  }
  if (disk_) MC_CHECK(drop_key(key));
  const TableLock lock(mutex_);
  auto removed = store_.remove(key, clock_.now());
  return left_out_.erase(key) > 0 ? Result<void>() : removed;
}

Result<void> StoredValues::pin(const ValueKey& key, Duration time, TimePoint until) {
  MC_TRY(key_lock, lock_keys({key}, until));
  MC_TRY(info, find(key));
  std::optional<DiskCopy> copy;
  if (info.copy) {
    info.pin = time;
    MC_TRY(written, write(record_of(key, info), nullptr));
    copy = written;
  }
  Result<void> done;
  {
    const TableLock lock(mutex_);
    done = store_.pin(key, time, clock_.now(), copy);
  }
  if (!done && copy) take_back(copy->number);
  return done;
}

Result<void> StoredValues::set_replicas(const ValueKey& key, const wire::ReplicaSet& set, TimePoint until) {
  MC_TRY(key_lock, lock_keys({key}, until));
  MC_TRY(info, find(key));
  std::optional<DiskCopy> copy;
  if (info.copy && info.replicas != set) {
    info.replicas = set;
    MC_TRY(written, write(record_of(key, info), nullptr));
    copy = written;
  }
  Result<void> done;
  {
    const TableLock lock(mutex_);
    done = store_.set_replicas(key, set, clock_.now(), copy);
  }
  if (!done && copy) take_back(copy->number);
  return done;
}

std::vector<ValueKey> StoredValues::replicated(const ValueKey& after, size_t limit) {
  const TableLock lock(mutex_);
  return store_.replicated(after, limit);
}

Result<StoredValues::PutResult> StoredValues::copy(const ValueKey& from, const ValueKey& to, bool replaces,
                                                   TimePoint until) {
  MC_TRY(key_lock, lock_keys({from, to}, until));
  MC_TRY(info, find(from));
  if (from == to) return PutResult::unchanged;
  const Before old = before(to);
  if (disk_ && old.info && !replaces) {
    MC_TRY(same, are_same(from, info, to, *old.info));
    if (same) return PutResult::unchanged;
    MC_CHECK(check_put(to, 0, {.replaces = replaces}));
  }
  std::optional<DiskCopy> copy;
  if (info.copy) {
    info.pin = {};
    info.replicas = {};
    MC_CHECK(check_put(to, 0, {.replaces = true, .durability = Durability::d2}));
    MC_TRY(written, write(record_of(to, info), nullptr));
    copy = written;
  }
  Result<PutResult> done = PutResult::unchanged;
  {
    const TableLock lock(mutex_);
    done = store_.copy(from, to, replaces, clock_.now(), copy);
    if (done && !copy && old.info && old.info->copy) store_.claim(*old.info->copy);
  }
  if (!done && copy) take_back(copy->number);
  if (done && *done != PutResult::unchanged && !copy && disk_) MC_CHECK(drop_replaced(to, old));
  return done;
}

Result<StoredValues::PutResult> StoredValues::move(const ValueKey& from, const ValueKey& to, bool replaces,
                                                   TimePoint until) {
  MC_TRY(key_lock, lock_keys({from, to}, until));
  MC_TRY(info, find(from));
  if (from == to) return PutResult::unchanged;
  MC_CHECK(check_put(to, 0, {.replaces = replaces}));
  return info.copy ? move_durably(from, to, info, replaces) : move_in_memory(from, to, replaces);
}

/// Moves a value that has no copy on disk. What the disk has of the new key must not come back. If it refuses the
/// drop, the move is undone.
Result<StoredValues::PutResult> StoredValues::move_in_memory(const ValueKey& from, const ValueKey& to, bool replaces) {
  const Before source = before(from), replaced = before(to);
  Result<PutResult> done = PutResult::unchanged;
  {
    const TableLock lock(mutex_);
    done = store_.move(from, to, replaces, clock_.now());
    if (done && replaced.info && replaced.info->copy) store_.claim(*replaced.info->copy);
  }
  if (!done || !disk_) return done;
  const auto dropped = drop_key(to);
  if (dropped) return done;
  const TableLock lock(mutex_);
  (void)store_.remove(to, clock_.now());
  put_back(from, source);
  put_back(to, replaced);
  return dropped.error();
}

Result<StoredValues::PutResult> StoredValues::move_durably(const ValueKey& from, const ValueKey& to,
                                                           const ValueInfo& info, bool replaces) {
  {
    const TableLock lock(mutex_);
    MC_CHECK(store_.set_aside(from, to, clock_.now()));
  }
  wire::ValueRecord record = record_of(to, info);
  record.replicas = {};
  const auto written = disk_->move(record, from, info.copy->number);
  (written ? written_ : failed_).fetch_add(1, std::memory_order_relaxed);
  const TableLock lock(mutex_);
  store_.give_up(to);
  if (!written) return written.error();
  const TimePoint now = clock_.now();
  const bool exists = store_.find(to, now).has_value();
  auto done = store_.move(from, to, replaces, now, DiskCopy{record.number, record.data});
  if (done) {
    store_.claim(*info.copy);  // the disk has dropped it
    return done;
  }
  // The value ended after its move: its time to live is over, or its bytes were found damaged.
  (void)store_.remove(to, now);
  remains_.push_back({.number = record.number});
  return exists ? PutResult::replaced : PutResult::created;
}

// ---- upkeep ----------------------------------------------------------------------------------

bool StoredValues::expire() {
  const TableLock lock(mutex_);
  const TimePoint now = clock_.now();
  store_.expire(now);
  return disk_ && (store_.has_unneeded() || (!remains_.empty() && now >= clear_at_));
}

void StoredValues::drop_unneeded() {
  if (!disk_) return;
  drop_remains();
  disk_->keep_room();
}

/// One thread at a time drops remains. Others go on with their calls.
void StoredValues::drop_remains() {
  constexpr Duration kAgain = 1s;
  constexpr size_t kDropsAtOnce = 256;  // each is a commit, and a node that stops waits for this call
  const std::unique_lock alone(dropping_, std::try_to_lock);
  if (!alone) return;
  std::vector<Remains> work;
  {
    const TableLock lock(mutex_);
    for (const DiskCopy& copy : store_.take_unneeded()) remains_.push_back({.number = copy.number});
    if (clock_.now() < clear_at_) return;
    const auto end = remains_.begin() + static_cast<ptrdiff_t>(std::min(remains_.size(), kDropsAtOnce));
    work.assign(remains_.begin(), end);
    remains_.erase(remains_.begin(), end);
  }
  if (work.empty()) return;
  std::vector<Remains> left;
  std::string why;
  for (const Remains& one : work) {
    const auto done = one.is_alone ? disk_->take_back(one.number) : disk_->drop(one.number);
    if (!done) left.push_back(one), why = done.error().what;
  }
  failed_.fetch_add(left.size(), std::memory_order_relaxed);
  bool was_clear = false;
  {
    const TableLock lock(mutex_);
    was_clear = std::exchange(is_clear_, left.empty());
    if (!left.empty()) clear_at_ = clock_.now() + kAgain;
    remains_.insert(remains_.end(), left.begin(), left.end());
  }
  if (was_clear && !left.empty())
    log_warn("old values stay on disk; the node goes on trying to drop them", {{"values", left.size()}, {"why", why}});
}

void StoredValues::update(Metrics& metrics) {
  const uint64_t disk_used = disk_ ? disk_->used_bytes() : 0, disk_most = disk_ ? disk_->capacity_bytes() : 0;
  const TableLock lock(mutex_);
  metrics.gauge(metric::kStoreValues).set(static_cast<double>(store_.count()));
  metrics.gauge(metric::kStoreBytes, {"used"}).set(static_cast<double>(store_.sums().all().used_bytes));
  metrics.gauge(metric::kStoreBytes, {"held"}).set(static_cast<double>(store_.sums().all().held_bytes));
  metrics.gauge(metric::kStoreBytes, {"capacity"}).set(static_cast<double>(memory_bytes_));
  metrics.gauge(metric::kStoreDisk, {"used"}).set(static_cast<double>(disk_used));
  metrics.gauge(metric::kStoreDisk, {"capacity"}).set(static_cast<double>(disk_most));
  const node::ValueStore::Stats& now = store_.stats();
  const auto count = [](metric::Counter counter, uint64_t total, uint64_t& before) {
    MC_ASSERT_LE(before, total);
    counter.add(static_cast<double>(total - std::exchange(before, total)));
  };
  count(metrics.counter(metric::kStorePuts, {"created"}), now.created, told_.created);
  count(metrics.counter(metric::kStorePuts, {"replaced"}), now.replaced, told_.replaced);
  count(metrics.counter(metric::kStorePuts, {"rejected"}), now.rejected, told_.rejected);
  count(metrics.counter(metric::kStoreGets, {"hit"}), now.hits, told_.hits);
  count(metrics.counter(metric::kStoreGets, {"miss"}), now.misses, told_.misses);
  count(metrics.counter(metric::kStoreEnded, {"evicted"}), now.evicted, told_.evicted);
  count(metrics.counter(metric::kStoreEnded, {"expired"}), now.expired, told_.expired);
  count(metrics.counter(metric::kStoreEnded, {"removed"}), now.removed, told_.removed);
  count(metrics.counter(metric::kStoreEnded, {"damaged"}), now.damaged, told_.damaged);
  count(metrics.counter(metric::kStoreDiskOps, {"written"}), written_, told_written_);
  count(metrics.counter(metric::kStoreDiskOps, {"loaded"}), loaded_, told_loaded_);
  count(metrics.counter(metric::kStoreDiskOps, {"failed"}), failed_, told_failed_);
}

}  // namespace mc::door

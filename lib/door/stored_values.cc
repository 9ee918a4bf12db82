#include "door/stored_values.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
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
  return info;
}

/// The rest of a time that a record names.
Duration left_of(int64_t end_ms, int64_t now_ms) {
  if (end_ms == kForeverMs) return Duration::max();
  return std::chrono::milliseconds(std::clamp<int64_t>(end_ms - std::min(end_ms, now_ms), 0, kTimeMostMs));
}

}  // namespace

/// Keys that one call changes. Waits until no other call changes one of them.
class StoredValues::KeyLock {
 public:
  KeyLock(StoredValues& values, std::set<ValueKey> keys) : values_(values), keys_(std::move(keys)) {
    std::unique_lock lock(values_.mutex_);
    values_.unlocked_.wait(lock, [&] {
      return std::none_of(keys_.begin(), keys_.end(),
                          [&](const ValueKey& key) { return values_.locked_.contains(key); });
    });
    values_.locked_.insert(keys_.begin(), keys_.end());
  }
  ~KeyLock() {
    {
      const std::lock_guard lock(values_.mutex_);
      for (const ValueKey& key : keys_) values_.locked_.erase(key);
    }
    values_.unlocked_.notify_all();
  }
  KeyLock(const KeyLock&) = delete;
  KeyLock& operator=(const KeyLock&) = delete;

 private:
  StoredValues& values_;
  const std::set<ValueKey> keys_;
};

StoredValues::StoredValues(const node::ValueLimits& limits, std::unique_ptr<node::ValueDisk> disk, const Clock& clock)
    : clock_(clock), memory_bytes_(limits.memory_bytes), disk_(std::move(disk)), store_(limits) {
  if (disk_) restore();
}

void StoredValues::restore() {
  const int64_t unix_ms = clock_.unix_ms();
  uint64_t left_out = 0;
  std::string why;
  for (const wire::ValueRecord& record : disk_->take_found()) {
    ValueInfo info;
    info.bytes = record.bytes;
    info.crc = record.crc;
    if (record.expires_ms != 0) info.ttl = std::max<Duration>(left_of(record.expires_ms, unix_ms), 1ms);
    info.pin = left_of(record.pinned_ms, unix_ms);
    info.copy = DiskCopy{record.number, record.data};
    const auto done = store_.restore({record.tenant, record.name}, info, clock_.now());
    if (!done) ++left_out, why = done.error().what;
  }
  if (left_out > 0)
    log_warn("values on disk are not served: give a larger --values", {{"values", left_out}, {"why", why}});
}

Result<void> StoredValues::check_levels(const node::ValueTerms& terms) const {
  const Durability wanted = terms.durability;
  const std::string name(node::kDurabilityNames[static_cast<size_t>(wanted)]);
  if (wanted == Durability::d3)
    return user_error(err::kNotDurable, "the level d3 keeps a value on two nodes, and this node keeps it on its own",
                      "durability", "put the value at d2 on each of two nodes");
  if (wanted == Durability::d0 || disk_) return {};
  return user_error(err::kNotDurable, "the level " + name + " needs a disk, and this node keeps values in memory alone",
                    "durability", "start the node with --ssd DIR:SIZE, or put the value at d0");
}

std::optional<ValueInfo> StoredValues::look(const ValueKey& key) {
  auto info = find(key);
  return info ? std::optional(std::move(*info)) : std::nullopt;
}

wire::ValueRecord StoredValues::record_of(const ValueKey& key, const ValueInfo& info) {
  const int64_t now = clock_.unix_ms();
  wire::ValueRecord record{.tenant = key.tenant, .name = key.name};
  record.number = disk_->new_number();
  record.data = info.copy ? info.copy->data : record.number;
  record.bytes = info.bytes;
  record.crc = info.crc;
  if (info.ttl) record.expires_ms = now + *info.ttl / 1ms + 1;
  if (info.pin > Duration{}) record.pinned_ms = info.pin == Duration::max() ? kForeverMs : now + info.pin / 1ms + 1;
  return record;
}

Result<DiskCopy> StoredValues::write(const wire::ValueRecord& record, const node::ValueBytes* value) {
  if (auto done = disk_->write(record, value); !done) {
    failed_.fetch_add(1, std::memory_order_relaxed);
    return std::move(done).error();
  }
  written_.fetch_add(1, std::memory_order_relaxed);
  return DiskCopy{record.number, record.data};
}

// ---- put -------------------------------------------------------------------------------------

Result<StoredValues::PutResult> StoredValues::put(const ValueKey& key, SharedValue value, const node::ValueTerms& terms,
                                                  Later* later) {
  MC_ASSERT(value != nullptr);
  MC_CHECK(check_levels(terms));
  if (!disk_) {
    const std::lock_guard lock(mutex_);
    return store_.put(key, std::move(value), terms, clock_.now());
  }
  auto key_lock = std::make_shared<KeyLock>(*this, std::set<ValueKey>{key});
  if (const auto info = look(key); info && !terms.replaces) {
    MC_TRY(same, has_same(key, *info, *value));
    if (same && !info->copy && terms.durability > Durability::d0) MC_CHECK(persist(key, *info, value));
    if (same) return PutResult::unchanged;
  }
  if (terms.durability > Durability::d1 || (terms.durability == Durability::d1 && later == nullptr))
    return put_durably(key, value, terms);
  {
    const std::lock_guard lock(mutex_);
    MC_TRY(done, store_.put(key, value, terms, clock_.now()));
    if (terms.durability == Durability::d0) return done;
    *later = [this, key, value, info = info_of(*value, terms), key_lock] {
      if (const auto kept = persist(key, info, value); !kept)
        log_warn("a value of level d1 stays in memory alone", {{"bytes", value->size()}, {"why", kept.error().what}});
    };
    return done;
  }
}

Result<StoredValues::PutResult> StoredValues::put_durably(const ValueKey& key, const SharedValue& value,
                                                          const node::ValueTerms& terms) {
  {
    const std::lock_guard lock(mutex_);
    MC_CHECK(store_.check_put(key, *value, terms, clock_.now()));
  }
  MC_TRY(copy, write(record_of(key, info_of(*value, terms)), value.get()));
  Result<PutResult> done = PutResult::unchanged;
  {
    const std::lock_guard lock(mutex_);
    done = store_.put(key, value, terms, clock_.now(), copy);
  }
  if (!done) MC_CHECK(disk_->take_back(copy.number));  // a refused value does not come back
  return done;
}

Result<void> StoredValues::persist(const ValueKey& key, const ValueInfo& info, const SharedValue& value) {
  const TimePoint began = clock_.now();
  MC_TRY(copy, write(record_of(key, info), value.get()));
  {
    const std::lock_guard lock(mutex_);
    if (store_.attach(key, copy, info.bytes, info.crc, clock_.now())) return {};
    // It was evicted, or its time to live is over.
    ValueInfo evicted = info;
    evicted.copy = copy;
    if (info.ttl) evicted.ttl = *info.ttl - (clock_.now() - began);
    const bool is_over = evicted.ttl && *evicted.ttl <= Duration{};
    if (!is_over && store_.restore(key, evicted, clock_.now())) return {};
  }
  return disk_->drop(copy.number, false);
}

/// Whether the key has these bytes already.
Result<bool> StoredValues::has_same(const ValueKey& key, const ValueInfo& info, const node::ValueBytes& value) {
  if (info.bytes != value.size() || info.crc != value.crc()) return false;
  MC_TRY(bytes, bytes_of(key, info));
  return bytes->view() == value.view();
}

// ---- get -------------------------------------------------------------------------------------

Result<SharedValue> StoredValues::bytes_of(const ValueKey& key, const ValueInfo& info) {
  {
    const std::lock_guard lock(mutex_);
    if (SharedValue value = store_.bytes_of(key)) return value;
  }
  if (!info.copy) return user_error(err::kNotFound, "the value was evicted meanwhile", "key");
  auto loaded = disk_->load(*info.copy, info.bytes, info.crc);
  ++(loaded ? loaded_ : failed_);
  const std::lock_guard lock(mutex_);
  if (loaded) store_.promote(key, *info.copy, *loaded, clock_.now());
  if (!loaded && loaded.error().mc == err::kChecksum) store_.lose(key, *info.copy, clock_.now());
  return loaded;
}

Result<StoredValues::Found> StoredValues::get(const ValueKey& key, Duration lease) {
  constexpr int kTriesMax = 8;  // a value may be replaced while the disk reads it
  for (int attempt = 1;; ++attempt) {
    Found found;
    {
      const std::lock_guard lock(mutex_);
      MC_TRY(there, store_.get(key, lease, clock_.now()));
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

Result<ValueInfo> StoredValues::find(const ValueKey& key) {
  const std::lock_guard lock(mutex_);
  return store_.find(key, clock_.now());
}

bool StoredValues::is_in_memory(const ValueKey& key) {
  const auto info = look(key);
  return !info || info->in_memory;
}

StoredValues::Listing StoredValues::list(const std::string& tenant, std::string_view prefix, std::string_view after,
                                         size_t limit, Totals& totals) {
  const std::lock_guard lock(mutex_);
  Listing out = store_.list(tenant, prefix, after, limit, clock_.now());
  totals = {store_.used_bytes(), store_.held_bytes()};
  return out;
}

// ---- changes ---------------------------------------------------------------------------------

Result<void> StoredValues::remove(const ValueKey& key) {
  const KeyLock key_lock(*this, {key});
  MC_TRY(info, find(key));
  if (info.copy) MC_CHECK(disk_->drop(info.copy->number, true));
  const std::lock_guard lock(mutex_);
  return store_.remove(key, clock_.now());
}

Result<void> StoredValues::pin(const ValueKey& key, Duration time) {
  const KeyLock key_lock(*this, {key});
  MC_TRY(info, find(key));
  std::optional<DiskCopy> copy;
  if (info.copy) {
    info.pin = time;
    MC_TRY(written, write(record_of(key, info), nullptr));
    copy = written;
  }
  Result<void> done;
  {
    const std::lock_guard lock(mutex_);
    done = store_.pin(key, time, clock_.now(), copy);
  }
  if (!done && copy) MC_CHECK(disk_->take_back(copy->number));
  return done;
}

Result<StoredValues::PutResult> StoredValues::copy(const ValueKey& from, const ValueKey& to, bool replaces) {
  const KeyLock key_lock(*this, {from, to});
  MC_TRY(info, find(from));
  if (from == to) return PutResult::unchanged;
  if (const auto old = look(to); disk_ && old && !replaces) {
    MC_TRY(value, bytes_of(from, info));
    MC_TRY(same, has_same(to, *old, *value));
    if (same) return PutResult::unchanged;
    const std::lock_guard lock(mutex_);
    MC_CHECK(store_.check_put(to, *value, {}, clock_.now()));
  }
  std::optional<DiskCopy> copy;
  if (info.copy) {
    info.pin = {};
    MC_TRY(written, write(record_of(to, info), nullptr));
    copy = written;
  }
  Result<PutResult> done = PutResult::unchanged;
  {
    const std::lock_guard lock(mutex_);
    done = store_.copy(from, to, replaces, clock_.now(), copy);
  }
  if (!done && copy) MC_CHECK(disk_->take_back(copy->number));
  return done;
}

Result<StoredValues::PutResult> StoredValues::move(const ValueKey& from, const ValueKey& to, bool replaces) {
  const KeyLock key_lock(*this, {from, to});
  MC_TRY(info, find(from));
  if (from == to) return PutResult::unchanged;
  std::optional<DiskCopy> copy;
  const bool is_free = replaces || !look(to);
  if (info.copy && is_free) {
    MC_TRY(written, write(record_of(to, info), nullptr));
    copy = written;
  }
  Result<PutResult> done = PutResult::unchanged;
  {
    const std::lock_guard lock(mutex_);
    done = store_.move(from, to, replaces, clock_.now(), copy);
  }
  if (!done && copy) MC_CHECK(disk_->take_back(copy->number));
  if (done && copy) MC_CHECK(disk_->drop(info.copy->number, true));
  return done;
}

// ---- upkeep ----------------------------------------------------------------------------------

bool StoredValues::expire() {
  const std::lock_guard lock(mutex_);
  store_.expire(clock_.now());
  return disk_ && store_.has_unneeded();
}

void StoredValues::drop_unneeded() {
  if (!disk_) return;
  std::vector<DiskCopy> copies;
  {
    const std::lock_guard lock(mutex_);
    copies = store_.take_unneeded();
  }
  for (const DiskCopy& copy : copies)
    if (const auto done = disk_->drop(copy.number, false); !done) {
      failed_.fetch_add(1, std::memory_order_relaxed);
      log_warn("an old value stays on disk", {{"why", done.error().what}});
    }
}

void StoredValues::update(Metrics& metrics) {
  const uint64_t disk_used = disk_ ? disk_->used_bytes() : 0, disk_most = disk_ ? disk_->capacity_bytes() : 0;
  const std::lock_guard lock(mutex_);
  metrics.gauge(metric::kStoreValues).set(static_cast<double>(store_.count()));
  metrics.gauge(metric::kStoreBytes, {"used"}).set(static_cast<double>(store_.used_bytes()));
  metrics.gauge(metric::kStoreBytes, {"held"}).set(static_cast<double>(store_.held_bytes()));
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

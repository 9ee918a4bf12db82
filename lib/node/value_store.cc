#include "node/value_store.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/copy_crc.h"
#include "base/errors.h"
#include "base/json.h"
#include "base/units.h"

namespace mc::node {
namespace {

/// A key for messages. Keys may be long.
std::string shown(std::string_view name) {
  constexpr size_t kShownMax = 100;
  return "\"" + std::string(name.substr(0, kShownMax)) + (name.size() > kShownMax ? "...\"" : "\"");
}

std::string exact(uint64_t bytes) {
  return std::to_string(bytes) + " bytes";
}

/// The time that is left of something that ends at `end`.
Duration left(TimePoint end, TimePoint now) {
  if (end == kNever) return Duration::max();
  return end > now ? end - now : Duration{};
}

/// Memory of a value's key and tables, whose bytes may be on disk alone.
uint64_t index_cost(const ValueKey& key) {
  return key.tenant.size() + key.name.size() + kValueOverheadBytes;
}

/// Why a value cannot be held.
std::string half_is_full(const ValueLimits& limits, uint64_t cost) {
  return "pinned and leased values have at most half of the store's " + format_bytes(limits.memory_bytes) +
         ", and that half has no room for the value's " + exact(cost);
}

}  // namespace

ValueBytes::ValueBytes(std::string_view bytes)
    : size_(bytes.size()),
      memory_(new std::byte[bytes.size()]),
      crc_(copy_crc32c(memory_.get(), reinterpret_cast<const std::byte*>(bytes.data()), bytes.size())) {}

Result<void> check_value_key(std::string_view name) {
  if (name.empty() || name.size() > kValueKeyBytesMax)
    return user_error(err::kInvalidField,
                      "a key of " + std::to_string(name.size()) + " bytes; keys have 1 to " +
                          std::to_string(kValueKeyBytesMax) + " bytes",
                      "key");
  const auto fault = [](size_t at, const char* what) {
    return user_error(err::kInvalidField,
                      "byte " + std::to_string(at) + " of the key is " + what + "; keys are UTF-8 text", "key");
  };
  if (const auto at = find_invalid_utf8(name)) return fault(*at, "no UTF-8");
  for (size_t i = 0; i < name.size(); ++i)
    if (static_cast<uint8_t>(name[i]) < 0x20 || name[i] == 0x7f) return fault(i, "a control character");
  return {};
}

ValueStore::ValueStore(const ValueLimits& limits) : limits_(limits) {
  MC_ASSERT(limits_.value_bytes_max > 0 && limits_.lease_max >= Duration{});
}

uint64_t ValueStore::Entry::cost(const ValueKey& key) const {
  return (value ? bytes : 0) + index_cost(key);
}

uint64_t ValueStore::Entry::gain(const ValueKey& key) const {
  MC_ASSERT(value != nullptr);
  return copy ? bytes : cost(key);
}

/// Bytes that are on disk alone are compared by the caller, who loads them first.
bool ValueStore::Entry::is_same(const SharedValue& other) const {
  return other != nullptr && value != nullptr && value->view() == other->view();
}

ValueInfo ValueStore::Entry::info(const ValueKey& key, TimePoint now) const {
  ValueInfo out{.name = key.name, .bytes = bytes, .uses = uses, .crc = crc};
  if (expires != kNever) out.ttl = left(expires, now);
  out.pin = left(pinned, now);
  out.lease = left(leased, now);
  out.copy = copy;
  out.in_memory = value != nullptr;
  out.replicas = replicas;
  return out;
}

ValueStore::Share ValueStore::share_of(Place place) const {
  const Entry& entry = place->second;
  if (idle_.contains(entry.order)) return {.idle = entry.gain(place->first), .held = 0};
  return {.idle = 0, .held = entry.value ? entry.cost(place->first) : 0};
}

/// The value of a key unless its time to live is over, even where expire() has not come to it yet.
ValueStore::Place ValueStore::living(const ValueKey& key) {
  const Place place = entries_.find(key);
  if (place == entries_.end() || place->second.expires > now_) return place;
  erase(place);
  ++stats_.expired;
  return entries_.end();
}

Result<ValueStore::Place> ValueStore::at(const ValueKey& key) {
  const Place place = living(key);
  if (place != entries_.end()) return place;
  if (damaged_.contains(key))
    return user_error(err::kNotFound,
                      "there is no value " + shown(key.name) + ": its bytes were damaged, and it was removed", "key",
                      "put the value again, and check disk and memory of the node");
  return user_error(err::kNotFound, "there is no value " + shown(key.name), "key",
                    "mc-cache ls NODE --keys lists the keys; a value may have been evicted or its time to live over");
}

/// MC5008. The text has sizes of the caller's own values alone: what others use is not the caller's to see.
Error ValueStore::no_room(const ValueKey& key, const std::string& why) {
  ++stats_.rejected;
  const ValueSums::Sums own = sums_.of(key.tenant);
  return user_error(err::kStoreFull,
                    why + "; tenant " + key.tenant + " uses " + exact(own.used_bytes) + ", of which " +
                        exact(own.held_bytes) + " are pinned or leased",
                    "key", "unpin or remove values, put a smaller one, or start the node with a larger --values");
}

/// Whether the keys of values on disk may take `more` bytes.
Result<void> ValueStore::check_disk_key(const ValueKey& key, uint64_t more) {
  const uint64_t own = sums_.of(key.tenant).disk_key_bytes, all = sums_.all().disk_key_bytes;
  const bool shares = limits_.tenants == ValueTenants::several;
  const uint64_t own_max = limits_.memory_bytes / (shares ? 4 : 2);
  if (more == 0 || (own + more <= own_max && all + more <= limits_.memory_bytes / 2)) return {};
  ++stats_.rejected;
  return user_error(err::kStoreFull,
                    "the keys of values on disk stay in memory, and have at most half of the store's " +
                        format_bytes(limits_.memory_bytes) + (shares ? ", those of one tenant at most a quarter" : "") +
                        "; tenant " + key.tenant + " uses " + exact(own) + ", and this key needs " + exact(more) +
                        " more",
                    "key", "remove durable values, put this one at d0, or start the node with a larger --values");
}

bool ValueStore::may_hold(const ValueKey& key, const Entry& entry, uint64_t given_back) const {
  MC_ASSERT_LE(given_back, sums_.all().held_bytes);
  return !entry.value || !entry.is_held(now_) ||
         sums_.all().held_bytes - given_back + entry.cost(key) <= limits_.memory_bytes / 2;
}

/// Whether `need` bytes fit once `given_back` bytes are free and idle values are evicted. `idle_kept` bytes of the idle
/// ones count as not evictable.
Result<void> ValueStore::check_room(const ValueKey& key, uint64_t need, uint64_t given_back, uint64_t idle_kept) {
  MC_ASSERT_LE(sums_.all().used_bytes, limits_.memory_bytes);
  MC_ASSERT_LE(given_back, sums_.all().used_bytes);
  MC_ASSERT_LE(idle_kept, idle_bytes_);
  const uint64_t free = limits_.memory_bytes - sums_.all().used_bytes + given_back, evictable = idle_bytes_ - idle_kept;
  if (need <= free + evictable) return {};
  return no_room(key, "the value needs " + exact(need) + " of the store's " + format_bytes(limits_.memory_bytes) +
                          ", and too much of it cannot be evicted");
}

void ValueStore::evict_for(uint64_t need) {
  while (limits_.memory_bytes - sums_.all().used_bytes < need) {
    MC_ASSERT(!idle_.empty());  // check_room has counted them
    const Place place = idle_.begin()->second;
    Entry& entry = place->second;
    MC_ASSERT(!entry.is_held(now_));
    if (!entry.copy) {
      erase(place);
      ++stats_.evicted;
      continue;
    }
    unindex(place);
    sums_.give_back(place->first.tenant, entry.bytes);
    entry.value = nullptr;
    index(place);
    ++stats_.demoted;
  }
}

// ---- the tables ------------------------------------------------------------------------------

void ValueStore::index(Place place) {
  const Entry& entry = place->second;
  bool fresh = true;
  if (!entry.value) {
    MC_ASSERT(entry.copy.has_value());
  } else if (entry.is_held(now_)) {
    fresh = held_.emplace(std::pair(entry.held_until(), entry.order), place).second;
    sums_.hold(place->first.tenant, entry.cost(place->first));
  } else {
    fresh = idle_.emplace(entry.order, place).second;
    idle_bytes_ += entry.gain(place->first);
  }
  if (entry.copy) sums_.add_disk_key(place->first.tenant, index_cost(place->first));
  if (entry.expires != kNever) expiring_.emplace(std::pair(entry.expires, entry.order), place);
  MC_ASSERT(fresh);
}

void ValueStore::unindex(Place place) {
  const Entry& entry = place->second;
  if (idle_.erase(entry.order) > 0) {
    idle_bytes_ -= entry.gain(place->first);
  } else if (entry.value) {
    MC_ASSERT_EQ(held_.erase({entry.held_until(), entry.order}), size_t{1});
    sums_.unhold(place->first.tenant, place->second.cost(place->first));
  }
  if (entry.copy) sums_.remove_disk_key(place->first.tenant, index_cost(place->first));
  if (entry.expires != kNever) MC_ASSERT_EQ(expiring_.erase({entry.expires, entry.order}), size_t{1});
}

void ValueStore::erase(Place place, bool is_damaged) {
  constexpr size_t kDamagedMax = 1024;
  if (is_damaged && damaged_.size() >= kDamagedMax) damaged_.clear();
  if (is_damaged) damaged_.insert(place->first);
  unindex(place);
  if (place->second.copy) unneeded_.push_back(*place->second.copy);
  sums_.give_back(place->first.tenant, place->second.cost(place->first));
  replicated_.erase(place->first);
  entries_.erase(place);
}

ValueStore::Place ValueStore::insert(const ValueKey& key, Entry entry) {
  damaged_.erase(key);
  entry.order = ++order_;
  sums_.use(key.tenant, entry.cost(key));
  MC_ASSERT_LE(sums_.all().used_bytes, limits_.memory_bytes);
  const auto [place, fresh] = entries_.emplace(key, std::move(entry));
  MC_ASSERT(fresh);
  if (!place->second.replicas.is_single()) replicated_.insert(key);
  index(place);
  return place;
}

void ValueStore::expire(TimePoint now) {
  now_ = std::max(now_, now);
  for (size_t i = 0; i < kExpiredAtOnce && !expiring_.empty() && expiring_.begin()->first.first <= now_; ++i) {
    erase(expiring_.begin()->second);
    ++stats_.expired;
  }
  for (size_t i = 0; i < kExpiredAtOnce && !held_.empty() && held_.begin()->first.first <= now_; ++i) {
    const Place place = held_.begin()->second;
    held_.erase(held_.begin());
    sums_.unhold(place->first.tenant, place->second.cost(place->first));
    MC_ASSERT(!place->second.is_held(now_));
    idle_.emplace(place->second.order, place);
    idle_bytes_ += place->second.gain(place->first);
  }
}

// ---- calls -----------------------------------------------------------------------------------

Result<void> ValueStore::check_put(const ValueKey& key, size_t bytes, const ValueTerms& terms, TimePoint now) {
  MC_ASSERT(terms.ttl > Duration{} && terms.pin >= Duration{});
  expire(now);
  if (bytes > limits_.value_bytes_max)
    return user_error(
        err::kBodyTooLarge,
        "a value of " + exact(bytes) + "; the store takes at most " + format_bytes(limits_.value_bytes_max), "key",
        "cut the value into parts");
  MC_CHECK(check_value_key(key.name));
  const Place old = living(key);
  const bool exists = old != entries_.end();
  if (exists && terms.replicas.version > 0 && old->second.replicas.version > terms.replicas.version)
    return user_error(err::kValueDiffers, shown(key.name) + " has a newer value, which another put has just given it",
                      "key", "get the value, and put again if it should be replaced");
  if (exists && !terms.replaces)
    return user_error(err::kValueDiffers,
                      shown(key.name) + " has another value, of " + std::to_string(old->second.bytes) + " bytes", "key",
                      "ask for the replacement (replace=true, or put --replace), or remove the value first");
  const bool adds_disk_key = terms.durability > Durability::d0 && !(exists && old->second.copy);
  return adds_disk_key ? check_disk_key(key, index_cost(key)) : Result<void>();
}

Result<ValueStore::PutResult> ValueStore::put(const ValueKey& key, SharedValue value, const ValueTerms& terms,
                                              TimePoint now, std::optional<DiskCopy> copy) {
  MC_ASSERT(value != nullptr);
  expire(now);
  const Place old = living(key);
  const bool exists = old != entries_.end();
  if (exists && !terms.replaces && old->second.is_same(value)) return PutResult::unchanged;
  MC_CHECK(check_put(key, value->size(), terms, now));
  Entry entry{.value = value,
              .bytes = value->size(),
              .crc = value->crc(),
              .copy = copy,
              .expires = after(now_, terms.ttl),
              .pinned = terms.pin > Duration{} ? after(now_, terms.pin) : TimePoint{},
              .replicas = terms.replicas};
  const uint64_t given_back = exists ? old->second.cost(key) : 0, idle_kept = exists ? share_of(old).idle : 0;
  if (copy && entry.cost(key) > limits_.memory_bytes - sums_.all().used_bytes + given_back + idle_bytes_ - idle_kept)
    entry.value = nullptr;
  const uint64_t held = exists ? share_of(old).held : 0;
  if (copy && !may_hold(key, entry, held)) entry.value = nullptr;
  if (!may_hold(key, entry, held)) return no_room(key, half_is_full(limits_, entry.cost(key)));
  const uint64_t need = entry.cost(key);
  MC_CHECK(check_room(key, need, given_back, idle_kept));
  if (exists) erase(old);
  evict_for(need);
  insert(key, std::move(entry));
  ++(exists ? stats_.replaced : stats_.created);
  return exists ? PutResult::replaced : PutResult::created;
}

Result<ValueStore::Found> ValueStore::get(const ValueKey& key, Duration lease, TimePoint now) {
  MC_ASSERT(lease >= Duration{});
  expire(now);
  const auto found = at(key);
  if (!found) ++stats_.misses;
  MC_TRY(place, found);
  Entry& entry = place->second;
  if (lease > Duration{}) {
    Entry leased = entry;
    leased.leased = std::max(entry.leased, after(now_, std::min(lease, limits_.lease_max)));
    const bool may = may_hold(key, leased, share_of(place).held);
    if (!may && !entry.copy) return no_room(key, half_is_full(limits_, entry.cost(key)));
    if (!may) lease = {};  // the value is not evicted anyway
  }
  ++stats_.hits;
  unindex(place);
  entry.order = ++order_;
  ++entry.uses;
  if (lease > Duration{}) entry.leased = std::max(entry.leased, after(now_, std::min(lease, limits_.lease_max)));
  index(place);
  return Found{entry.value, entry.info(key, now_)};
}

Result<ValueInfo> ValueStore::find(const ValueKey& key, TimePoint now) {
  expire(now);
  MC_TRY(place, at(key));
  return place->second.info(key, now_);
}

SharedValue ValueStore::bytes_of(const ValueKey& key) const {
  const auto place = entries_.find(key);
  return place == entries_.end() || place->second.expires <= now_ ? nullptr : place->second.value;
}

Result<void> ValueStore::remove(const ValueKey& key, TimePoint now) {
  expire(now);
  MC_TRY(place, at(key));
  erase(place);
  ++stats_.removed;
  return {};
}

Result<void> ValueStore::pin(const ValueKey& key, Duration time, TimePoint now, std::optional<DiskCopy> copy) {
  MC_ASSERT(time >= Duration{});
  expire(now);
  MC_TRY(place, at(key));
  Entry pinned = place->second;
  pinned.pinned = time > Duration{} ? after(now_, time) : TimePoint{};
  const bool may = may_hold(key, pinned, share_of(place).held);
  if (!may && !copy) return no_room(key, half_is_full(limits_, pinned.cost(key)));
  unindex(place);
  place->second.pinned = pinned.pinned;
  if (!may) {
    sums_.give_back(key.tenant, pinned.bytes);
    place->second.value = nullptr;
    ++stats_.demoted;
  }
  if (copy && place->second.copy) unneeded_.push_back(*place->second.copy);
  if (copy) place->second.copy = copy;
  index(place);
  return {};
}

Result<void> ValueStore::set_replicas(const ValueKey& key, const wire::ReplicaSet& set, TimePoint now,
                                      std::optional<DiskCopy> copy) {
  expire(now);
  MC_TRY(place, at(key));
  Entry& entry = place->second;
  const wire::ReplicaSet& own = entry.replicas;
  if (own.version > set.version || (own.version == set.version && own.revision > set.revision))
    return user_error(err::kNotFound, shown(key.name) + " has a newer value or other holders by now", "key");
  unindex(place);
  entry.replicas = set;
  if (copy && entry.copy) unneeded_.push_back(*entry.copy);
  if (copy) entry.copy = copy;
  index(place);
  set.is_single() ? (void)replicated_.erase(key) : (void)replicated_.insert(key);
  return {};
}

std::vector<ValueKey> ValueStore::replicated(const ValueKey& after, size_t limit) const {
  std::vector<ValueKey> out;
  for (auto key = replicated_.upper_bound(after); key != replicated_.end() && out.size() < limit; ++key)
    out.push_back(*key);
  return out;
}

Result<void> ValueStore::restore(const ValueKey& key, const ValueInfo& info, TimePoint now) {
  MC_ASSERT(info.copy.has_value() && !entries_.contains(key));
  expire(now);
  const uint64_t need = index_cost(key);
  MC_CHECK(check_room(key, need, 0, 0));
  evict_for(need);
  insert(key, {.value = nullptr,
               .bytes = info.bytes,
               .crc = info.crc,
               .copy = info.copy,
               .expires = info.ttl ? after(now_, *info.ttl) : kNever,
               .pinned = info.pin > Duration{} ? after(now_, info.pin) : TimePoint{},
               .replicas = info.replicas});
  return {};
}

bool ValueStore::attach(const ValueKey& key, const DiskCopy& copy, uint64_t bytes, uint32_t crc, TimePoint now) {
  expire(now);
  const Place place = living(key);
  if (place == entries_.end() || place->second.bytes != bytes || place->second.crc != crc) return false;
  unindex(place);
  if (place->second.copy) unneeded_.push_back(*place->second.copy);
  place->second.copy = copy;
  index(place);
  return true;
}

void ValueStore::promote(const ValueKey& key, const DiskCopy& copy, SharedValue value, TimePoint now) {
  expire(now);
  const Place place = living(key);
  if (place == entries_.end() || place->second.copy != copy || place->second.value) return;
  Entry& entry = place->second;
  MC_ASSERT(value->size() == entry.bytes && value->crc() == entry.crc);
  if (entry.bytes > limits_.memory_bytes - sums_.all().used_bytes + idle_bytes_)
    return;  // pinned and leased values leave no room
  Entry promoted = entry;
  promoted.value = value;
  if (!may_hold(key, promoted)) return;
  evict_for(entry.bytes);
  unindex(place);
  entry.value = std::move(value);
  sums_.use(key.tenant, entry.bytes);
  index(place);
  ++stats_.promoted;
}

bool ValueStore::lose(const ValueKey& key, const DiskCopy& copy, TimePoint now) {
  expire(now);
  const Place place = living(key);
  if (place == entries_.end() || place->second.copy != copy) return false;
  ++stats_.damaged;
  if (!place->second.value) {
    erase(place, true);
    return true;
  }
  unindex(place);
  unneeded_.push_back(copy);
  place->second.copy.reset();
  index(place);
  return true;
}

bool ValueStore::lose_memory(const ValueKey& key, const SharedValue& value, TimePoint now) {
  MC_ASSERT(value != nullptr);
  expire(now);
  const Place place = living(key);
  if (place == entries_.end() || place->second.value != value) return place != entries_.end();
  ++stats_.damaged;
  if (!place->second.copy) {
    erase(place, true);
    return false;
  }
  unindex(place);
  sums_.give_back(key.tenant, place->second.bytes);
  place->second.value = nullptr;
  index(place);
  return true;
}

Result<ValueStore::PutResult> ValueStore::copy(const ValueKey& from, const ValueKey& to, bool replaces, TimePoint now,
                                               std::optional<DiskCopy> copy) {
  expire(now);
  MC_TRY(source, at(from));
  if (from == to) return PutResult::unchanged;
  const Place old = living(to);
  const bool exists = old != entries_.end();
  MC_ASSERT(copy || source->second.value);
  if (exists && !replaces && old->second.is_same(source->second.value)) return PutResult::unchanged;
  MC_CHECK(check_put(to, 0, {.replaces = replaces}, now));
  // The source becomes the most recently used, so it is the last to be evicted, and the check leaves it out.
  unindex(source);
  source->second.order = ++order_;
  index(source);
  // A copy on disk needs no second place in memory.
  Entry entry{.value = copy ? nullptr : source->second.value,
              .bytes = source->second.bytes,
              .crc = source->second.crc,
              .copy = copy,
              .expires = source->second.expires};
  const uint64_t need = entry.cost(to), given_back = exists ? old->second.cost(to) : 0;
  MC_CHECK(check_room(to, need, given_back, share_of(source).idle + (exists ? share_of(old).idle : 0)));
  if (exists) erase(old);
  evict_for(need);
  insert(to, std::move(entry));
  ++(exists ? stats_.replaced : stats_.created);
  return exists ? PutResult::replaced : PutResult::created;
}

Result<void> ValueStore::set_aside(const ValueKey& from, const ValueKey& to, TimePoint now) {
  expire(now);
  const uint64_t need = index_cost(to) - std::min(index_cost(to), index_cost(from));
  MC_CHECK(check_disk_key(to, need));
  MC_CHECK(check_room(to, need, 0, 0));
  evict_for(need);
  const bool is_first = aside_.emplace(to, need).second;
  MC_ASSERT(is_first);
  if (need > 0) sums_.use(to.tenant, need);
  return {};
}

void ValueStore::give_up(const ValueKey& to) {
  const auto kept = aside_.find(to);
  MC_ASSERT(kept != aside_.end());
  if (kept->second > 0) sums_.give_back(to.tenant, kept->second);
  aside_.erase(kept);
}

Result<ValueStore::PutResult> ValueStore::move(const ValueKey& from, const ValueKey& to, bool replaces, TimePoint now,
                                               std::optional<DiskCopy> copy) {
  expire(now);
  MC_TRY(source, at(from));
  if (from == to) return PutResult::unchanged;
  MC_CHECK(check_put(to, 0, {.replaces = replaces}, now));
  const Place old = living(to);
  const bool exists = old != entries_.end();
  MC_ASSERT(copy || !source->second.copy);
  Entry entry = source->second;
  entry.copy = copy;
  entry.replicas = {};
  const bool may = may_hold(to, entry, share_of(source).held + (exists ? share_of(old).held : 0));
  if (!may && !copy) return no_room(to, half_is_full(limits_, entry.cost(to)));
  if (!may) entry.value = nullptr;
  const uint64_t need = entry.cost(to), old_bytes = exists ? old->second.cost(to) : 0;
  const uint64_t idle_kept = share_of(source).idle + (exists ? share_of(old).idle : 0);
  MC_CHECK(check_room(to, need, source->second.cost(from) + old_bytes, idle_kept));
  if (exists) erase(old);
  erase(source);
  evict_for(need);
  insert(to, std::move(entry));
  if (exists) ++stats_.replaced;
  return exists ? PutResult::replaced : PutResult::created;
}

ValueStore::Listing ValueStore::list(const std::string& tenant, std::string_view prefix, std::string_view after,
                                     size_t limit, TimePoint now) {
  expire(now);
  Listing out;
  const ValueKey first{tenant, std::string(std::max(prefix, after))};
  const std::string* last = nullptr;
  size_t stepped_over = 0;
  for (auto place = entries_.lower_bound(first); place != entries_.end(); ++place) {
    const ValueKey& key = place->first;
    if (key.tenant != tenant || !key.name.starts_with(prefix)) break;
    if (key.name == after) continue;
    const bool is_over = place->second.expires <= now_;
    out.more = is_over ? stepped_over == kSteppedOverMax : out.values.size() == limit;
    if (out.more) break;
    last = &key.name;
    if (is_over)
      ++stepped_over;
    else
      out.values.push_back(place->second.info(key, now_));
  }
  if (last) out.last = *last;
  MC_ASSERT_LE(out.values.size(), limit);
  return out;
}

void ValueStore::check() const {
  uint64_t used = 0, idle = 0, held = 0, disk_keys = 0, ending = 0, in_memory = 0, with_replicas = 0;
  std::map<std::string, ValueSums::Sums> tenants;
  for (const auto& [key, entry] : entries_) {
    used += entry.cost(key);
    tenants[key.tenant].used_bytes += entry.cost(key);
    in_memory += entry.value != nullptr;
    MC_ASSERT(entry.value ? entry.value->size() == entry.bytes : entry.copy.has_value());
    if (idle_.contains(entry.order)) idle += entry.gain(key);
    const bool is_held = held_.contains({entry.held_until(), entry.order});
    if (is_held) held += entry.cost(key);
    if (is_held) tenants[key.tenant].held_bytes += entry.cost(key);
    if (entry.copy) disk_keys += index_cost(key), tenants[key.tenant].disk_key_bytes += index_cost(key);
    MC_ASSERT_EQ(idle_.contains(entry.order) || is_held, entry.value != nullptr);
    MC_ASSERT(!idle_.contains(entry.order) || !is_held);
    ending += entry.expires != kNever;
    with_replicas += !entry.replicas.is_single();
    MC_ASSERT_LE(entry.order, order_);
  }
  for (const auto& [key, bytes] : aside_) {
    used += bytes;
    if (bytes > 0) tenants[key.tenant].used_bytes += bytes;
  }
  MC_ASSERT_EQ(used, sums_.all().used_bytes);
  MC_ASSERT_EQ(idle, idle_bytes_);
  MC_ASSERT_EQ(held, sums_.all().held_bytes);
  MC_ASSERT_EQ(disk_keys, sums_.all().disk_key_bytes);
  MC_ASSERT(tenants == sums_.tenants());
  MC_ASSERT_LE(sums_.all().held_bytes, limits_.memory_bytes / 2);
  MC_ASSERT_EQ(idle_.size() + held_.size(), in_memory);
  MC_ASSERT_EQ(ending, expiring_.size());
  MC_ASSERT_EQ(with_replicas, replicated_.size());
  MC_ASSERT_LE(sums_.all().used_bytes, limits_.memory_bytes);
}

}  // namespace mc::node

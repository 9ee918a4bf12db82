// Opaque values by key, in the memory of a cache node: the state machine behind the store API (the object store of
// Mooncake, arXiv:2407.00079, section 3, for bytes that are no KV blocks). It has no sockets, threads or clock: every
// call brings the time, and time never runs backwards here.
//
//                   put                      pin, lease
//       (absent) ---------> idle <------------------------------> held
//           ^                 | evicted: the least recently used    | (never evicted)
//           '-----------------+-------- removed, or its time to live is over
//
// Memory is bounded. A value costs its bytes, its key and a fixed amount for the tables, and all values together cost
// at most ValueLimits::memory_bytes. A put that does not fit evicts idle values, the least recently used first. It
// evicts nothing when even that would not be enough.
//
// A key belongs to a tenant. No call shows a tenant the keys of another tenant.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace mc::node {

/// The bytes of a value and their CRC32C. They never change.
class ValueBytes {
 public:
  /// Copies the bytes and sums them in one pass.
  explicit ValueBytes(std::string_view bytes);
  std::string_view view() const { return {reinterpret_cast<const char*>(memory_.get()), size_}; }
  size_t size() const { return size_; }
  uint32_t crc() const { return crc_; }

 private:
  size_t size_;
  std::unique_ptr<std::byte[]> memory_;
  uint32_t crc_;
};
/// Shared, because a reader may still copy the bytes of a value that was removed or replaced meanwhile.
using SharedValue = std::shared_ptr<const ValueBytes>;

struct ValueKey {
  std::string tenant, name;
  auto operator<=>(const ValueKey&) const = default;
};
inline constexpr size_t kValueKeyBytesMax = 1024;
/// 1 to 1024 bytes of UTF-8 without control characters; MC4002 names the fault.
Result<void> check_value_key(std::string_view name);

struct ValueLimits {
  uint64_t memory_bytes = 0;  // of all values with their keys and tables
  uint64_t value_bytes_max = uint64_t{64} << 20;
  Duration lease_max = 30s;
};
/// Memory that a value costs besides its bytes and its key.
inline constexpr uint64_t kValueOverheadBytes = 512;

/// The wishes of a put.
struct ValueTerms {
  Duration ttl = Duration::max();  // time to live; past it the value is gone, even when it is pinned
  Duration pin{};                  // the value is not evicted for so long
  bool replaces = false;           // an upsert: a value that the key has already is replaced
};

/// A value as list and get report it.
struct ValueInfo {
  std::string name;
  uint64_t bytes = 0, uses = 0;
  uint32_t crc = 0;
  std::optional<Duration> ttl;  // left; nothing = it does not end
  Duration pin{}, lease{};      // left
};

class ValueStore {
 public:
  explicit ValueStore(const ValueLimits& limits);

  enum class PutResult : uint8_t { created, replaced, unchanged };
  struct Found {
    SharedValue value;
    ValueInfo info;
  };
  struct Listing {
    std::vector<ValueInfo> values;  // in the order of their names
    bool more = false;              // names behind the last one were left out
  };
  struct Stats {
    uint64_t created = 0, replaced = 0, hits = 0, misses = 0;
    uint64_t evicted = 0, expired = 0, removed = 0, rejected = 0;
  };

  /// `unchanged`: the key has the very same bytes, and neither its time to live nor its pin changes. Errors: MC4030
  /// the key has another value; MC4002 it is no key; MC4004 the value is too large; MC5008 no room: too much is pinned
  /// or leased.
  Result<PutResult> put(const ValueKey& key, SharedValue value, const ValueTerms& terms, TimePoint now);
  /// A lease keeps the value from eviction for at most ValueLimits::lease_max. MC4007 when there is no such value.
  Result<Found> get(const ValueKey& key, Duration lease, TimePoint now);
  /// As get(), but it counts as no use.
  Result<ValueInfo> find(const ValueKey& key, TimePoint now);
  Result<void> remove(const ValueKey& key, TimePoint now);
  /// The value is not evicted for so long from now on, in place of an earlier pin. A pin of 0 is none.
  Result<void> pin(const ValueKey& key, Duration time, TimePoint now);
  /// A second key for the bytes of the first. The copy lives as long as its source, and is not pinned. It costs memory
  /// as a value of its own. Errors are those of get() and put(); the source is not evicted for its copy.
  Result<PutResult> copy(const ValueKey& from, const ValueKey& to, bool replaces, TimePoint now);
  /// Another key for the value, which keeps its time to live, pin and lease.
  Result<PutResult> move(const ValueKey& from, const ValueKey& to, bool replaces, TimePoint now);
  /// At most `limit` values of the tenant whose names begin with `prefix` and come behind `after`.
  Listing list(const std::string& tenant, std::string_view prefix, std::string_view after, size_t limit, TimePoint now);
  /// Removes values whose time to live is over.
  void expire(TimePoint now);

  size_t count() const { return entries_.size(); }
  uint64_t used_bytes() const { return used_; }
  /// Bytes that cannot be evicted.
  uint64_t held_bytes() const { return used_ - idle_bytes_; }
  const Stats& stats() const { return stats_; }
  /// Asserts what the tables say of each other; for tests.
  void check() const;

 private:
  struct Entry {
    SharedValue value;
    TimePoint expires = kNever, pinned{}, leased{};
    uint64_t order = 0;  // grows with each use; one entry's alone
    uint64_t uses = 0;
    TimePoint held_until() const { return std::max(pinned, leased); }
  };
  using Entries = std::map<ValueKey, Entry>;
  using Place = Entries::iterator;
  using ByTime = std::map<std::pair<TimePoint, uint64_t>, Place>;  // key: time, Entry::order

  static uint64_t cost(const ValueKey& key, const ValueBytes& value);
  bool is_held(const Entry& entry) const { return entry.held_until() > now_; }
  Result<Place> at(const ValueKey& key);
  Result<void> check_free(const ValueKey& key, bool replaces);
  Result<void> check_room(uint64_t need, uint64_t given_back, uint64_t idle_kept);
  void evict_for(uint64_t need);
  void index(Place place);
  void unindex(Place place);
  void erase(Place place);
  Place insert(const ValueKey& key, Entry entry);
  ValueInfo info_of(const ValueKey& key, const Entry& entry) const;

  const ValueLimits limits_;
  TimePoint now_{};  // the latest time that a call brought
  uint64_t order_ = 0;
  Entries entries_;
  std::map<uint64_t, Place> idle_;  // by Entry::order: the least recently used first
  ByTime held_, expiring_;          // by the end of the hold; by the end of the time to live
  uint64_t used_ = 0, idle_bytes_ = 0;
  Stats stats_;
};

}  // namespace mc::node

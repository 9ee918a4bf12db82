// Opaque values by key, in the memory of a cache node: the state machine behind the store API (the object store of
// Mooncake, arXiv:2407.00079, section 3, for bytes that are no KV blocks). It has no sockets, threads or clock: every
// call brings the time, and time never runs backwards here.
//
//                   put                      pin, lease
//       (absent) ---------> idle <------------------------------> held
//           ^                 | evicted: the least recently used    | (never evicted)
//           '-----------------+-------- removed, or its time to live is over
//
// A value may have a copy on disk (node/value_disk.h). Then it is not evicted but demoted: its bytes leave memory, and
// its key, size and checksum stay. The caller reads the bytes and promotes the value when somebody gets it. The store
// never waits for a disk: it says which copies are not needed any more, and the caller drops them.
//
// Memory is bounded. A value costs its bytes, its key and a fixed amount for the tables, and all values together cost
// at most ValueLimits::memory_bytes. A put that does not fit evicts idle values, the least recently used first. It
// evicts nothing when even that would not be enough. Values that are held have at most half of the memory, so no tenant
// keeps others out with pins. A value with a copy on disk needs no place there: beyond the half its bytes leave memory.
// The keys of values on disk stay in memory. They have at most the other half. Where several tenants share the store,
// the keys of one tenant have at most a quarter, so no tenant alone keeps others out with keys.
//
// A key belongs to a tenant. No call or error shows a tenant the keys of another tenant, or bytes that others use.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "node/value_sums.h"
#include "wire/replica_set.h"

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

/// Whether tenants share a store. One tenant needs no share of its own.
enum class ValueTenants : uint8_t { one, several };

struct ValueLimits {
  uint64_t memory_bytes = 0;  // of all values with their keys and tables
  ValueTenants tenants = ValueTenants::several;
  uint64_t value_bytes_max = uint64_t{64} << 20;
  Duration lease_max = 30s;
};
/// Memory that a value costs besides its bytes and its key.
inline constexpr uint64_t kValueOverheadBytes = 512;

/// How safe a value is when its put is acknowledged.
enum class Durability : uint8_t {
  d0,  // in memory: it ends with the process
  d1,  // in memory, and written to disk at once afterwards
  d2,  // on disk: it survives kill -9 and a power cut
  d3,  // d2 on two nodes, or on as many as the put names
};
inline constexpr std::string_view kDurabilityNames[] = {"d0", "d1", "d2", "d3"};

/// Where a value lies on disk.
struct DiskCopy {
  uint64_t number = 0;  // of its record
  uint64_t data = 0;    // of its bytes
  bool operator==(const DiskCopy&) const = default;
};

/// The wishes of a put.
struct ValueTerms {
  Duration ttl = Duration::max();  // time to live; past it the value is gone, even when it is pinned
  Duration pin{};                  // the value is not evicted for so long
  bool replaces = false;           // an upsert: a value that the key has already is replaced
  Durability durability = Durability::d0;
  uint32_t copies = 1;             // cache nodes that hold the value when its put is acknowledged
  wire::ReplicaSet replicas = {};  // those nodes, once they are chosen
};

/// A value as list and get report it.
struct ValueInfo {
  std::string name;
  uint64_t bytes = 0, uses = 0;
  uint32_t crc = 0;
  std::optional<Duration> ttl;   // left; nothing = it does not end
  Duration pin{}, lease{};       // left
  std::optional<DiskCopy> copy;  // on disk
  bool in_memory = true;
  wire::ReplicaSet replicas = {};
};

class ValueStore {
 public:
  explicit ValueStore(const ValueLimits& limits);

  enum class PutResult : uint8_t { created, replaced, unchanged };
  struct Found {
    SharedValue value;  // null: its bytes are on disk alone
    ValueInfo info;
  };
  struct Listing {
    std::vector<ValueInfo> values;  // in the order of their names
    bool more = false;              // names after `last` were left out
    std::string last;               // the last name that was looked at, where the next page goes on; empty if none was
  };
  struct Stats {
    uint64_t created = 0, replaced = 0, hits = 0, misses = 0;
    uint64_t evicted = 0, expired = 0, removed = 0, rejected = 0, damaged = 0;
    uint64_t demoted = 0, promoted = 0;
  };

  /// `unchanged`: the key has the very same bytes, and neither its time to live nor its pin changes. Errors: MC4030
  /// the key has another value, or a newer one with replicas; MC4002 it is no key; MC4004 the value is too large;
  /// MC5008 no room: too much is pinned or leased. With a `copy` the value is on disk already, and stays out of memory
  /// when that has no room.
  Result<PutResult> put(const ValueKey& key, SharedValue value, const ValueTerms& terms, TimePoint now,
                        std::optional<DiskCopy> copy = {});
  /// Whether it is worth writing the value to disk: the errors of put() but for MC5008, which memory may still give.
  /// Here MC5008 says that keys of values on disk have no room for this one, which a level above d0 needs.
  Result<void> check_put(const ValueKey& key, size_t bytes, const ValueTerms& terms, TimePoint now);
  /// A value that an earlier process left on disk. It needs room for its key, but none of its tenant's share. MC5008:
  /// memory has no room for its key.
  Result<void> restore(const ValueKey& key, const ValueInfo& info, TimePoint now);
  /// The value has a copy on disk now, in place of an earlier one. False: it is gone, or the key has other bytes.
  bool attach(const ValueKey& key, const DiskCopy& copy, uint64_t bytes, uint32_t crc, TimePoint now);
  /// The bytes came from disk: they stay in memory if they find room there, and if the copy is still the value's.
  void promote(const ValueKey& key, const DiskCopy& copy, SharedValue value, TimePoint now);
  /// The copy on disk is damaged: without bytes in memory the value is gone. False: it was no longer the value's copy.
  bool lose(const ValueKey& key, const DiskCopy& copy, TimePoint now);
  /// The bytes in memory are damaged: they go. False: the value went with them, because it has no copy on disk. A value
  /// that the key has by now in place of this one stays.
  bool lose_memory(const ValueKey& key, const SharedValue& value, TimePoint now);
  /// Copies on disk that no value has any more, since the last call.
  std::vector<DiskCopy> take_unneeded() { return std::exchange(unneeded_, {}); }
  /// The caller drops this copy, or keeps it. take_unneeded() leaves it out.
  void claim(const DiskCopy& copy) { std::erase(unneeded_, copy); }
  bool has_unneeded() const { return !unneeded_.empty(); }
  /// A lease keeps the value from eviction for at most ValueLimits::lease_max. MC4007 when there is no such value;
  /// MC5008 when too much is held for a lease, which a value with a copy on disk does not need.
  Result<Found> get(const ValueKey& key, Duration lease, TimePoint now);
  /// As get(), but it counts as no use.
  Result<ValueInfo> find(const ValueKey& key, TimePoint now);
  /// null: the value is not in memory. It counts as no use.
  SharedValue bytes_of(const ValueKey& key) const;
  Result<void> remove(const ValueKey& key, TimePoint now);
  /// The value is not evicted for so long from now on, in place of an earlier pin. A pin of 0 is none.
  /// `copy`: the record of a value on disk with its new pin. MC5008: too much is held.
  Result<void> pin(const ValueKey& key, Duration time, TimePoint now, std::optional<DiskCopy> copy = {});
  /// These nodes hold the value now. `copy`: the record of a value on disk with them. MC4007: the key has no value, or
  /// one of a newer version or revision.
  Result<void> set_replicas(const ValueKey& key, const wire::ReplicaSet& set, TimePoint now,
                            std::optional<DiskCopy> copy = {});
  /// At most `limit` keys after `after` whose values have replicas, of all tenants in their order.
  std::vector<ValueKey> replicated(const ValueKey& after, size_t limit) const;
  /// A second key for the bytes of the first. The copy lives as long as its source, is not pinned, and has no replicas.
  /// It costs memory as a value of its own. Errors are those of get() and put(); the source is not evicted for its
  /// copy. `copy` is that of the new key, which a value on disk needs.
  Result<PutResult> copy(const ValueKey& from, const ValueKey& to, bool replaces, TimePoint now,
                         std::optional<DiskCopy> copy = {});
  /// Sets memory aside for a move that the caller writes to disk first: with it, move() never lacks room for a value
  /// that has a copy on disk. One for each new key, until give_up(). MC5008: there is no room.
  Result<void> set_aside(const ValueKey& from, const ValueKey& to, TimePoint now);
  void give_up(const ValueKey& to);
  /// Another key for the value, which keeps its time to live, pin and lease, and loses its replicas. `copy` is that of
  /// the new key, which a value on disk needs. Its bytes leave memory where pinned values have no room for the longer
  /// key.
  Result<PutResult> move(const ValueKey& from, const ValueKey& to, bool replaces, TimePoint now,
                         std::optional<DiskCopy> copy = {});
  /// At most `limit` values of the tenant whose names begin with `prefix` and come after `after`. A page ends early
  /// when it has stepped over kSteppedOverMax values whose time to live is over, so that no call takes long.
  Listing list(const std::string& tenant, std::string_view prefix, std::string_view after, size_t limit, TimePoint now);
  /// Removes values whose time to live is over, and lets go of holds that are: at most kExpiredAtOnce of each, so that
  /// no call takes long. The rest counts as room in use until later calls; no call shows a value that is over.
  void expire(TimePoint now);
  static constexpr size_t kExpiredAtOnce = 1024;
  static constexpr size_t kSteppedOverMax = 4096;

  size_t count() const { return entries_.size(); }
  /// Beside the values that are pinned or leased, the keys of values on disk cannot be evicted.
  const ValueSums& sums() const { return sums_; }
  const Stats& stats() const { return stats_; }
  /// Asserts what the tables say of each other; for tests.
  void check() const;

 private:
  struct Entry {
    SharedValue value;  // null: on disk alone
    uint64_t bytes = 0;
    uint32_t crc = 0;
    std::optional<DiskCopy> copy = {};
    TimePoint expires = kNever, pinned{}, leased{};
    uint64_t order = 0;  // grows with each use; one entry's alone
    uint64_t uses = 0;
    wire::ReplicaSet replicas = {};
    TimePoint held_until() const { return std::max(pinned, leased); }
    bool is_held(TimePoint now) const { return held_until() > now; }
    ValueInfo info(const ValueKey& key, TimePoint now) const;
    uint64_t cost(const ValueKey& key) const;
    /// Bytes that the eviction of the value frees.
    uint64_t gain(const ValueKey& key) const;
    bool is_same(const SharedValue& other) const;
  };
  using Entries = std::map<ValueKey, Entry>;
  using Place = Entries::iterator;
  using ByTime = std::map<std::pair<TimePoint, uint64_t>, Place>;  // key: time, Entry::order

  /// Bytes that the value adds to those that its eviction frees, or to those held.
  struct Share {
    uint64_t idle = 0, held = 0;
  };
  Share share_of(Place place) const;
  Place living(const ValueKey& key);
  Result<Place> at(const ValueKey& key);
  Result<void> check_room(const ValueKey& key, uint64_t need, uint64_t given_back, uint64_t idle_kept);
  /// True when the value may be held once `given_back` bytes are held no longer.
  bool may_hold(const ValueKey& key, const Entry& entry, uint64_t given_back = 0) const;
  Error no_room(const ValueKey& key, const std::string& why);
  Result<void> check_disk_key(const ValueKey& key, uint64_t more);
  void evict_for(uint64_t need);
  void index(Place place);
  void unindex(Place place);
  void erase(Place place, bool is_damaged = false);
  Place insert(const ValueKey& key, Entry entry);

  const ValueLimits limits_;
  TimePoint now_{};  // the latest time that a call brought
  uint64_t order_ = 0;
  Entries entries_;
  std::map<uint64_t, Place> idle_;      // in memory, by Entry::order: the least recently used first
  std::map<ValueKey, uint64_t> aside_;  // memory that set_aside() keeps
  std::set<ValueKey> damaged_;          // keys whose values were removed as damaged, until they get others; bounded
  std::set<ValueKey> replicated_;       // keys whose values have replicas
  ByTime held_, expiring_;              // by the end of the hold; by the end of the time to live
  uint64_t idle_bytes_ = 0;
  ValueSums sums_;
  std::vector<DiskCopy> unneeded_;
  Stats stats_;
};

}  // namespace mc::node

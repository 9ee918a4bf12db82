// The values of a cache node in memory and on its disk: the calls behind the door of the store (store_api.h). Each call
// changes the state machine (node/value_store.h) and the disk (node/value_disk.h) in this order:
//
//   put at d2        write to disk -> put into memory -> answer
//   put at d1        put into memory -> answer -> write to disk
//   put at d0        put into memory -> drop what the disk has of the key -> answer
//   get              in memory: answer; on disk alone: read -> check -> promote -> answer
//   remove           drop from disk -> remove from memory -> answer
//   pin, copy        write the new record to disk -> change memory -> answer
//   move             set memory aside -> write the new record and drop the old one as one -> change memory -> answer
//
// If the disk fails, the keys keep their earlier values: where memory has changed already, it is changed back. What
// such a call wrote, and a drop that nobody waits for, is dropped later. A durable value that is moved is under one of
// its two keys after a crash at any time. Two calls that change one key run one after the other. Any thread may call
// anything. With a disk a call may wait for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "node/value_disk.h"
#include "node/value_store.h"

namespace mc::door {

class StoredValues {
 public:
  using PutResult = node::ValueStore::PutResult;
  using Found = node::ValueStore::Found;
  using Listing = node::ValueStore::Listing;
  /// Work that is left when a call has been answered; empty: none.
  using Later = std::function<void()>;
  using Sums = node::ValueSums::Sums;

  /// `disk` null: values are in memory alone. `clock` outlives it.
  StoredValues(const node::ValueLimits& limits, std::unique_ptr<node::ValueDisk> disk, const Clock& clock);

  /// Errors: those of ValueStore::put(); MC4031 the node has no such level; MC5008, MC5009 of the disk. With `later`
  /// null the value is on disk when the call returns, at d1 too.
  /// MC4016 of this call and of those below: other calls were changing the key until the time `until`.
  Result<PutResult> put(const node::ValueKey& key, node::SharedValue value, const node::ValueTerms& terms,
                        Later* later = nullptr, TimePoint until = kNever);
  /// Found::value is null only where `may_wait` is false and the bytes are on disk alone: then nothing was done.
  /// MC6004: the bytes on disk are damaged, and the value is gone.
  Result<Found> get(const node::ValueKey& key, Duration lease, bool may_wait = true);
  Result<node::ValueInfo> find(const node::ValueKey& key);
  /// A reader found that the bytes of this value are damaged in memory: they leave it. True: the key has a copy on disk
  /// or another value by now, and the next get gives that. False: the value is gone.
  bool lose_memory(const node::ValueKey& key, const node::SharedValue& value);
  /// With `version` the value stays if its replicas are newer.
  Result<void> remove(const node::ValueKey& key, TimePoint until = kNever, uint64_t version = UINT64_MAX);
  Result<void> pin(const node::ValueKey& key, Duration time, TimePoint until = kNever);
  /// These nodes hold the value now; errors are those of ValueStore::set_replicas() and of the disk.
  Result<void> set_replicas(const node::ValueKey& key, const wire::ReplicaSet& set, TimePoint until = kNever);
  std::vector<node::ValueKey> replicated(const node::ValueKey& after, size_t limit);
  Result<PutResult> copy(const node::ValueKey& from, const node::ValueKey& to, bool replaces, TimePoint until = kNever);
  Result<PutResult> move(const node::ValueKey& from, const node::ValueKey& to, bool replaces, TimePoint until = kNever);
  Listing list(const std::string& tenant, std::string_view prefix, std::string_view after, size_t limit, Sums& sums);

  bool has_disk() const { return disk_ != nullptr; }
  /// Whether a get waits for no disk.
  bool is_in_memory(const node::ValueKey& key);
  /// Removes what has expired. True: drop_unneeded() has work.
  bool expire();
  /// Drops from disk the values that were replaced or have expired in memory, and what calls that failed left there.
  /// Then makes room on disk for later writes. The caller has answered its client.
  void drop_unneeded();
  void update(Metrics& metrics);

 private:
  class KeyLock;
  /// A key as a call found it.
  struct Before {
    std::optional<node::ValueInfo> info;  // nothing: there was no value
    node::SharedValue value;              // null: none, or its bytes are on disk alone
    TimePoint time;
  };
  /// A record that is dropped behind the answer of a call: what it replaced, or has left on disk when it failed.
  struct Remains {
    uint64_t number = 0;
    bool is_alone = false;  // older records of its key stay
  };
  using KeyLockPtr = std::shared_ptr<const KeyLock>;
  Result<KeyLockPtr> lock_keys(std::set<node::ValueKey> keys, TimePoint until);
  void restore();
  wire::ValueRecord record_of(const node::ValueKey& key, const node::ValueInfo& info);
  Result<node::DiskCopy> write(const wire::ValueRecord& record, const node::ValueBytes* value);
  Result<PutResult> put_durably(const node::ValueKey& key, const node::SharedValue& value,
                                const node::ValueTerms& terms);
  /// Writes a value that memory has, which may have left it meanwhile.
  Result<void> persist(const node::ValueKey& key, const node::ValueInfo& info, const node::SharedValue& value);
  Result<node::SharedValue> bytes_of(const node::ValueKey& key, const node::ValueInfo& info);
  Result<bool> has_same(const node::ValueKey& key, const node::ValueInfo& info, const node::ValueBytes& value);
  Result<bool> are_same(const node::ValueKey& from, const node::ValueInfo& source, const node::ValueKey& to,
                        const node::ValueInfo& there);
  Before before(const node::ValueKey& key);
  void put_back(const node::ValueKey& key, const Before& before);
  void take_back(uint64_t number);
  void drop_remains();
  Result<void> drop_replaced(const node::ValueKey& key, const Before& before);
  Result<void> drop_key(const node::ValueKey& key);
  Result<void> check_put(const node::ValueKey& key, size_t bytes, const node::ValueTerms& terms);
  Result<PutResult> move_in_memory(const node::ValueKey& from, const node::ValueKey& to, bool replaces);
  Result<PutResult> move_durably(const node::ValueKey& from, const node::ValueKey& to, const node::ValueInfo& info,
                                 bool replaces);
  Result<void> check_levels(const node::ValueTerms& terms) const;
  std::optional<node::ValueInfo> look(const node::ValueKey& key);

  const Clock& clock_;
  const uint64_t memory_bytes_;
  const std::unique_ptr<node::ValueDisk> disk_;
  std::atomic<uint64_t> written_{0}, loaded_{0}, failed_{0};  // counts, ordered with nothing
  std::timed_mutex comparing_;                                // held while two values are loaded
  std::mutex dropping_;                                       // held while remains are dropped
  std::mutex mutex_;                                          // of the rest
  std::condition_variable unlocked_;
  std::set<node::ValueKey> locked_;    // keys that a call is changing
  std::set<node::ValueKey> left_out_;  // on disk, and without room in memory for their keys
  std::vector<Remains> remains_;
  TimePoint clear_at_{};  // remains are dropped again from then on
  bool is_clear_ = true;  // the last drops were written; a failure is logged once
  node::ValueStore store_;
  node::ValueStore::Stats told_;  // the counts that the metrics have
  uint64_t told_written_ = 0, told_loaded_ = 0, told_failed_ = 0;
};

}  // namespace mc::door

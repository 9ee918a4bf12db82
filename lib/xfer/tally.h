// The counters of one engine. The engine's thread and callers write them, and any thread reads them. They are relaxed
// atomics, because they publish no other data. Failure reasons are static texts, so the table stays small.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "xfer/xfer.h"

namespace mc::xfer {

enum class Count : uint8_t {
  batches_submitted,
  batches_done,
  batches_failed,
  batches_open,
  requests_failed,
  checksum_failures,
  slices_posted,
  slices_retried,
  slices_in_flight,
  slices_failed_over,
  completions_unknown,
  urgent_bytes,
  bulk_bytes,
  quarantined_bytes,
  notifies_sent,
  notifies_received,
  immediates_received,
  connects,
  accepts,
  streams_sealed,
  peers_lost,
  peers_up,
  requests_served,
  requests_refused,
  rdma_pairs,
  rdma_sends,
  rdma_evictions,
  rdma_wakes,
  count_
};
/// The count of the bytes of a class.
constexpr Count bytes_of(TransferClass which) {
  return which == TransferClass::urgent ? Count::urgent_bytes : Count::bulk_bytes;
}
enum class Flow : uint8_t { read_bytes, written_bytes, served_bytes, landed_bytes, slices, count_ };

class Tally {
 public:
  static constexpr size_t kTransportsMax = 8;

  // relaxed everywhere: totals only
  void add(Count what, uint64_t amount = 1) {
    counts_[static_cast<size_t>(what)].fetch_add(amount, std::memory_order_relaxed);
  }
  void sub(Count what, uint64_t amount = 1) {
    counts_[static_cast<size_t>(what)].fetch_sub(amount, std::memory_order_relaxed);
  }
  uint64_t get(Count what) const { return counts_[static_cast<size_t>(what)].load(std::memory_order_relaxed); }
  void add(size_t transport, Flow what, uint64_t amount) {
    flows_[transport][static_cast<size_t>(what)].fetch_add(amount, std::memory_order_relaxed);
  }
  void failure(std::string_view reason) {
    std::lock_guard lock(mutex_);
    ++failures_[std::string(reason)];
  }
  /// `table`: the transports by row, like `row` in add().
  Counters snapshot(std::span<const TransportEntry* const> table) const;

 private:
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Count::count_)> counts_{};
  std::array<std::array<std::atomic<uint64_t>, static_cast<size_t>(Flow::count_)>, kTransportsMax> flows_{};
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> failures_;
};

}  // namespace mc::xfer

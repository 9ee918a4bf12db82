// Leases: dated promises to remote readers that pages will not be reused. Expiry or the reader ends a lease, a lost
// connection never does: a peer that lost its control channel may still be reading, so only the expiry frees the page.
// Owned pages may be leased too (a decode node reads layers while the prefill node still fills the page); releasing
// such a page drains until the lease is over.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "kv/pool.h"

namespace mc::kv {

using LeaseId = uint64_t;

struct Lease {
  LeaseId id = 0;
  std::string holder;  // node or instance of the reader: for logs, limits and statistics
  TimePoint expiry{};
  std::vector<PageIndex> pages;
};

class Leases {
 public:
  struct Options {
    LeaseId first_id = 1;  // nodes with several pools give each its own range
    uint32_t lease_count_max = 1 << 16;
    uint32_t holder_page_count_max = 1 << 20;  // pages one holder may have leased at a time
  };

  /// `pool` must outlive the leases; the destructor gives all pages back.
  Leases(Pool& pool, const Options& options) : pool_(pool), options_(options), next_id_(options.first_id) {}
  explicit Leases(Pool& pool) : Leases(pool, Options{}) {}
  ~Leases();
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  /// Promises `pages` (each owned or cached) to `holder` until `expiry`.
  /// Code::busy when a limit of Options is reached.
  Result<LeaseId> grant(std::string holder, std::span<const PageIndex> pages, TimePoint expiry);
  /// Adds pages to a lease, with its expiry. Code::not_found when the lease has ended.
  Result<void> extend(LeaseId id, std::span<const PageIndex> pages);
  /// Moves the expiry later, never earlier. Code::not_found when the lease has ended; the reader must then discard the
  /// bytes that it has read since.
  Result<void> renew(LeaseId id, TimePoint expiry);
  /// Ends a lease early. Code::not_found when the lease has already ended, which the caller may ignore.
  Result<void> release(LeaseId id);
  /// Ends every lease with expiry <= now and returns them in the order of their expiry.
  std::vector<Lease> expire(TimePoint now);
  /// The earliest expiry; kNever when there is no lease.
  TimePoint next_expiry() const { return by_expiry_.empty() ? kNever : by_expiry_.begin()->first; }

  const Lease* find(LeaseId id) const;
  size_t size() const { return leases_.size(); }
  /// The number of leased pages; a page counts once for each lease on it.
  uint64_t page_count() const { return page_count_; }
  uint32_t pages_of(const std::string& holder) const;
  /// Aborts unless the books balance and `pool` counts the same leases.
  void check() const;

 private:
  Lease take(std::map<LeaseId, Lease>::iterator it);
  Error over(LeaseId id) const;
  Result<void> admit(const std::string& holder, size_t page_count) const;

  Pool& pool_;
  Options options_;
  LeaseId next_id_;
  uint64_t page_count_ = 0;
  std::map<LeaseId, Lease> leases_;
  std::set<std::pair<TimePoint, LeaseId>> by_expiry_;
  std::map<std::string, uint32_t> holder_pages_;
};

}  // namespace mc::kv

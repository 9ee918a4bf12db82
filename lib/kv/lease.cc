#include "kv/lease.h"

#include "base/assert.h"

namespace mc::kv {

Leases::~Leases() {
  while (!leases_.empty()) take(leases_.begin());
}

Result<void> Leases::admit(const std::string& holder, size_t page_count) const {
  if (page_count > options_.holder_page_count_max - std::min(pages_of(holder), options_.holder_page_count_max))
    return Error{Code::busy, "lease: " + holder + " holds " + std::to_string(pages_of(holder)) +
                                 " pages and asks for " + std::to_string(page_count) + " more, at most " +
                                 std::to_string(options_.holder_page_count_max) + " are allowed"};
  return {};
}

Result<LeaseId> Leases::grant(std::string holder, std::span<const PageIndex> pages, TimePoint expiry) {
  if (leases_.size() >= options_.lease_count_max)
    return Error{Code::busy, "lease: all " + std::to_string(options_.lease_count_max) + " leases are in use"};
  MC_CHECK(admit(holder, pages.size()));
  const LeaseId id = next_id_++;
  leases_.emplace(id, Lease{id, std::move(holder), expiry, {}});
  by_expiry_.emplace(expiry, id);
  MC_CHECK(extend(id, pages));
  return id;
}

Result<void> Leases::extend(LeaseId id, std::span<const PageIndex> pages) {
  const auto it = leases_.find(id);
  if (it == leases_.end()) return over(id);
  Lease& lease = it->second;
  MC_CHECK(admit(lease.holder, pages.size()));
  if (pages.empty()) return {};
  for (const PageIndex page : pages) pool_.add_lease(page);
  lease.pages.insert(lease.pages.end(), pages.begin(), pages.end());
  page_count_ += pages.size();
  holder_pages_[lease.holder] += static_cast<uint32_t>(pages.size());
  return {};
}

Result<void> Leases::renew(LeaseId id, TimePoint expiry) {
  const auto it = leases_.find(id);
  if (it == leases_.end()) return over(id);
  Lease& lease = it->second;
  if (expiry <= lease.expiry) return {};
  by_expiry_.erase({lease.expiry, id});
  lease.expiry = expiry;
  by_expiry_.emplace(expiry, id);
  return {};
}

Result<void> Leases::release(LeaseId id) {
  const auto it = leases_.find(id);
  if (it == leases_.end()) return over(id);
  take(it);
  return {};
}

std::vector<Lease> Leases::expire(TimePoint now) {
  std::vector<Lease> out;
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now)
    out.push_back(take(leases_.find(by_expiry_.begin()->second)));
  return out;
}

const Lease* Leases::find(LeaseId id) const {
  const auto it = leases_.find(id);
  return it == leases_.end() ? nullptr : &it->second;
}

uint32_t Leases::pages_of(const std::string& holder) const {
  const auto it = holder_pages_.find(holder);
  return it == holder_pages_.end() ? 0 : it->second;
}

Lease Leases::take(std::map<LeaseId, Lease>::iterator it) {
  MC_ASSERT(it != leases_.end());
  Lease lease = std::move(it->second);
  leases_.erase(it);
  by_expiry_.erase({lease.expiry, lease.id});
  for (const PageIndex page : lease.pages) pool_.drop_lease(page);
  page_count_ -= lease.pages.size();
  if (lease.pages.empty()) return lease;
  const auto holder = holder_pages_.find(lease.holder);
  holder->second -= static_cast<uint32_t>(lease.pages.size());
  if (holder->second == 0) holder_pages_.erase(holder);
  return lease;
}

Error Leases::over(LeaseId id) const {
  return {Code::not_found, "lease: " + std::to_string(id) + (id < next_id_ ? " is over" : " was never granted")};
}

void Leases::check() const {
  uint64_t pages = 0;
  std::map<PageIndex, uint32_t> per_page;
  for (const auto& [id, lease] : leases_) {
    pages += lease.pages.size();
    for (const PageIndex page : lease.pages) ++per_page[page];
  }
  MC_ASSERT_EQ(pages, page_count_);
  MC_ASSERT_EQ(by_expiry_.size(), leases_.size());
  MC_ASSERT_EQ(per_page.size(), pool_.counts().leased);
  for (const auto& [page, count] : per_page) MC_ASSERT_EQ(pool_.leases(page), count);
}

}  // namespace mc::kv

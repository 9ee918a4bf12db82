#include "node/demoter.h"

#include <algorithm>

namespace mc::node {
namespace {
constexpr uint32_t kDemotePages = 32;   // of an offer: enough to amortise, few enough not to hold much
constexpr uint32_t kLeavesLooked = 64;  // coldest leaves searched for a chain worth saving
constexpr size_t kDemotionsInFlight = 2;
constexpr Duration kDemoteEvery = 20ms;
constexpr Duration kDemoteTtl = 5s;
}  // namespace

bool Demoter::due(TimePoint now) const {
  return now >= next_ && offers_.size() < kDemotionsInFlight && shelf_.pool.pages_over(above_) > 0;
}

// The coldest chain that a cache node does not hold whole, from its head on: a tail without its head
// is of no use to anybody, and the head is what other prompts share. Blocks go in order of eviction,
// so the chain of the leaf that would go first is the one to save.
std::vector<kv::PageIndex> Demoter::cold_chain(NamespaceId& ns) const {
  const kv::Pool& pool = shelf_.pool;
  for (const kv::PageIndex leaf : pool.candidates(kLeavesLooked)) {
    std::vector<kv::PageIndex> chain;
    for (kv::PageIndex page = leaf; page != kv::kNoPage; page = pool.find(pool.meta(page).parent)) {
      if (!demoted_.contains(pool.meta(page).hash) && pool.leases(page) == 0) chain.push_back(page);
      if (pool.meta(page).parent.is_zero()) break;
    }
    if (chain.empty()) continue;
    ns = pool.meta(leaf).name_space;
    std::reverse(chain.begin(), chain.end());
    if (chain.size() > kDemotePages) chain.resize(kDemotePages);
    return chain;
  }
  return {};
}

void Demoter::offer(const std::vector<const wire::Peer*>& caches, uint64_t id, TimePoint now, Actions& out) {
  if (caches.empty()) return;
  next_ = now + kDemoteEvery;
  wire::DemoteOffer message;
  const std::vector<kv::PageIndex> pages = cold_chain(message.ns);
  if (pages.empty()) return;
  const auto lease = shelf_.leases.grant("demote", pages, now + kDemoteTtl);
  if (!lease) return;
  const wire::Peer& cache = *caches[id % caches.size()];
  Offer offer{cache.name, cache.instance, *lease, now + kDemoteTtl, {}};
  message.lease = id;
  message.kv_namespace = kv_namespace_;
  message.page_bytes = shelf_.layout.page_bytes();
  message.extent_bytes = shelf_.layout.layer_bytes();
  message.ttl_ms = static_cast<uint32_t>(kDemoteTtl / 1ms);
  for (const kv::PageIndex page : pages) {
    message.blocks.push_back(shelf_.leased_block(page));
    offer.hashes.push_back(shelf_.pool.meta(page).hash);
  }
  out.push_back(Send{cache.name, cache.instance, std::move(message)});
  offers_.emplace(id, std::move(offer));
}

void Demoter::on_done(const NodeId& node, const wire::DemoteDone& message) {
  const auto it = offers_.find(message.lease);
  if (it == offers_.end() || it->second.cache != node) return;
  (void)shelf_.leases.release(it->second.lease);
  // Only what is still here needs remembering; the set is bounded by the pool.
  for (const auto& hash : message.stored)
    if (shelf_.pool.find(hash) != kv::kNoPage) demoted_.insert(hash);
  // One of the rest changed in memory or on its way. Kept, it would be offered again and again.
  if (message.reason == to_string(Code::corrupt))
    for (const auto& hash : it->second.hashes)
      if (shelf_.pool.find(hash) != kv::kNoPage && !demoted_.contains(hash))
        shelf_.pool.remove(hash, kv::Removal::corrupt);
  offers_.erase(it);
}

void Demoter::expired(kv::LeaseId lease) {
  std::erase_if(offers_, [&](const auto& offer) { return offer.second.lease == lease; });
}

void Demoter::drop(const InstanceId& instance, bool is_cache) {
  std::erase_if(offers_, [&](const auto& offer) {
    if (offer.second.instance != instance) return false;
    (void)shelf_.leases.release(offer.second.lease);
    return true;
  });
  if (is_cache) demoted_.clear();
}

TimePoint Demoter::next_wakeup() const {
  TimePoint at = kNever;
  for (const auto& [id, offer] : offers_) at = std::min(at, offer.until);
  return at;
}

}  // namespace mc::node

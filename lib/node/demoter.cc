#include "node/demoter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/assert.h"
#include "base/hash.h"

namespace mc::node {
namespace {
// Pages of one offer: enough to amortise the messages, few enough to hold little memory.
constexpr uint32_t kDemotePages = 32;
constexpr uint32_t kLeavesLooked = 64;  // number of coldest leaves that are searched for a chain to demote
constexpr size_t kDemotionsInFlight = 2;
constexpr Duration kDemoteEvery = 20ms;
constexpr Duration kDemoteTtl = 5s, kDemoteTtlTotal = 40s;  // of an offer, and with all its renewals
constexpr Duration kRefusedFor = 500ms;                     // the chains of a full cache node go to the next one

/// Uniform in (0, 1) for each pair. A name, not an instance: a cache node that restarts gets its blocks back.
double draw(const BlockHash& first, const std::string& name) {
  const Id128 digest = Sha256().update(std::as_bytes(std::span(first.bytes))).update(name).finish128();
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof bits; ++i) bits = bits << 8 | digest.bytes[i];
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}
}  // namespace

// With scores w / -ln(u) a node of weight w (its capacity, in part at first) wins with the probability w / sum of all
// weights.
const wire::Peer* cache_for(const BlockHash& first, const std::vector<const wire::Peer*>& caches,
                            const SlowStart& starts, TimePoint now) {
  MC_ASSERT(!caches.empty());
  double sum = 0, announced = 0;
  for (const wire::Peer* cache : caches)
    if (cache->cache_bytes > 0) sum += static_cast<double>(cache->cache_bytes), ++announced;
  const double mean = announced > 0 ? sum / announced : 1;
  const wire::Peer* best = nullptr;
  double best_score = -1;
  for (const wire::Peer* cache : caches) {
    const double capacity = cache->cache_bytes > 0 ? static_cast<double>(cache->cache_bytes) : mean;
    const double score = capacity * starts.part(cache->instance, now) / -std::log(draw(first, cache->name));
    if (score > best_score) best = cache, best_score = score;
  }
  return best;
}

/// The cache nodes that did not refuse an offer lately; all of them when each of them did.
std::vector<const wire::Peer*> Demoter::willing(const std::vector<const wire::Peer*>& caches, TimePoint now) {
  std::erase_if(refused_, [&](const auto& entry) { return now >= entry.second; });
  std::vector<const wire::Peer*> out;
  for (const wire::Peer* cache : caches)
    if (!refused_.contains(cache->instance)) out.push_back(cache);
  return out.empty() ? caches : out;
}

bool Demoter::due(TimePoint now) const {
  return now >= next_ && !question_ && offers_.size() < kDemotionsInFlight && shelf_.pool.pages_over(above_) > 0;
}

bool Demoter::is_demoted(const BlockHash& hash, TimePoint now) const {
  const auto known = demoted_.find(hash);
  return known != demoted_.end() && (!lookups_ || now - known->second.at < kKnownFor);
}

// The coldest chain that no cache node holds completely, from its head. A tail without its head is useless, and the
// head is the part that other prompts share. Blocks go in order of eviction, so the chain of the next leaf to be
// evicted comes first.
std::vector<kv::PageIndex> Demoter::cold_chain(size_t pages_max, TimePoint now) const {
  const kv::Pool& pool = shelf_.pool;
  for (const kv::PageIndex leaf : pool.candidates(kLeavesLooked)) {
    std::vector<kv::PageIndex> chain;
    for (kv::PageIndex page = leaf; page != kv::kNoPage; page = pool.find(pool.meta(page).parent)) {
      if (!is_demoted(pool.meta(page).hash, now) && pool.leases(page) == 0) chain.push_back(page);
      if (pool.meta(page).parent.is_zero()) break;
    }
    if (chain.empty()) continue;
    std::reverse(chain.begin(), chain.end());
    if (chain.size() > pages_max) chain.resize(pages_max);
    return chain;
  }
  return {};
}

/// The next blocks of the last answer that no cache node has and that are still here.
std::vector<kv::PageIndex> Demoter::take_answered(TimePoint now) {
  std::vector<kv::PageIndex> out;
  size_t looked = 0;
  for (; looked < answered_.size() && out.size() < kDemotePages; ++looked) {
    const BlockHash& hash = answered_[looked];
    const kv::PageIndex page = shelf_.pool.find(hash);
    if (page != kv::kNoPage && !is_demoted(hash, now) && shelf_.pool.leases(page) == 0) out.push_back(page);
  }
  answered_.erase(answered_.begin(), answered_.begin() + static_cast<std::ptrdiff_t>(looked));
  return out;
}

/// The cache node to which a chain goes. A block that a cache node had lately is asked of that node.
const wire::Peer& Demoter::cache_of(const std::vector<kv::PageIndex>& chain,
                                    const std::vector<const wire::Peer*>& caches, TimePoint now) {
  const BlockHash& first = shelf_.pool.meta(chain.front()).hash;
  if (const auto known = demoted_.find(first); known != demoted_.end())
    for (const wire::Peer* cache : caches)
      if (cache->instance == known->second.cache) return *cache;
  return *cache_for(first, willing(caches, now), starts_, now);
}

void Demoter::ask(const std::vector<kv::PageIndex>& chain, const wire::Peer& cache, uint64_t id, Actions& out) {
  MC_ASSERT(lookups_ && !question_ && !chain.empty());
  Question question{id, cache.name, cache.instance, {}};
  for (const kv::PageIndex page : chain) question.hashes.push_back(shelf_.pool.meta(page).hash);
  out.push_back(Lookup{id, cache.name, cache.instance, question.hashes});
  question_ = std::move(question);
}

// Without an answer the blocks are offered, as they are where there are no lookups.
void Demoter::on_looked_up(const LookedUp& answer, TimePoint now, Actions& out) {
  if (!question_ || question_->lookup != answer.lookup) return;
  const Question question = std::move(*question_);
  question_.reset();
  next_ = now;
  answered_ = question.hashes;
  if (answer.code != Code::ok) return;
  MC_ASSERT_EQ(answer.held.size(), question.hashes.size());
  Touch used{question.node, question.cache, {}};  // the copies over there will soon be the only ones
  for (size_t i = 0; i < question.hashes.size(); ++i) {
    const BlockHash& hash = question.hashes[i];
    const auto known = demoted_.find(hash);
    if (answer.held[i] != wire::HeldIn::none) {
      if (known == demoted_.end()) used.hashes.push_back(hash);
      if (shelf_.pool.find(hash) != kv::kNoPage) demoted_[hash] = {question.cache, now};
    } else if (known != demoted_.end() && known->second.cache == question.cache) {
      demoted_.erase(known);
    }
  }
  if (!used.hashes.empty()) out.push_back(std::move(used));
}

void Demoter::offer(const std::vector<const wire::Peer*>& caches, const std::vector<wire::HolderPart>& parts,
                    uint64_t id, TimePoint now, Actions& out) {
  if (caches.empty()) return;
  next_ = now + kDemoteEvery;
  std::vector<kv::PageIndex> pages = take_answered(now);
  if (pages.empty()) {
    pages = cold_chain(lookups_ ? wire::kLookupBlocksMax : kDemotePages, now);
    if (pages.empty()) return;
    if (lookups_) return ask(pages, cache_of(pages, caches, now), id, out);
  }
  wire::DemoteOffer message;
  message.ns = shelf_.pool.meta(pages.front()).name_space;
  const auto lease = shelf_.leases.grant("demote", pages, now + kDemoteTtl);
  if (!lease) return;
  const wire::Peer& cache = cache_of(pages, caches, now);
  Offer offer{cache.instance, *lease, now + kDemoteTtl, now + kDemoteTtlTotal, {}};
  message.lease = id;
  message.kv_namespace = kv_namespace_;
  if (const NamespaceBook::Entry* owner = names_.find(message.ns))
    message.model = owner->model, message.tenant = owner->tenant.value_or("");
  ExtentLayout whole = shelf_.layout;
  whole.stage = {};
  message.page_bytes = whole.page_bytes();
  message.parts = parts;
  message.extent_bytes = shelf_.layout.layer_bytes();
  message.ttl_ms = static_cast<uint32_t>(kDemoteTtl / 1ms);
  for (const kv::PageIndex page : pages) {
    message.blocks.push_back(shelf_.leased_block(page, true));
    offer.hashes.push_back(shelf_.pool.meta(page).hash);
  }
  out.push_back(Send{cache.name, cache.instance, std::move(message)});
  MC_ASSERT_EQ(offer.hashes.size(), pages.size());
  const bool fresh = offers_.emplace(id, std::move(offer)).second;
  MC_ASSERT(fresh && offers_.size() <= kDemotionsInFlight);
}

bool Demoter::on_renew(const Received& event, const wire::LeaseRenew& renew, TimePoint now, Actions& out) {
  const auto it = offers_.find(renew.lease);
  if (it == offers_.end() || it->second.cache != event.instance || now >= it->second.until) return false;
  Offer& offer = it->second;
  const Duration ttl = std::clamp<Duration>(std::chrono::milliseconds(renew.ttl_ms), 1ms, kDemoteTtl);
  offer.until = std::max(offer.until, std::min(now + ttl, offer.until_max));
  const auto renewed = shelf_.leases.renew(offer.lease, offer.until);
  MC_ASSERT(renewed.has_value());
  const auto left_ms = static_cast<uint32_t>((offer.until - now) / 1ms);
  out.push_back(Send{event.from, event.instance, wire::LeaseRenewed{renew.lease, renew.round, left_ms}});
  return true;
}

void Demoter::on_done(const InstanceId& cache, const wire::DemoteDone& message, TimePoint now) {
  const auto it = offers_.find(message.lease);
  if (it == offers_.end() || it->second.cache != cache) return;
  (void)shelf_.leases.release(it->second.lease);
  // The set keeps only blocks that are still here, so the pool bounds it.
  for (const auto& hash : message.stored)
    if (shelf_.pool.find(hash) != kv::kNoPage) demoted_[hash] = {cache, now};
  const bool is_damaged = message.reason == wire::DemoteEnd::corrupt;
  if (message.stored.empty() && !is_damaged) refused_[cache] = now + kRefusedFor;
  // One of the other blocks changed in memory or during the transfer. If it stayed cached, it would be offered again
  // and again.
  if (is_damaged)
    for (const auto& hash : it->second.hashes)
      if (shelf_.pool.find(hash) != kv::kNoPage && !is_demoted(hash, now))
        shelf_.pool.remove(hash, kv::Removal::corrupt);
  offers_.erase(it);
}

void Demoter::expired(kv::LeaseId lease) {
  std::erase_if(offers_, [&](const auto& entry) {
    const Offer& offer = entry.second;
    if (offer.lease == lease) refused_[offer.cache] = offer.until + kRefusedFor;
    return offer.lease == lease;
  });
}

void Demoter::drop(const InstanceId& instance) {
  std::erase_if(offers_, [&](const auto& offer) {
    if (offer.second.cache != instance) return false;
    (void)shelf_.leases.release(offer.second.lease);
    return true;
  });
  std::erase_if(demoted_, [&](const auto& entry) { return entry.second.cache == instance; });
  refused_.erase(instance);
}

TimePoint Demoter::next_wakeup() const {
  TimePoint at = kNever;
  for (const auto& [id, offer] : offers_) at = std::min(at, offer.until);
  return at;
}

}  // namespace mc::node

// The block side of a worker: events to the conductor, leases to readers, demotion to mc-cache.

#include <algorithm>

#include "base/assert.h"
#include "node/worker.h"

namespace mc::node {
namespace {
constexpr size_t kEventsPerMessage = 2048;   // about 90 KiB of msgpack
constexpr size_t kBlocksPerSnapshot = 4096;  // about 160 KiB
constexpr uint32_t kDemotePages = 32;        // per offer: enough to amortise, few enough not to hold much
constexpr uint32_t kLeavesLooked = 64;       // coldest leaves searched for a chain worth saving
constexpr size_t kDemotionsInFlight = 2;
constexpr Duration kDemoteEvery = 20ms;
constexpr Duration kDemoteTtl = 5s;
constexpr size_t kWaitingMax = 256;       // lease requests that wait for blocks; more are answered at once
constexpr Duration kWaitMax = 60s;        // whatever the asker is ready to wait
constexpr size_t kLeaseBlocksMax = 4096;  // of one grant; the asker takes the rest in another
}  // namespace

void Worker::flush_events(TimePoint now, Actions& out) {
  while (log_.size() > 0) {
    const auto events = log_.drain(kEventsPerMessage);
    for (const auto& e : events) {
      if (e.kind == kv::BlockEvent::Kind::stored)
        memory_.stored(e.hash);
      else if (e.reason == kv::Removal::evicted)
        memory_.evicted(e.hash, now);
    }
    if (state_ != Membership::member) continue;  // the snapshot at registration tells all of it
    wire::BlockEvents message;
    message.first_seq = events.front().seq;
    for (const auto& e : events) {
      message.events.push_back({e.kind == kv::BlockEvent::Kind::stored, {e.hash, e.parent}});
      if (e.kind == kv::BlockEvent::Kind::removed) demoted_.erase(e.hash);
    }
    to_conductor(std::move(message), out);
  }
}

void Worker::send_snapshot(TimePoint now, Actions& out) {
  flush_events(now, out);  // they are older than the snapshot
  std::vector<wire::BlockRef> blocks;
  for (const Shelf* shelf : shelves())
    for (const auto& b : shelf->pool.snapshot()) blocks.push_back({b.hash, b.parent});
  const size_t parts = std::max<size_t>(1, (blocks.size() + kBlocksPerSnapshot - 1) / kBlocksPerSnapshot);
  for (size_t part = 0; part < parts; ++part) {
    wire::BlockSnapshot message;
    message.seq = log_.last_seq();
    message.part = static_cast<uint32_t>(part);
    message.part_count = static_cast<uint32_t>(parts);
    const size_t begin = part * kBlocksPerSnapshot, end = std::min(blocks.size(), begin + kBlocksPerSnapshot);
    message.blocks.assign(blocks.begin() + static_cast<std::ptrdiff_t>(begin),
                          blocks.begin() + static_cast<std::ptrdiff_t>(end));
    to_conductor(std::move(message), out);
  }
}

wire::LeasedBlock Worker::leased_block(const Shelf& shelf, kv::PageIndex page) const {
  const kv::BlockMeta& meta = shelf.pool.meta(page);
  return {meta.hash, meta.parent, shelf.pool.generation(page), shelf.page_offset(page), meta.layer_crcs};
}

// ---- bytes that changed in memory ----------------------------------------------------------------

std::vector<uint32_t> Shelf::prefix_crcs(std::span<const kv::PageIndex> pages, uint32_t blocks,
                                         LayerRange layers) const {
  std::vector<uint32_t> out;
  for (uint32_t block = 0; block < blocks; ++block) {
    const auto& crcs = pool.meta(pages[block]).layer_crcs;
    MC_ASSERT_EQ(crcs.size(), layout.layers);
    out.insert(out.end(), crcs.begin() + layers.first, crcs.begin() + layers.end);
  }
  return out;
}

// Its children keep their places: their own bytes are checked when they are used, and are right when it is made again.
void Worker::drop_rotten(std::span<const BlockHash> hashes, std::span<const kv::PageIndex> pages,
                         std::span<const uint32_t> rotten) {
  for (const uint32_t block : rotten) {
    MC_ASSERT_LT(block, pages.size());
    const BlockHash& hash = hashes[block];
    if (shelf_->pool.find(hash) != pages[block]) continue;  // dropped already, or made again since
    shelf_->pool.remove(hash, kv::Removal::corrupt);
    memory_.rotten(hash);
  }
}

// ---- leases we grant -------------------------------------------------------------------------

void Worker::on_lease_request(const Received& event, const wire::LeaseRequest& request, TimePoint now, Actions& out) {
  if (!is_peer(event.from, event.instance) || granted_.contains({event.instance, request.lease})) {
    send(event.from, event.instance, wire::LeaseGrant{request.lease, {}, 0, wire::Fallback::unknown_peer}, out);
    return;
  }
  const Shelf* shelf = shelf_of(request.ns);
  if (shelf && request.wait_ms > 0 && waiting_.size() < kWaitingMax) {
    const uint32_t here = shelf->pool.match(request.hashes);
    if (here < request.hashes.size() && is_pending(request.hashes[here])) {
      const TimePoint until = now + std::min<Duration>(kWaitMax, std::chrono::milliseconds(request.wait_ms));
      waiting_.push_back({event.from, event.instance, request, until});
      return;
    }
  }
  grant(event.from, event.instance, request, now, out);
}

void Worker::grant(const NodeId& node, const InstanceId& instance, const wire::LeaseRequest& request, TimePoint now,
                   Actions& out) {
  wire::LeaseGrant reply{request.lease, {}, 0};
  Shelf* shelf = shelf_of(request.ns);
  const auto wanted = std::span(request.hashes).first(std::min(request.hashes.size(), kLeaseBlocksMax));
  const uint32_t here = shelf ? shelf->pool.match(wanted) : 0;
  if (here < wanted.size()) reply.reason = absence(shelf, wanted[here], request.wait_ms > 0, now, reply.age_ms);
  if (here == 0) return send(node, instance, std::move(reply), out);
  std::vector<kv::PageIndex> pages;
  for (uint32_t i = 0; i < here; ++i) pages.push_back(shelf->pool.find(wanted[i]));
  const Duration ttl = std::min<Duration>(std::chrono::milliseconds(request.ttl_ms), options_.lease_ttl_max);
  auto lease = shelf->leases.grant(instance.hex(), pages, now + ttl);
  if (!lease) {
    reply.reason = wire::Fallback::refused;
  } else {
    shelf->pool.touch(wanted.first(here));
    granted_[{instance, request.lease}] = {node, shelf, *lease};
    reply.ttl_ms = static_cast<uint32_t>(ttl / 1ms);
    for (kv::PageIndex page : pages) reply.blocks.push_back(leased_block(*shelf, page));
  }
  send(node, instance, std::move(reply), out);
}

/// Why a block is not here. `waited`: the asker was ready to wait for blocks that are being computed.
wire::Fallback Worker::absence(const Shelf* shelf, const BlockHash& hash, bool waited, TimePoint now,
                               uint64_t& age_ms) const {
  if (!shelf) return wire::Fallback::layout;
  if (memory_.was_rotten(hash)) return wire::Fallback::corrupt;
  const auto ago = memory_.evicted_ago(hash, now);
  if (is_pending(hash) && (waited || !ago)) return wire::Fallback::not_published_yet;
  if (!ago) return wire::Fallback::absent;
  age_ms = static_cast<uint64_t>(*ago / 1ms);
  return wire::Fallback::evicted;
}

void Worker::serve_waiting(TimePoint now, Actions& out) {
  for (size_t i = 0; i < waiting_.size();) {
    const WaitingLease& w = waiting_[i];
    const Shelf* shelf = shelf_of(w.request.ns);
    const uint32_t here = shelf ? shelf->pool.match(w.request.hashes) : 0;
    const bool complete = here == w.request.hashes.size();
    if (!complete && now < w.until && is_pending(w.request.hashes[here])) {
      ++i;
      continue;
    }
    const WaitingLease served = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    grant(served.node, served.instance, served.request, now, out);
  }
}

// ---- demotion --------------------------------------------------------------------------------

void Worker::expire_leases(TimePoint now) {
  for (Shelf* shelf : shelves())
    for (const auto& lease : shelf->leases.expire(now)) {
      std::erase_if(granted_, [&](const auto& g) { return g.second.shelf == shelf && g.second.id == lease.id; });
      if (shelf == shelf_.get()) std::erase_if(demotions_, [&](const auto& d) { return d.second.lease == lease.id; });
    }
}

// The coldest chain that a cache node does not hold whole, from its head on: a tail without its head
// is of no use to anybody, and the head is what other prompts share. Blocks go in order of eviction,
// so the chain of the leaf that would go first is the one to save.
std::vector<kv::PageIndex> Worker::cold_chain(NamespaceId& ns) const {
  const kv::Pool& pool = shelf_->pool;
  for (kv::PageIndex leaf : pool.candidates(kLeavesLooked)) {
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

void Worker::consider_demotion(TimePoint now, Actions& out) {
  if (!shelf_) return;
  if (now < demote_at_ || demotions_.size() >= kDemotionsInFlight || state_ != Membership::member) return;
  if (shelf_->pool.pages_over(options_.demote_above) == 0) return;
  std::vector<const wire::Peer*> caches;
  for (const auto& [name, p] : peers_)
    if (p.role == wire::Role::cache) caches.push_back(&p);
  if (caches.empty()) return;
  demote_at_ = now + kDemoteEvery;
  wire::DemoteOffer offer;
  const std::vector<kv::PageIndex> pages = cold_chain(offer.ns);
  if (pages.empty()) return;
  auto lease = shelf_->leases.grant("demote", pages, now + kDemoteTtl);
  if (!lease) return;
  const uint64_t id = next_id();
  const wire::Peer& cache = *caches[id % caches.size()];
  Demotion demotion{cache.name, cache.instance, *lease, now + kDemoteTtl, {}};
  offer.lease = id;
  offer.kv_namespace = options_.kv.text();
  offer.page_bytes = shelf_->layout.page_bytes();
  offer.extent_bytes = shelf_->layout.layer_bytes();
  offer.ttl_ms = static_cast<uint32_t>(kDemoteTtl / 1ms);
  for (kv::PageIndex page : pages) {
    offer.blocks.push_back(leased_block(*shelf_, page));
    demotion.hashes.push_back(shelf_->pool.meta(page).hash);
  }
  send(cache.name, cache.instance, std::move(offer), out);
  demotions_.emplace(id, std::move(demotion));
}

void Worker::on_demote_done(const NodeId& node, const wire::DemoteDone& message) {
  const auto it = demotions_.find(message.lease);
  if (it == demotions_.end() || it->second.cache != node) return;
  (void)shelf_->leases.release(it->second.lease);
  // Only what is still here needs remembering; the set is bounded by the pool.
  for (const auto& hash : message.stored)
    if (shelf_->pool.find(hash) != kv::kNoPage) demoted_.insert(hash);
  // One of the rest changed in memory or on its way. Kept, it would be offered again and again.
  if (message.reason == "corrupt")
    for (const auto& hash : it->second.hashes)
      if (shelf_->pool.find(hash) != kv::kNoPage && !demoted_.contains(hash))
        shelf_->pool.remove(hash, kv::Removal::corrupt);
  demotions_.erase(it);
}

}  // namespace mc::node

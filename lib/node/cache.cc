#include "node/cache.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "wire/block.h"

namespace mc::node {

using wire::DemoteEnd;

namespace {
constexpr size_t kNamespacesMax = 4096;  // tenants and plans whose shelf the cache remembers
constexpr size_t kOfferBlocksMax = 1024;
constexpr size_t kNameBytesMax = 1024;  // of a model or tenant
}  // namespace

namespace {
WorkerOptions with_memory(WorkerOptions worker, uint64_t bytes) {
  worker.memory_bytes = bytes;
  return worker;
}
}  // namespace

Cache::Cache(WorkerOptions worker, CacheOptions options)
    : Worker(with_memory(std::move(worker), options.segment_bytes)), cache_(options) {
  MC_ASSERT(!shelf_ && cache_.slab_bytes > 0);
  for (uint64_t i = cache_.segment_bytes / cache_.slab_bytes; i > 0; --i)
    free_slabs_.push_back((i - 1) * cache_.slab_bytes);
}

Shelf* Cache::shelf_of(const NamespaceId& ns) {
  const auto it = shelf_by_namespace_.find(ns);
  if (it == shelf_by_namespace_.end()) return nullptr;
  by_use_.erase(std::exchange(it->second.use, ++uses_));
  by_use_.emplace(uses_, ns);
  return own_shelves_[it->second.shelf].get();
}

// The namespaces of the last process are not known any more, but each block on disk names its own.
bool Cache::takes_found(const DiskBlock& block) {
  return shelf_for(block.layout, block.name_space).has_value();
}

void Cache::on_message(const Received& event, TimePoint now, Actions& out) {
  if (const auto* offer = std::get_if<wire::DemoteOffer>(&event.message)) on_offer(event, *offer, now, out);
  if (const auto* renewed = std::get_if<wire::LeaseRenewed>(&event.message)) on_renewed(event, *renewed, now);
}

void Cache::on_event(const Event& event, TimePoint now, Actions& out) {
  if (const auto* done = std::get_if<ReadDone>(&event)) on_read(*done, now, out);
}

void Cache::on_tick(TimePoint now, Actions& out) {
  for (auto& [read, offer] : offers_) {
    if (const auto renewal = offer.term.renew(offer.offer.lease, now)) send(offer.node, offer.instance, *renewal, out);
    if (now < offer.until) continue;
    reads_.cancel(read, out);
    offer.until = kNever;
    offer.term = {};
  }
}

TimePoint Cache::role_wakeup() const {
  TimePoint at = kNever;
  for (const auto& [read, offer] : offers_) at = std::min({at, offer.until, offer.term.next_renewal()});
  return at;
}

void Cache::on_renewed(const Received& event, const wire::LeaseRenewed& answer, TimePoint now) {
  for (auto& [read, offer] : offers_) {
    if (offer.until == kNever || offer.offer.lease != answer.lease || offer.instance != event.instance) continue;
    offer.term.renewed(answer, now);
    offer.until = offer.term.give_up_at();  // at once when the lease has ended
  }
}

void Cache::answer(const Offer& offer, std::vector<BlockHash> stored, DemoteEnd reason, Actions& out) {
  if (offer.dropped) return;
  stored.insert(stored.end(), offer.known.begin(), offer.known.end());
  send(offer.node, offer.instance, wire::DemoteDone{offer.offer.lease, std::move(stored), reason}, out);
}

// The layout of the offer. The numbers in the offer must agree with each other.
Result<ExtentLayout> Cache::layout_of(const wire::DemoteOffer& offer) const {
  MC_TRY(ns, kv::Namespace::parse(offer.kv_namespace));
  ExtentLayout layout;
  layout.layers = ns.layers, layout.kv_heads = ns.kv_heads, layout.head_dim = ns.head_dim;
  layout.block_tokens = ns.block_tokens;
  const auto dtype = dtype_from(ns.kv_dtype);
  const bool sane = dtype && wire::is_kv_dtype(*dtype) && ns.layout == ExtentLayout::kVersion && ns.layers - 1 < 4096 &&
                    ns.kv_heads - 1 < 4096 && ns.head_dim - 1 < 4096 && ns.block_tokens - 1 < 65536;
  if (sane) layout.dtype = *dtype;
  if (!sane || layout.page_bytes() != offer.page_bytes || layout.layer_bytes() != offer.extent_bytes)
    return Error{Code::invalid,
                 "offer of " + std::to_string(offer.page_bytes) + " bytes a page does not match its layout"};
  return layout;
}

/// The shelf for a layout, created on first use. Blocks of `ns` are found there from now on.
Result<uint32_t> Cache::shelf_for(const ExtentLayout& layout, const NamespaceId& ns) {
  if (layout.page_bytes() > cache_.slab_bytes)
    return Error{Code::no_space, "a page of " + std::to_string(layout.page_bytes()) +
                                     " bytes is larger than a slab of " + std::to_string(cache_.slab_bytes)};
  uint32_t index = 0;
  while (index < own_shelves_.size() && own_shelves_[index]->layout != layout) ++index;
  if (index == own_shelves_.size()) {
    if (own_shelves_.size() >= cache_.shelves_max)
      return Error{Code::busy, std::to_string(own_shelves_.size()) + " layouts are cached, the limit of a node"};
    const auto slab_pages = static_cast<uint32_t>(cache_.slab_bytes / layout.page_bytes());
    own_shelves_.push_back(std::make_unique<Shelf>(layout, 0, slab_pages, *options_.eviction, blocks_.log()));
    own_shelves_.back()->make_room = [this, index](uint32_t pages) { (void)make_room(index, pages); };
    add_shelf(*own_shelves_.back());
    slab_live_.emplace_back();
  }
  // A request finds blocks by their namespace. Blocks of a namespace that was removed from this table stay cached but
  // cannot be found until a node offers one again, so only the least recently used namespaces are removed.
  shelf_by_namespace_[ns].shelf = index;
  (void)shelf_of(ns);
  if (shelf_by_namespace_.size() > kNamespacesMax) {
    shelf_by_namespace_.erase(by_use_.begin()->second);
    by_use_.erase(by_use_.begin());
  }
  MC_ASSERT_EQ(by_use_.size(), shelf_by_namespace_.size());
  MC_ASSERT_EQ(slab_live_.size(), own_shelves_.size());
  return index;
}

Result<Shelf*> Cache::open_shelf(const kv::Namespace&, const NamespaceId& ns, const ExtentLayout& layout) {
  const auto shelf = shelf_for(layout, ns);
  if (!shelf) return as_user_error(err::kNotEnoughMemory, shelf.error());
  return &at(*shelf);
}

void Cache::on_offer(const Received& event, const wire::DemoteOffer& message, TimePoint now, Actions& out) {
  ++stats_.offers;
  Offer offer{event.from, event.instance, message, 0, {}, {}, {}};
  const auto refuse = [&](DemoteEnd reason) {
    ++stats_.refused;
    answer(offer, {}, reason, out);
  };
  if (!peers().has(event.from, event.instance)) return refuse(DemoteEnd::unknown_peer);
  if (draining_) return refuse(DemoteEnd::draining);
  if (offers_.size() >= cache_.offers_max || message.blocks.size() > kOfferBlocksMax) return refuse(DemoteEnd::full);
  const auto layout = layout_of(message);
  const auto shelf = layout ? shelf_for(*layout, message.ns) : Result<uint32_t>(layout.error());
  if (!shelf) {
    last_error_.note(shelf.error().what);
    return refuse(layout ? DemoteEnd::full : DemoteEnd::layout);
  }
  if (const auto kv = kv::Namespace::parse(message.kv_namespace))
    blocks_.names().add(message.ns, *kv, message.model.substr(0, kNameBytesMax),
                        message.tenant.substr(0, kNameBytesMax));
  offer.shelf = *shelf;
  Shelf& s = at(*shelf);
  if (!are_sound(message.parts, s.layout.layers)) return refuse(DemoteEnd::layout);
  for (size_t i = 0; i < message.blocks.size(); ++i) {
    const auto& block = message.blocks[i];
    if (block.layer_crcs.size() != s.layout.layers) return refuse(DemoteEnd::layout);
    if (s.pool.find(block.hash) != kv::kNoPage || disk().has(block.hash)) {
      offer.known.push_back(block.hash);
      s.pool.touch(std::span(&block.hash, 1));
      ++stats_.blocks_known;
    } else {
      offer.wanted.push_back(i);
    }
  }
  if (offer.wanted.empty()) return answer(offer, {}, DemoteEnd::complete, out);
  if (!make_room(*shelf, static_cast<uint32_t>(offer.wanted.size()))) return refuse(DemoteEnd::full);
  auto pages = s.pool.allocate(static_cast<uint32_t>(offer.wanted.size()));
  if (!pages) return refuse(DemoteEnd::full);
  offer.pages = std::move(*pages);
  MC_ASSERT_EQ(offer.pages.size(), offer.wanted.size());
  std::vector<wire::LeasedBlock> blocks;
  for (const size_t i : offer.wanted) blocks.push_back(message.blocks[i]);
  BlockRead read{.read = numbers_.next(), .node = event.from, .instance = event.instance};
  read.parts = message.parts;
  read.pool = *shelf;
  read.blocks = blocks;
  read.pages = offer.pages;
  read.budget = cache_.read_timeout;
  // It counts from the arrival of the offer, whose time on the way is not known. Checksums show a read that was late.
  offer.term = LeaseTerm(now, message.ttl_ms);
  offer.term.read_until(now + read.budget);
  offer.until = offer.term.give_up_at();
  // Not urgent: no request depends on this copy.
  if (!reads_.start(read, s.layout, now, out)) {
    s.pool.release(offer.pages);
    return refuse(DemoteEnd::unknown_peer);
  }
  const bool fresh = offers_.emplace(read.read, std::move(offer)).second;
  MC_ASSERT(fresh && offers_.size() <= cache_.offers_max);
}

void Cache::on_read(const ReadDone& done, TimePoint now, Actions& out) {
  const auto it = offers_.find(done.read);
  if (it == offers_.end()) return;
  const Offer offer = std::move(it->second);
  offers_.erase(it);
  Shelf& s = at(offer.shelf);
  const bool is_late = offer.until == kNever || offer.term.is_over(now);  // the pages may have other blocks
  if (done.code != Code::ok || is_late) {
    ++stats_.failed;
    const bool is_damaged = done.code == Code::corrupt && !is_late;
    stats_.checksum_failures += is_damaged;
    last_error_.note("reading from " + offer.node + ": " + (is_late ? "the lease was not renewed" : done.what));
    s.pool.release(offer.pages);
    return answer(offer, {}, is_damaged ? DemoteEnd::corrupt : DemoteEnd::failed, out);
  }
  std::vector<BlockHash> stored;
  for (size_t i = 0; i < offer.wanted.size(); ++i) {
    const auto& block = offer.offer.blocks[offer.wanted[i]];
    const auto published =
        s.pool.publish(offer.pages[i], {block.hash, block.parent, offer.offer.ns, block.first_position,
                                        block.layer_crcs, sound_tokens(block, offer.offer.ns, s.layout)});
    s.pool.unpin(published.page);
    stored.push_back(block.hash);
    ++stats_.blocks_stored;
    stats_.bytes_read += s.layout.layers * s.layout.layer_bytes();
  }
  last_error_.served();
  answer(offer, std::move(stored), DemoteEnd::complete, out);
}

void Cache::drop_all(TimePoint, Actions& out) {
  for (auto& [read, offer] : offers_) {
    offer.dropped = true;
    reads_.cancel(read, out);
  }
}

void Cache::on_peer_gone(const wire::Peer& peer, TimePoint, Actions& out) {
  for (auto& [read, offer] : offers_) {
    if (offer.instance != peer.instance) continue;
    offer.dropped = true;
    reads_.cancel(read, out);
  }
}

void Cache::fill_load(wire::Load& load) const {
  load.waiting = static_cast<uint32_t>(offers_.size());
  // Free slabs belong to no shelf. They are counted in pages of the first shelf.
  if (!own_shelves_.empty()) load.pages_free += free_slabs_.size() * own_shelves_.front()->slab_pages;
}

// ---- slabs -----------------------------------------------------------------------------------

bool Cache::add_slab(uint32_t index) {
  if (free_slabs_.empty()) return false;
  const uint64_t offset = free_slabs_.back();
  free_slabs_.pop_back();
  Shelf& s = at(index);
  auto& live = slab_live_[index];
  MC_ASSERT_EQ(live.size(), s.slabs.size());
  const auto hole = static_cast<size_t>(std::find(live.begin(), live.end(), false) - live.begin());
  if (hole < live.size()) {
    s.slabs[hole] = offset;
    live[hole] = true;
    s.pool.restore(static_cast<kv::PageIndex>(hole * s.slab_pages), s.slab_pages);
  } else {
    s.slabs.push_back(offset);
    live.push_back(true);
    const kv::PageIndex first = s.pool.grow(s.slab_pages);
    MC_ASSERT_EQ(first, static_cast<kv::PageIndex>(hole * s.slab_pages));
  }
  return true;
}

bool Cache::take_slab_from_others(uint32_t index) {
  uint32_t victim = index;
  size_t most = 1;  // each shelf keeps at least one slab
  for (uint32_t i = 0; i < own_shelves_.size(); ++i) {
    const auto count = static_cast<size_t>(std::count(slab_live_[i].begin(), slab_live_[i].end(), true));
    if (i != index && count > most) victim = i, most = count;
  }
  if (victim == index) return false;
  Shelf& s = at(victim);
  for (size_t slot = 0; slot < s.slabs.size(); ++slot) {
    if (!slab_live_[victim][slot]) continue;
    if (!s.pool.retire(static_cast<kv::PageIndex>(slot * s.slab_pages), s.slab_pages)) continue;
    slab_live_[victim][slot] = false;
    free_slabs_.push_back(s.slabs[slot]);
    ++stats_.slabs_moved;
    return true;
  }
  return false;
}

bool Cache::make_room(uint32_t index, uint32_t pages) {
  Shelf& s = at(index);
  while (s.pool.counts().free < pages && add_slab(index)) {
  }
  while (s.pool.available() < pages)
    if (!take_slab_from_others(index) || !add_slab(index)) return false;
  return true;
}

void Cache::role_check() const {
  uint64_t live = free_slabs_.size();
  for (const auto& shelf : slab_live_) live += static_cast<uint64_t>(std::count(shelf.begin(), shelf.end(), true));
  MC_ASSERT_EQ(live, cache_.segment_bytes / cache_.slab_bytes);
  uint64_t owned = 0, reading = 0;
  for (const auto& shelf : own_shelves_)
    owned += shelf->pool.counts().owned - disk().owned(shelf->pool) - orders().owned(shelf->pool);
  for (const auto& [read, offer] : offers_) reading += offer.pages.size();
  MC_ASSERT_EQ(owned, reading);
}

}  // namespace mc::node

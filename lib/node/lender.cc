#include "node/lender.h"

#include <algorithm>

#include "base/assert.h"
#include "base/errors.h"

namespace mc::node {
namespace {
constexpr size_t kWaitingMax = 256;       // requests that wait for pending blocks; more are answered at once
constexpr Duration kWaitMax = 60s;        // longest wait, whatever the request allows
constexpr Duration kLoadMax = 4s;         // longest wait for the disk, within the time of the lease
constexpr size_t kLeaseBlocksMax = 4096;  // blocks of one grant; the reader requests the rest again
constexpr Duration kTtlMin = 1ms;         // of a lease and of a renewal; in messages 0 is no lease
}  // namespace

Result<Shelf*> BlockSource::open_shelf(const kv::Namespace&, const NamespaceId& ns, const ExtentLayout& layout) {
  Shelf* shelf = shelf_of(ns);
  if (!shelf || shelf->layout.stage.count() > 0)
    return user_error(err::kKvFileForeign, "the node holds its blocks in parts, as a member of a pipeline", {},
                      "import into a node outside the pipeline, or into a cache node");
  if (shelf->layout != layout)
    return user_error(err::kKvFileForeign, "the blocks have pages of " + std::to_string(layout.page_bytes()) +
                                               " bytes, this node's have " +
                                               std::to_string(shelf->layout.page_bytes()));
  return shelf;
}

void Lender::on_request(const NodeId& node, const InstanceId& instance, const wire::LeaseRequest& request, bool known,
                        TimePoint now, Actions& out) {
  if (!known || !may_use_number(instance, request)) {
    out.push_back(Send{node, instance, wire::LeaseGrant{request.lease, {}, 0, wire::Fallback::unknown_peer, 0}});
    return;
  }
  if (grant_again(node, instance, request, now, out)) return;
  on_release(instance, request.lease, now);  // of a request that waits
  Shelf* shelf = source_.shelf_of(request.ns);
  if (shelf && starts_to_wait(node, instance, request, *shelf, now, out)) return;
  grant(node, instance, request, now, now, out);
}

bool Lender::may_use_number(const InstanceId& instance, const wire::LeaseRequest& request) const {
  const bool others_wait = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& w) {
    return w.instance == instance && w.request.lease == request.lease && w.request != request;
  });
  const auto granted = granted_.find({instance, request.lease});
  if (others_wait || granted == granted_.end()) return !others_wait;
  const BlockHash last = request.hashes.empty() ? BlockHash{} : request.hashes.back();
  return granted->second.asked == request.hashes.size() && granted->second.last == last;
}

bool Lender::starts_to_wait(const NodeId& node, const InstanceId& instance, const wire::LeaseRequest& request,
                            Shelf& shelf, TimePoint now, Actions& out) {
  disk_.hit(shelf.pool, request.hashes);
  if (waiting_.size() >= kWaitingMax) return false;
  const uint32_t here = shelf.pool.match(request.hashes);
  if (here == request.hashes.size()) return false;
  Waiting w{node, instance, request, now, now};
  const auto wanted = std::span(request.hashes).first(std::min(request.hashes.size(), kLeaseBlocksMax));
  w.load = disk_.load(shelf, request.ns, wanted, now, out);
  if (w.load != 0) w.load_until = now + std::min<Duration>(kLoadMax, std::chrono::milliseconds(request.ttl_ms) / 2);
  const bool pending = request.wait_ms > 0 && source_.is_pending(request.hashes[here]);
  if (request.wait_ms > 0) w.until = now + std::min<Duration>(kWaitMax, std::chrono::milliseconds(request.wait_ms));
  if (w.load == 0 && !pending) return false;
  waiting_.push_back(std::move(w));
  MC_ASSERT_LE(waiting_.size(), kWaitingMax);
  return true;
}

void Lender::on_release(const InstanceId& instance, uint64_t lease, TimePoint now) {
  std::erase_if(waiting_, [&](const Waiting& w) {
    const bool gone = w.instance == instance && w.request.lease == lease;
    if (gone && w.load != 0) disk_.end(w.load);
    return gone;
  });
  const auto it = granted_.find({instance, lease});
  if (it == granted_.end()) return;
  (void)it->second.shelf->leases.release(it->second.id);  // the lease may have ended already
  shares_.ended(*it->second.shelf, instance, it->second.pages, now);
  granted_.erase(it);
}

Duration Lender::bounded(Duration ttl) const {
  return std::clamp(ttl, kTtlMin, ttl_max_);
}

Duration Lender::prolong(const InstanceId& reader, const Granted& granted, Duration ttl, TimePoint now) {
  kv::Leases& leases = granted.shelf->leases;
  const kv::Lease* lease = leases.find(granted.id);
  if (lease == nullptr || now >= lease->expiry) return Duration{};
  if (shares_.may_renew(*granted.shelf, reader, now)) {
    const auto renewed = leases.renew(granted.id, std::min(now + bounded(ttl), granted.end_max));
    MC_ASSERT(renewed.has_value());
  }
  MC_ASSERT(lease->expiry <= granted.end_max);
  // Messages count milliseconds. At the end of its total time less than one may be left, which is a refusal.
  return lease->expiry - now >= kTtlMin ? lease->expiry - now : Duration{};
}

bool Lender::grant_again(const NodeId& node, const InstanceId& instance, const wire::LeaseRequest& request,
                         TimePoint now, Actions& out) {
  const auto at = granted_.find({instance, request.lease});
  if (at == granted_.end()) return false;
  const Granted& granted = at->second;
  const Duration left = prolong(instance, granted, std::chrono::milliseconds(granted.rest.ttl_ms), now);
  if (left == Duration{}) return false;
  wire::LeaseGrant reply = granted.rest;
  reply.ttl_ms = static_cast<uint32_t>(left / 1ms);
  for (const kv::PageIndex page : granted.shelf->leases.find(granted.id)->pages)
    reply.blocks.push_back(granted.shelf->leased_block(page, request.with_tokens));
  out.push_back(Send{node, instance, std::move(reply)});
  return true;
}

void Lender::on_renew(const NodeId& node, const InstanceId& instance, const wire::LeaseRenew& renew, TimePoint now,
                      Actions& out) {
  const auto at = granted_.find({instance, renew.lease});
  const Duration left =
      at == granted_.end() ? Duration{} : prolong(instance, at->second, std::chrono::milliseconds(renew.ttl_ms), now);
  out.push_back(Send{node, instance, wire::LeaseRenewed{renew.lease, renew.round, static_cast<uint32_t>(left / 1ms)}});
}

void Lender::grant(const NodeId& node, const InstanceId& instance, const wire::LeaseRequest& request, TimePoint since,
                   TimePoint now, Actions& out) {
  wire::LeaseGrant reply{request.lease, {}, 0};
  reply.waited_ms = static_cast<uint32_t>((now - since) / 1ms);
  static_assert(std::max(kWaitMax, kLoadMax) < std::chrono::milliseconds(UINT32_MAX));
  Shelf* shelf = source_.shelf_of(request.ns);
  const auto wanted = std::span(request.hashes).first(std::min(request.hashes.size(), kLeaseBlocksMax));
  const HolderParts parts = source_.parts();
  uint32_t here = shelf && parts ? shelf->pool.match(wanted) : 0;
  if (here < wanted.size()) reply.reason = absence(shelf, wanted[here], request.wait_ms > 0, now, reply.age_ms);
  if (const uint32_t room = here > 0 ? shares_.room(*shelf, instance, now) : 0; room < here)
    here = room, reply.reason = wire::Fallback::refused, reply.age_ms = 0;
  if (here > 0) {
    std::vector<kv::PageIndex> pages;
    for (uint32_t i = 0; i < here; ++i) {
      pages.push_back(shelf->pool.find(wanted[i]));
      MC_ASSERT(pages.back() != kv::kNoPage);
    }
    const Duration ttl = bounded(std::chrono::milliseconds(request.ttl_ms));
    auto lease = shelf->leases.grant(instance.hex(), pages, now + ttl);
    if (!lease) {
      reply.reason = wire::Fallback::refused;
    } else {
      shelf->pool.touch(wanted.first(here));
      reply.ttl_ms = static_cast<uint32_t>(ttl / 1ms);
      reply.parts = *parts;
      shares_.begun(*shelf, instance, here, now);
      Granted granted{shelf, *lease, now + kTotalTtls * ttl_max_, here, request.hashes.size(), request.hashes.back(),
                      reply};
      const bool fresh = granted_.try_emplace({instance, request.lease}, std::move(granted)).second;
      MC_ASSERT(fresh);
      for (const kv::PageIndex page : pages) reply.blocks.push_back(shelf->leased_block(page, request.with_tokens));
    }
  }
  out.push_back(Send{node, instance, std::move(reply)});
}

/// Why a block is not here. `waited`: the request allowed a wait for pending blocks.
wire::Fallback Lender::absence(const Shelf* shelf, const BlockHash& hash, bool waited, TimePoint now,
                               uint64_t& age_ms) const {
  if (!shelf) return wire::Fallback::layout;
  if (memory_.was_rotten(hash)) return wire::Fallback::corrupt;
  if (memory_.was_unreadable(hash) || disk_.has(hash)) return wire::Fallback::disk;
  const auto ago = memory_.evicted_ago(hash, now);
  if (source_.is_pending(hash) && (waited || !ago)) return wire::Fallback::not_published_yet;
  if (!ago) return wire::Fallback::absent;
  age_ms = static_cast<uint64_t>(*ago / 1ms);
  return wire::Fallback::evicted;
}

bool Lender::waits_on(Waiting& w, TimePoint now) {
  if (w.load != 0 && !disk_.done(w.load)) {
    if (now < w.load_until) return true;
    disk_.end(w.load);
    w.load = 0;
  }
  const Shelf* shelf = source_.shelf_of(w.request.ns);
  const uint32_t here = shelf ? shelf->pool.match(w.request.hashes) : 0;
  const bool complete = here == w.request.hashes.size();
  return !complete && now < w.until && source_.is_pending(w.request.hashes[here]);
}

void Lender::serve_waiting(TimePoint now, Actions& out) {
  for (size_t i = 0; i < waiting_.size();) {
    if (waits_on(waiting_[i], now)) {
      ++i;
      continue;
    }
    const Waiting served = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    grant(served.node, served.instance, served.request, served.since, now, out);
    if (served.load != 0) disk_.end(served.load);  // the lease holds the blocks from here on
  }
}

void Lender::expired(const Shelf& shelf, kv::LeaseId id, TimePoint now) {
  std::erase_if(granted_, [&](const auto& g) {
    const bool gone = g.second.shelf == &shelf && g.second.id == id;
    if (gone) shares_.ended(shelf, g.first.first, g.second.pages, now);
    return gone;
  });
}

void Lender::drop(const InstanceId& instance) {
  shares_.forget(instance);
  std::erase_if(granted_, [&](const auto& g) {
    if (g.first.first != instance) return false;
    (void)g.second.shelf->leases.release(g.second.id);
    return true;
  });
  std::erase_if(waiting_, [&](const Waiting& w) {
    if (w.instance == instance && w.load != 0) disk_.end(w.load);
    return w.instance == instance;
  });
}

TimePoint Lender::next_wakeup() const {
  TimePoint at = kNever;
  for (const Waiting& w : waiting_) at = std::min(at, w.load == 0 || disk_.done(w.load) ? w.until : w.load_until);
  return at;
}

}  // namespace mc::node

#include "node/copies.h"

#include <algorithm>

#include "base/assert.h"
#include "node/reason.h"

namespace mc::node {

using wire::CopyEnd;

namespace {
void to_conductor(wire::Message message, Actions& out) {
  out.push_back(Send{NodeId(kConductor), InstanceId{}, std::move(message)});
}
}  // namespace

void Copies::answer(const Copy& copy, uint32_t blocks, CopyEnd reason, Actions& out) const {
  if (!copy.dropped) to_conductor(wire::CopyDone{copy.order.copy, blocks, reason}, out);
}

void Copies::end(Iterator at, uint32_t blocks, CopyEnd reason, Actions& out) {
  Copy& c = at->second;
  answer(c, blocks, reason, out);
  if (c.lease != 0) out.push_back(Send{c.order.node, c.order.instance, wire::LeaseRelease{c.lease}});
  c.lease = 0;
  c.dropped = true;
  if (c.read != 0) {  // the transport may still write into the pages, so they stay owned until ReadDone
    reads_.cancel(c.read, out);
    c.term = {};
    c.until = kNever;
    return;
  }
  shelf_.pool.release(c.pages);
  copies_.erase(at);
}

void Copies::start(const wire::CopyBlocks& order, uint64_t id, bool is_peer, TimePoint now, Actions& out) {
  Copy c;
  c.order = order;
  const auto refuse = [&](CopyEnd reason) {
    ++stats_.failed;
    answer(c, 0, reason, out);
  };
  const kv::Pool::Counts counts = shelf_.pool.counts();
  if (order.hashes.empty() || order.hashes.size() > kBlocksMax) return refuse(CopyEnd::invalid);
  if (!is_peer) return refuse(CopyEnd::unknown_peer);
  if (copies_.size() >= kMax) return refuse(CopyEnd::busy);
  c.have = shelf_.pool.match(order.hashes);
  const size_t missing = order.hashes.size() - c.have;
  if (missing == 0) return answer(c, 0, CopyEnd::complete, out);
  const double room = static_cast<double>(counts.free) + static_cast<double>(counts.evictable);
  if (room < static_cast<double>(missing) + kSpareShare * static_cast<double>(counts.total))
    return refuse(CopyEnd::no_space);
  wire::LeaseRequest request;
  request.lease = c.lease = id;
  request.ns = order.ns;
  request.hashes.assign(order.hashes.begin() + static_cast<std::ptrdiff_t>(c.have), order.hashes.end());
  request.ttl_ms = static_cast<uint32_t>(2 * kReadTimeout / 1ms);
  request.with_tokens = true;
  c.asked_at = now;
  c.until = now + kLeaseTimeout;
  out.push_back(Send{order.node, order.instance, std::move(request)});
  const bool fresh = copies_.emplace(id, std::move(c)).second;
  MC_ASSERT(fresh && copies_.size() <= kMax);
}

bool Copies::on_grant(const InstanceId& holder, const wire::LeaseGrant& grant, uint64_t read_id, TimePoint now,
                      Actions& out) {
  const auto at = copies_.find(grant.lease);
  if (at == copies_.end() || at->second.dropped) return false;
  if (at->second.order.instance != holder) return true;
  if (at->second.read != 0) return true;  // again, for a request that was repeated: the lease is in use
  Copy& c = at->second;
  const ExtentLayout& layout = shelf_.layout;
  const auto fail = [&](CopyEnd reason) {
    ++stats_.failed;
    end(at, 0, reason, out);
    return true;
  };
  const size_t count = grant.blocks.size();
  if (count == 0)
    return fail(copy_end_of(grant.reason == wire::Fallback::none ? wire::Fallback::absent : grant.reason));
  bool sane = c.have + count <= c.order.hashes.size() && are_sound(grant.parts, layout.layers);
  for (size_t i = 0; sane && i < count; ++i)
    sane = grant.blocks[i].hash == c.order.hashes[c.have + i] && grant.blocks[i].layer_crcs.size() == layout.layers;
  if (!sane) return fail(CopyEnd::bad_grant);
  const LeaseTerm term = LeaseTerm::of(grant, c.asked_at, now);
  if (term.end() <= now) return fail(CopyEnd::lease_timeout);
  // A block that a request has published since is read again. publish() keeps the first of the two.
  MC_ASSERT(c.pages.empty() && read_id != 0);
  if (shelf_.make_room) shelf_.make_room(static_cast<uint32_t>(count));
  auto pages = shelf_.pool.allocate(static_cast<uint32_t>(count));
  if (!pages) return fail(CopyEnd::no_space);
  MC_ASSERT_EQ(pages->size(), count);
  c.pages = std::move(*pages);
  c.granted = grant.blocks;
  BlockRead read{.read = read_id, .node = c.order.node, .instance = c.order.instance};
  read.parts = grant.parts;
  read.blocks = c.granted;
  read.pages = c.pages;
  read.budget = kReadTimeout;
  if (!reads_.start(read, layout, now, out)) return fail(CopyEnd::peer_lost);
  c.read = read_id;
  c.term = term;
  c.term.read_until(now + read.budget);
  c.until = c.term.give_up_at();
  return true;
}

bool Copies::on_renewed(const Received& event, const wire::LeaseRenewed& answer, TimePoint now) {
  const auto at = copies_.find(answer.lease);
  if (at == copies_.end()) return false;
  Copy& c = at->second;
  if (c.read == 0 || c.dropped || c.order.instance != event.instance) return true;
  c.term.renewed(answer, now);
  c.until = c.term.give_up_at();  // at once when the lease has ended
  return true;
}

bool Copies::on_read(const ReadDone& done, TimePoint now, Actions& out) {
  const auto at =
      std::find_if(copies_.begin(), copies_.end(), [&](const auto& c) { return c.second.read == done.read; });
  if (at == copies_.end()) return false;
  Copy& c = at->second;
  c.read = 0;
  if (done.code == Code::corrupt) ++stats_.checksum_failures;
  const Code code = done.code == Code::ok && c.term.is_over(now) ? Code::timeout : done.code;
  c.term = {};
  if (c.dropped || code != Code::ok) {
    stats_.failed += !c.dropped;
    end(at, 0, copy_end_of(code), out);
    return true;
  }
  MC_ASSERT_EQ(c.pages.size(), c.granted.size());
  for (size_t i = 0; i < c.pages.size(); ++i) {
    const size_t block = c.have + i;
    // The earlier part of the chain was here when the copy began. If it is gone, the later part is useless.
    if (block > 0 && shelf_.pool.find(c.order.hashes[block - 1]) == kv::kNoPage) {
      shelf_.pool.release(std::span(c.pages).subspan(i));
      c.pages.resize(i);
      break;
    }
    kv::BlockMeta meta{c.order.hashes[block],
                       block == 0 ? BlockHash{} : c.order.hashes[block - 1],
                       c.order.ns,
                       static_cast<uint32_t>(block) * shelf_.layout.block_tokens,
                       c.granted[i].layer_crcs,
                       {}};
    meta.tokens = sound_tokens(c.granted[i], c.order.ns, shelf_.layout);
    shelf_.pool.unpin(shelf_.pool.publish(c.pages[i], std::move(meta)).page);
  }
  const auto blocks = static_cast<uint32_t>(c.pages.size());
  c.pages.clear();
  ++stats_.copies;
  stats_.blocks += blocks;
  stats_.bytes += blocks * shelf_.layout.layers * shelf_.layout.layer_bytes();
  end(at, blocks, CopyEnd::complete, out);
  return true;
}

void Copies::on_peer_gone(const InstanceId& instance, Actions& out) {
  for (auto at = copies_.begin(); at != copies_.end();) {
    const auto here = at++;
    if (here->second.order.instance != instance || here->second.dropped) continue;
    ++stats_.failed;
    end(here, 0, CopyEnd::peer_lost, out);
  }
}

void Copies::on_tick(TimePoint now, Actions& out) {
  for (auto at = copies_.begin(); at != copies_.end();) {
    const auto here = at++;
    const wire::CopyBlocks& order = here->second.order;
    if (auto renewal = here->second.term.renew(here->first, now))
      out.push_back(Send{order.node, order.instance, *renewal});
    if (now < here->second.until) continue;
    ++stats_.failed;
    end(here, 0, CopyEnd::timeout, out);
  }
}

void Copies::drop_all(Actions& out) {
  for (auto at = copies_.begin(); at != copies_.end();) {
    const auto here = at++;
    here->second.dropped = true;
    end(here, 0, CopyEnd::complete, out);
  }
}

TimePoint Copies::next_wakeup() const {
  TimePoint at = kNever;
  for (const auto& [lease, c] : copies_) at = std::min({at, c.until, c.term.next_renewal()});
  return at;
}

}  // namespace mc::node

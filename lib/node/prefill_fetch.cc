// Fetching missing prefix blocks: lease them from their holder, read them into our own pages, check
// every extent, publish them here too (so hot prefixes replicate to where they are used). A fetch
// that fails costs time, never the request: the blocks are computed instead, and the report says so.

#include <algorithm>

#include "base/assert.h"
#include "node/prefill.h"

namespace mc::node {
namespace {

wire::Fallback fallback_of(Code code) {
  switch (code) {
    case Code::corrupt: return wire::Fallback::corrupt;
    case Code::timeout: return wire::Fallback::read_timeout;
    case Code::peer_lost: return wire::Fallback::peer_lost;
    default: return wire::Fallback::transfer;
  }
}

}  // namespace

// Starts on the next source that still offers something; afterwards the request is ready.
void Prefill::fetch_next(Request& r, TimePoint now, Actions& out) {
  while (r.source < r.sources.size()) {
    const wire::Source& source = r.sources[r.source];
    const uint32_t have = static_cast<uint32_t>(r.pages.size());
    const uint32_t end = std::min(source.first_block + source.block_count, r.reusable);
    if (r.spec.no_cache || source.first_block > have || end <= have || !peers().has(source.node, source.instance)) {
      if (end > have && !peers().has(source.node, source.instance)) {
        if (r.fallback == wire::Fallback::none) r.fallback = wire::Fallback::peer_lost;
        r.give_up(std::max(have, source.first_block), wire::Fallback::peer_lost, 0);
      }
      ++r.source;
      continue;
    }
    wire::LeaseRequest request;
    request.lease = next_id();
    request.ns = r.spec.ns;
    request.hashes.assign(r.hashes.begin() + have, r.hashes.begin() + end);
    request.ttl_ms = static_cast<uint32_t>(prefill_.fetch_timeout * 2 / 1ms);
    request.wait_ms = source.wait_ms;
    r.fetch = Fetch::leasing;
    r.lease = request.lease;
    r.fetch_until = std::min(r.deadline, now + prefill_.fetch_timeout + std::chrono::milliseconds(source.wait_ms));
    by_op_[r.lease] = requests_.at(r.spec.req);
    ++stats_.fetches;
    send(source.node, source.instance, std::move(request), out);
    return;
  }
  r.fetch = Fetch::done;
  r.fetched_at = now;
  r.fetch_until = kNever;
  r.fetch_ms = r.remote_blocks > 0 || r.fallback != wire::Fallback::none ? to_ms(now - r.fetch_began) : 0;
}

void Prefill::on_grant(Request& r, const wire::LeaseGrant& grant, TimePoint now, Actions& out) {
  if (r.fetch != Fetch::leasing || grant.lease != r.lease) return;
  if (grant.blocks.empty())
    return fetch_failed(r, grant.reason == wire::Fallback::none ? wire::Fallback::absent : grant.reason, now, out,
                        grant.age_ms);
  const uint32_t have = static_cast<uint32_t>(r.pages.size());
  const ExtentLayout& layout = options_.layout;
  const size_t count = grant.blocks.size();
  bool sane = have + count <= r.reusable;
  for (size_t i = 0; sane && i < count; ++i)
    sane = grant.blocks[i].hash == r.hashes[have + i] && grant.blocks[i].layer_crcs.size() == layout.layers;
  if (!sane) return fetch_failed(r, wire::Fallback::bad_grant, now, out);
  auto pages = shelf_->pool.allocate(static_cast<uint32_t>(count));
  if (!pages) return fetch_failed(r, wire::Fallback::no_pages, now, out);
  // The holder has no more of the run than it leased.
  const wire::Source& source = r.sources[r.source];
  if (have + count < std::min(source.first_block + source.block_count, r.reusable) &&
      grant.reason != wire::Fallback::none)
    r.give_up(have + static_cast<uint32_t>(count), grant.reason, grant.age_ms);
  r.fetched = std::move(*pages);
  r.granted = grant.blocks;
  Read read;
  read.read = next_id();
  read.peer = r.sources[r.source].node;
  read.instance = r.sources[r.source].instance;
  // Past the lease the holder may reuse the pages, so the read must end before it.
  read.budget = std::min<Duration>({prefill_.fetch_timeout, std::chrono::milliseconds(grant.ttl_ms), r.deadline - now});
  for (size_t i = 0; i < count; ++i)
    for (uint32_t layer = 0; layer < layout.layers; ++layer)
      read.slices.push_back({r.fetched[i], layout.layer_offset(layer),
                             grant.blocks[i].page_offset + layout.layer_offset(layer),
                             static_cast<uint32_t>(layout.layer_bytes()), grant.blocks[i].layer_crcs[layer]});
  // A short prefix need not queue behind a long one, which waits for its last byte anyway.
  read.urgent = count * layout.layers * layout.layer_bytes() <= kUrgentBytes;
  r.fetch = Fetch::reading;
  r.read = read.read;
  r.fetch_until = now + read.budget + 1s;  // the host answers every read; this is the last resort
  by_op_[r.read] = requests_.at(r.spec.req);
  out.push_back(std::move(read));
}

void Prefill::on_read(Request& r, const ReadDone& done, TimePoint now, Actions& out) {
  MC_ASSERT_EQ(r.read, done.read);
  r.read = 0;
  if (r.phase == Phase::ended) return settle(r);
  if (done.code == Code::corrupt) ++stats_.checksum_failures;
  if (done.code != Code::ok || r.fetch != Fetch::reading) return fetch_failed(r, fallback_of(done.code), now, out);
  const uint32_t first = static_cast<uint32_t>(r.pages.size());
  for (size_t i = 0; i < r.fetched.size(); ++i) {
    const size_t block = first + i;
    kv::BlockMeta meta{r.hashes[block], block == 0 ? BlockHash{} : r.hashes[block - 1], r.spec.ns,
                       static_cast<uint32_t>(block) * options_.layout.block_tokens, r.granted[i].layer_crcs};
    r.pages.push_back(shelf_->pool.publish(r.fetched[i], std::move(meta)).page);
    r.pinned.push_back(true);
  }
  const uint32_t count = static_cast<uint32_t>(r.fetched.size());
  r.remote_blocks += count;
  r.from.emplace_back(r.sources[r.source].node, std::to_string(count * options_.layout.block_tokens));
  r.fetched.clear();
  end_fetch(r, out);
  fetch_next(r, now, out);
}

void Prefill::Request::give_up(uint32_t first_block, wire::Fallback why, uint64_t age_ms) {
  const uint32_t end = std::min(sources[source].first_block + sources[source].block_count, reusable);
  if (first_block < end) given_up.push_back({first_block, end, why, sources[source].node, age_ms});
}

void Prefill::fetch_failed(Request& r, wire::Fallback why, TimePoint now, Actions& out, uint64_t age_ms) {
  ++stats_.fetch_failures;
  r.fallback = why;
  r.give_up(static_cast<uint32_t>(r.pages.size()), why, age_ms);
  if (r.read != 0) {
    // Cancelled, but the transport may still write: the pages wait for its ReadDone. The request
    // goes on without them and takes its own pages.
    out.push_back(CancelRead{r.read});
    auto rest = std::make_shared<Request>();
    rest->phase = Phase::ended;
    rest->read = r.read;
    rest->fetched = std::move(r.fetched);
    by_op_[r.read] = rest;
    ended_.push_back(rest);
    r.read = 0;
  }
  shelf_->pool.release(r.fetched);
  r.fetched.clear();
  end_fetch(r, out);
  fetch_next(r, now, out);
}

void Prefill::end_fetch(Request& r, Actions& out) {
  by_op_.erase(r.lease);
  if (r.lease != 0) send(r.sources[r.source].node, r.sources[r.source].instance, wire::LeaseRelease{r.lease}, out);
  r.lease = 0;
  r.granted.clear();
  ++r.source;
}

}  // namespace mc::node

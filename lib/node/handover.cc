#include "node/handover.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node::handover {
namespace {

void announce(const PrefillRequest& r, uint32_t layer, uint32_t first_block, std::vector<wire::ReadyExtent> extents,
              Actions& out) {
  if (extents.empty()) return;
  MC_ASSERT(r.decode.offered && !r.alone);
  out.push_back(SendNotify{
      r.decode.node, r.decode.instance, {r.spec.req, r.spec.attempt, layer, first_block, std::move(extents)}});
}

}  // namespace

void offer(PrefillRequest& r, TimePoint now, Actions& out) {
  MC_ASSERT(r.phase == PrefillRequest::Phase::queued && !r.decode.offered);
  r.phase = PrefillRequest::Phase::preparing;
  r.times.prepare_at = now;
  if (r.alone) {
    r.decode.accepted = true;
    r.times.accepted_at = now;
    r.decode.has = UINT32_MAX;
    return;
  }
  r.decode.offered = true;
  wire::RequestSpec spec = r.spec;
  spec.deadline_ms = static_cast<uint64_t>(std::max<int64_t>(0, (r.times.deadline - now) / 1ms));
  out.push_back(Send{r.decode.node, r.decode.instance, wire::KvOffer{std::move(spec), r.decode.sources}});
}

void announce_prefix(const PrefillRequest& r, const Shelf& shelf, LayerRange layers, Actions& out) {
  MC_ASSERT_LE(r.prefix.blocks, r.pages.size());
  for (uint32_t layer = layers.first; layer < layers.end; ++layer) {
    std::vector<wire::ReadyExtent> extents;
    for (uint32_t block = r.decode.has; block < r.prefix.blocks; ++block) {
      // A block that arrived while the pool got another copy of it is in a page of the request's own.
      const std::vector<uint32_t>& crcs =
          r.pages.pinned(block) ? shelf.pool.meta(r.pages[block]).layer_crcs : r.crcs.at(block);
      extents.push_back(
          {shelf.page_offset(r.pages[block]) + shelf.layout.layer_offset(layer), crcs.empty() ? 0 : crcs[layer]});
    }
    announce(r, layer, r.decode.has, std::move(extents), out);
  }
}

void announce_layer(PrefillRequest& r, const Shelf& shelf, const LayerDone& done, Actions& out) {
  std::vector<wire::ReadyExtent> extents;
  const auto end = done.first_block + static_cast<uint32_t>(done.crcs.size());
  for (uint32_t block = done.first_block; block < end; ++block) {
    const uint32_t crc = done.crcs[block - done.first_block];
    if (r.seal(block, done.layer, crc))
      extents.push_back({shelf.page_offset(r.pages[block]) + shelf.layout.layer_offset(done.layer), crc});
  }
  const uint32_t first = end - static_cast<uint32_t>(extents.size());
  announce(r, done.layer, first, std::move(extents), out);
}

void complete(const PrefillRequest& r, uint32_t token, Actions& out) {
  MC_ASSERT(r.decode.offered && r.phase == PrefillRequest::Phase::handing_over);
  out.push_back(
      Send{r.decode.node, r.decode.instance, wire::KvComplete{r.spec.req, r.spec.attempt, r.tokens(), token}});
}

void cancel(const PrefillRequest& r, std::string reason, Actions& out) {
  if (!r.decode.offered) return;
  MC_ASSERT(!r.alone);
  out.push_back(Send{r.decode.node, r.decode.instance, wire::Cancel{r.spec.req, r.spec.attempt, std::move(reason)}});
}

}  // namespace mc::node::handover

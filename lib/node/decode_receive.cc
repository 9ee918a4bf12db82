// Receiving a request's KV: each notify of the prefill node names extents that are sealed; they are
// read at once, while the prefill node computes the next layer, and checked against their CRC32C.

#include <algorithm>

#include "base/assert.h"
#include "node/decode.h"
#include "node/stage.h"

namespace mc::node {
void Decode::on_ready(const Notified& event, TimePoint now, Actions& out) {
  const wire::ExtentsReady& ready = event.ready;
  Request* r = find(ready.req, ready.attempt);
  if (!r || !sends_for(*r, event.from, event.instance) || r->phase != Phase::receiving) return;
  if (!r->arrivals.names_ours(ready))
    return fail(*r, "transfer", "corrupt",
                "prefill node " + event.from + " announced layer " + std::to_string(ready.layer) + ", blocks " +
                    std::to_string(ready.first_block) + "+" + std::to_string(ready.extents.size()) + " of " +
                    std::to_string(r->arrivals.blocks()),
                true, out);
  start_read(*r, {ready, event.from, event.instance}, now, out);
}

bool Decode::sends_for(const Request& r, const NodeId& node, const InstanceId& instance) const {
  if (instance == r.prefill_instance) return true;
  const wire::Peer* member = peer(node);
  return member && member->instance == instance && member->role == wire::Role::stage && is_stage_of(node, r.prefill);
}

void Decode::start_read(Request& r, const Arrivals::Reading& reading, TimePoint now, Actions& out) {
  const wire::ExtentsReady& ready = reading.ready;
  const ExtentLayout& layout = options_.layout;
  Read read;
  const auto wanted = r.arrivals.wanted(ready);
  for (const auto& extent : wanted)
    read.slices.push_back({r.pages[extent.block], layout.layer_offset(ready.layer), extent.offset,
                           static_cast<uint32_t>(layout.layer_bytes()), extent.crc});
  if (read.slices.empty()) return;
  read.read = next_id();
  read.peer = reading.from;
  read.instance = reading.instance;
  read.budget = r.deadline - now;
  // The prefill is done: decoding waits for the last chunk, or for blocks that are read again, alone. Earlier
  // chunks are read until then, and yield to the last chunks of other requests.
  read.urgent = r.complete || ready.first_block + ready.extents.size() == r.arrivals.blocks();
  r.arrivals.started(read.read, reading, wanted);
  by_read_[read.read] = requests_.at(r.spec.req);
  out.push_back(std::move(read));
}

void Decode::on_read(Request& r, const ReadDone& done, TimePoint now, Actions& out) {
  const auto [reading, extents] = r.arrivals.ended(done.read, done.code == Code::ok);
  if (r.phase == Phase::ended) return settle(r, out);
  if (done.code == Code::ok) {
    if (r.complete) r.stalled_at = after(now, decode_.stall);
    stats_.transferred_bytes += extents * options_.layout.layer_bytes();
    return try_join(r, out);
  }
  if (done.code == Code::corrupt) ++stats_.checksum_failures;
  if (done.code == Code::corrupt && r.arrivals.may_read_again()) return start_read(r, reading, now, out);
  fail(r, "transfer", std::string(to_string(done.code)),
       "reading layer " + std::to_string(reading.ready.layer) + " from " + reading.from + ": " + done.what, true, out);
}

void Decode::try_join(Request& r, Actions& out) {
  if (r.phase != Phase::receiving || !r.complete || r.arrivals.missing() > 0) return;
  send(r.prefill, r.prefill_instance, wire::KvDone{r.spec.req, r.spec.attempt}, out);
  r.phase = Phase::running;
  r.position = static_cast<uint32_t>(r.spec.ids.size());
  r.chain.append(r.spec.ids);
  publish_prompt(r);
  batch_.join(requests_.at(r.spec.req));
}

// The prompt's full blocks are readable from here too. What came in by another request meanwhile
// keeps its page; ours stays private.
void Decode::publish_prompt(Request& r) {
  if (r.spec.no_cache) return;
  const auto hashes = r.chain.hashes();
  for (uint32_t block = r.have_blocks; block < hashes.size(); ++block)
    r.pages.publish(shelf_->pool, block,
                    {hashes[block], block == 0 ? BlockHash{} : hashes[block - 1], r.spec.ns,
                     block * options_.layout.block_tokens, r.arrivals.crcs(block)});
  shelf_->pool.touch(hashes);
}

}  // namespace mc::node

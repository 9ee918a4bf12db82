// Receiving a request's KV: each notify of the prefill node names extents that are sealed; they are
// read at once, while the prefill node computes the next layer, and checked against their CRC32C.

#include <algorithm>

#include "base/assert.h"
#include "node/decode.h"
#include "node/stage.h"

namespace mc::node {
namespace {
constexpr uint32_t kRereadsMax = 3;  // of a request: a flipped bit is worth another try, a liar is not
}

void Decode::on_ready(const Notified& event, TimePoint now, Actions& out) {
  const wire::ExtentsReady& ready = event.ready;
  Request* r = find(ready.req, ready.attempt);
  if (!r || !sends_for(*r, event.from, event.instance) || r->phase != Phase::receiving) return;
  const bool sane = ready.layer < options_.layout.layers && ready.first_block < r->prompt_blocks &&
                    ready.extents.size() <= r->prompt_blocks - ready.first_block;
  if (!sane)
    return fail(*r, "transfer", "corrupt",
                "prefill node " + event.from + " announced layer " + std::to_string(ready.layer) + ", blocks " +
                    std::to_string(ready.first_block) + "+" + std::to_string(ready.extents.size()) + " of " +
                    std::to_string(r->prompt_blocks),
                true, out);
  start_read(*r, {ready, event.from, event.instance}, now, out);
}

bool Decode::sends_for(const Request& r, const NodeId& node, const InstanceId& instance) const {
  if (instance == r.prefill_instance) return true;
  const wire::Peer* member = peer(node);
  return member && member->instance == instance && member->role == wire::Role::stage && is_stage_of(node, r.prefill);
}

void Decode::start_read(Request& r, const Request::Reading& reading, TimePoint now, Actions& out) {
  const wire::ExtentsReady& ready = reading.ready;
  const ExtentLayout& layout = options_.layout;
  Read read;
  for (size_t i = 0; i < ready.extents.size(); ++i) {
    const uint32_t block = ready.first_block + static_cast<uint32_t>(i);
    if (block < r.have_blocks || r.arrived[block][ready.layer] != 0) continue;  // here, or on its way
    r.arrived[block][ready.layer] = 1;
    r.crcs[block][ready.layer] = ready.extents[i].crc;
    read.slices.push_back({r.pages[block], layout.layer_offset(ready.layer), ready.extents[i].segment_offset,
                           static_cast<uint32_t>(layout.layer_bytes()), ready.extents[i].crc});
  }
  if (read.slices.empty()) return;
  read.read = next_id();
  read.peer = reading.from;
  read.instance = reading.instance;
  read.budget = r.deadline - now;
  // The prefill is done: decoding waits for the last chunk, or for blocks that are read again, alone. Earlier
  // chunks are read until then, and yield to the last chunks of other requests.
  read.urgent = r.complete || ready.first_block + ready.extents.size() == r.prompt_blocks;
  r.reads[read.read] = reading;
  by_read_[read.read] = requests_.at(r.spec.req);
  out.push_back(std::move(read));
}

void Decode::on_read(Request& r, const ReadDone& done, TimePoint now, Actions& out) {
  const auto it = r.reads.find(done.read);
  MC_ASSERT(it != r.reads.end());
  const Request::Reading reading = std::move(it->second);
  const wire::ExtentsReady& ready = reading.ready;
  r.reads.erase(it);
  if (r.phase == Phase::ended) return settle(r);
  uint32_t count = 0;
  for (size_t i = 0; i < ready.extents.size(); ++i) {
    const uint32_t block = ready.first_block + static_cast<uint32_t>(i);
    if (block < r.have_blocks || r.arrived[block][ready.layer] != 1) continue;
    r.arrived[block][ready.layer] = done.code == Code::ok ? 2 : 0;
    ++count;
  }
  if (done.code == Code::ok) {
    r.extents_missing -= count;
    if (r.complete) r.stalled_at = after(now, decode_.stall);
    stats_.transferred_bytes += count * options_.layout.layer_bytes();
    return try_join(r, out);
  }
  if (done.code == Code::corrupt) ++stats_.checksum_failures;
  if (done.code == Code::corrupt && r.rereads < kRereadsMax) {
    ++r.rereads;
    return start_read(r, reading, now, out);
  }
  fail(r, "transfer", std::string(to_string(done.code)),
       "reading layer " + std::to_string(ready.layer) + " from " + reading.from + ": " + done.what, true, out);
}

void Decode::try_join(Request& r, Actions& out) {
  if (r.phase != Phase::receiving || !r.complete || r.extents_missing > 0) return;
  send(r.prefill, r.prefill_instance, wire::KvDone{r.spec.req, r.spec.attempt}, out);
  r.phase = Phase::running;
  r.position = static_cast<uint32_t>(r.spec.ids.size());
  r.chain.append(r.spec.ids);
  publish_prompt(r);
  const RequestPtr self = requests_.at(r.spec.req);
  const auto at = std::upper_bound(running_.begin(), running_.end(), self,
                                   [](const auto& a, const auto& b) { return a->order < b->order; });
  running_.insert(at, self);
}

// The prompt's full blocks are readable from here too. What came in by another request meanwhile
// keeps its page; ours stays private.
void Decode::publish_prompt(Request& r) {
  if (r.spec.no_cache) return;
  const auto hashes = r.chain.hashes();
  for (uint32_t block = r.have_blocks; block < hashes.size(); ++block) {
    if (shelf_->pool.find(hashes[block]) != kv::kNoPage) continue;
    shelf_->pool.publish(r.pages[block], {hashes[block], block == 0 ? BlockHash{} : hashes[block - 1], r.spec.ns,
                                          block * options_.layout.block_tokens, r.crcs[block]});
    r.pinned[block] = true;
  }
  shelf_->pool.touch(hashes);
}

}  // namespace mc::node

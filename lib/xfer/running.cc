#include "xfer/running.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace mc::xfer {

using State = SliceRecord::State;

void RunningBatches::add(OpenBatch& batch) {
  MC_ASSERT(batch.id != BatchId::none);
  MC_ASSERT(batch.deadline != kNever);
  MC_ASSERT_LE(batch.unfinished, batch.requests.size());
  const bool fresh = running_.emplace(batch.id, &batch).second;
  MC_ASSERT(fresh);
  deadlines_.emplace(batch.deadline, batch.id);
  changed_.insert(batch.id);
}

void RunningBatches::finish_request(OpenBatch& batch, uint32_t index, Code code, const std::string& text) {
  MC_ASSERT_LT(index, batch.states.size());
  RequestState& state = batch.states[index];
  if (state.finished) return;
  MC_ASSERT(code != Code::ok || state.done == batch.requests[index].local.size());
  MC_ASSERT_LT(size_t{0}, batch.unfinished);
  state.finished = true;
  batch.results[index].code = code;
  --batch.unfinished;
  changed_.insert(batch.id);
  if (code == Code::ok) return;
  parts_.tally.add(Count::requests_failed);
  if (batch.code == Code::ok) {
    batch.code = code;
    batch.text = "request " + std::to_string(index) + ": " + text;
  }
  abandon_slices(batch, index);
}

void RunningBatches::finish_requests_of(PeerId peer, Code code, const std::string& text) {
  for (auto& [id, batch] : running_)
    for (uint32_t i = 0; i < batch->requests.size(); ++i)
      if (batch->requests[i].peer == peer) finish_request(*batch, i, code, text);
}

void RunningBatches::free_slice(uint32_t slice) {
  changed_.insert(parts_.slices[slice].batch->id);
  parts_.slices.release(slice);
}

void RunningBatches::abandon_slices(OpenBatch& batch, uint32_t request) {
  SliceTable& slices = parts_.slices;
  for (uint32_t i = 0; i < slices.size() && batch.states[request].slices > 0; ++i) {
    const SliceRecord& slice = slices[i];
    if (slice.batch != &batch || slice.request != request) continue;
    if (slice.state == State::waiting) {
      if (Peer* peer = parts_.peers.find(slice.asked().peer))
        for (Route& route : peer->routes) route.queue.erase(i);
      free_slice(i);
      continue;
    }
    if (slice.state != State::posted) continue;
    const EndpointState* endpoint = parts_.lanes.find(slice.endpoint);
    if (endpoint == nullptr || parts_.transports[endpoint->route].cancel(slice.endpoint, slice.lane, slices.id(i))) {
      parts_.lanes.leave(slice);
      free_slice(i);
      continue;
    }
    slices.quarantine(i);
    drains_.emplace(SystemClock::instance().now() + parts_.options.drain_grace, batch.id);
  }
}

void RunningBatches::drop_queued(const OpenBatch& batch) {
  for (auto& [id, peer] : parts_.peers) {
    std::erase_if(peer.waiting, [&](const QueuedRequest& request) { return request.batch == &batch; });
    for (Route& route : peer.routes) route.queue.drop(batch);
  }
}

void RunningBatches::cancel(BatchId id) {
  const auto at = running_.find(id);
  if (at != running_.end()) end(*at->second, Code::cancelled, "cancelled by the caller");
}

/// Ends every request that has no result yet.
void RunningBatches::end(OpenBatch& batch, Code code, const std::string& text) {
  const size_t unfinished = batch.unfinished;
  if (unfinished == 0) return;
  const std::string what = text + ", " + std::to_string(unfinished) + " of " + std::to_string(batch.requests.size()) +
                           " requests unfinished";
  for (uint32_t i = 0; i < batch.requests.size(); ++i) {
    if (batch.states[i].finished) continue;
    const Peer* peer = parts_.peers.find(batch.requests[i].peer);
    std::string why = what;
    if (peer != nullptr && !peer->up)
      why += "; peer '" + peer->who.name + "' is not connected" +
             (peer->failure.text.empty() ? "" : ": " + peer->failure.text);
    finish_request(batch, i, code, why);
  }
  MC_ASSERT_EQ(batch.unfinished, size_t{0});
}

void RunningBatches::settle_changed() {
  for (const BatchId id : std::exchange(changed_, {})) {
    const auto at = running_.find(id);
    if (at != running_.end()) settle(*at->second);
  }
}

/// Reports and releases the batch when it is ready for that.
void RunningBatches::settle(OpenBatch& batch) {
  if (batch.unfinished > 0) return;
  const bool released = batch.slices == 0;
  drop_queued(batch);
  if (released) {
    MC_ASSERT_EQ(batch.quarantined, size_t{0});
    parts_.access.unpin(batch.pins);
    batch.pins.clear();
    running_.erase(batch.id);
    deadlines_.erase({batch.deadline, batch.id});
    MC_ASSERT_LE(deadlines_.size(), running_.size());
  }
  if (auto event = parts_.batches.report(batch, released)) parts_.events.push(std::move(*event));
}

void RunningBatches::expire(TimePoint now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto at = running_.find(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
    if (at != running_.end()) end(*at->second, Code::timeout, "the deadline passed");
  }
  while (!drains_.empty() && drains_.begin()->first <= now) {
    const auto at = running_.find(drains_.begin()->second);
    drains_.erase(drains_.begin());
    if (at != running_.end()) close_holders(*at->second);
  }
}

/// Closes the lanes that still use memory of an ended batch. The memory is then certainly free.
void RunningBatches::close_holders(const OpenBatch& batch) {
  std::set<EndpointId> holding;
  for (uint32_t i = 0; i < parts_.slices.size(); ++i) {
    const SliceRecord& slice = parts_.slices[i];
    if (slice.state == State::quarantined && slice.batch == &batch) holding.insert(slice.endpoint);
  }
  for (const EndpointId id : holding) {
    const EndpointState* endpoint = parts_.lanes.find(id);
    if (endpoint == nullptr) continue;
    parts_.tally.failure("lane closed to free memory after a deadline");
    parts_.transports[endpoint->route].close(id, Code::timeout, "it held memory of a batch that is over",
                                             parts_.reports);
  }
}

TimePoint RunningBatches::due() const {
  TimePoint next = kNever;
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (!drains_.empty()) next = std::min(next, drains_.begin()->first);
  return next;
}

}  // namespace mc::xfer

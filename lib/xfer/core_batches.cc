// How a batch ends: results, deadlines, cancelling, quarantine.
//
//   every request has its result   -> batch_done     (the caller may go on)
//   and no slice of it exists      -> released       (the caller may reuse the memory)
#include <algorithm>

#include "base/assert.h"
#include "xfer/core.h"

namespace mc::xfer {

void Batch::clear() {
  requests.clear();
  pins.clear();
  states.clear();
  results.clear();
  text.clear();
  code = Code::ok;
  slices = quarantined = 0;
  done = released = cancelled = false;
}

std::unique_ptr<Batch> Engine::Core::new_batch() {
  Batch* spare = spare_.exchange(nullptr, std::memory_order_acquire);  // what recycle() did to it
  return spare != nullptr ? std::unique_ptr<Batch>(spare) : std::make_unique<Batch>();
}

/// Keeps one, if it is small: a caller that transfers piece after piece allocates nothing.
void Engine::Core::recycle(std::unique_ptr<Batch> batch) {
  constexpr size_t kRequestsKept = 64;
  if (batch->requests.capacity() > kRequestsKept) return;
  batch->clear();
  Batch* none = nullptr;
  if (spare_.compare_exchange_strong(none, batch.get(), std::memory_order_release, std::memory_order_relaxed))
    (void)batch.release();
}

void Engine::Core::finish_request(Batch& batch, uint32_t index, Code code, std::string text) {
  RequestState& state = batch.states[index];
  if (state.finished) return;
  state.finished = true;
  batch.results[index].code = code;
  --batch.unfinished;
  unsettled_.insert(batch.id);
  if (code == Code::ok) return;
  tally_.add(Count::requests_failed);
  if (batch.code == Code::ok) {
    batch.code = code;
    batch.text = "request " + std::to_string(index) + ": " + text;
  }
  abandon_slices(batch, index);
}

/// Takes the slices of a request back: those the transport lets go at once are freed, the others stay
/// quarantined until it reports them.
void Engine::Core::abandon_slices(Batch& batch, uint32_t request) {
  if (batch.states[request].slices == 0) return;
  for (uint32_t i = 0; i < slices_.size() && batch.states[request].slices > 0; ++i) {
    SliceRecord& slice = slices_[i];
    if (slice.batch != &batch || slice.request != request || slice.state == SliceRecord::State::free) continue;
    if (slice.state == SliceRecord::State::retry) {
      for (auto& [id, peer] : peers_)
        for (Route& route : peer.routes)
          for (auto& waiting : route.waiting) std::erase(tells(slice) ? waiting.retelling : waiting.retry, i);
      free_slice(i);
      continue;
    }
    if (slice.state != SliceRecord::State::posted) continue;
    const auto at = endpoints_.find(slice.endpoint);
    const bool free_now =
        at == endpoints_.end() || transport_of(at->second.route).cancel(slice.endpoint, slice.lane, slice_id(i));
    if (free_now) {
      leave_lane(slice);
      free_slice(i);
      continue;
    }
    slice.state = SliceRecord::State::quarantined;
    batch.quarantined += slice.bytes;
    tally_.add(Count::quarantined_bytes, slice.bytes);
    drains_.emplace(SystemClock::instance().now() + options_.drain_grace, batch.id);
  }
}

void Engine::Core::drop_queued(Batch& batch) {
  const auto mine = [&](const Work& work) { return work.batch == &batch; };
  for (auto& [id, peer] : peers_) {
    std::erase_if(peer.waiting, mine);
    for (Route& route : peer.routes)
      for (auto& waiting : route.waiting) {
        std::erase_if(waiting.queue, mine);
        std::erase_if(waiting.telling, mine);
      }
  }
}

void Engine::Core::end_batch(Batch& batch, Code code, const std::string& text) {
  const size_t unfinished = batch.unfinished;
  if (unfinished == 0) return;
  const std::string what = text + ", " + std::to_string(unfinished) + " of " + std::to_string(batch.requests.size()) +
                           " requests unfinished";
  for (uint32_t i = 0; i < batch.requests.size(); ++i) {
    if (batch.states[i].finished) continue;
    const Peer* peer = find_peer(batch.requests[i].peer);
    std::string why = what;
    if (peer != nullptr && !peer->up)
      why += "; peer '" + peer->name + "' is not connected" + (peer->last_error.empty() ? "" : ": " + peer->last_error);
    finish_request(batch, i, code, std::move(why));
  }
}

/// Reports and releases what can be. The batch may be freed by its caller as soon as it is released.
void Engine::Core::settle(Batch& batch) {
  if (batch.unfinished > 0) return;
  const bool released = batch.slices == 0;
  Event event{.kind = Event::Kind::batch_released, .batch = batch.id, .cookie = batch.cookie};
  bool report = false;
  drop_queued(batch);
  if (released) {
    MC_ASSERT_EQ(batch.quarantined, size_t{0});
    access_.unpin(batch.pins);
    batch.pins.clear();
    running_.erase(batch.id);
    deadlines_.erase({batch.deadline, batch.id});
  }
  {
    std::lock_guard lock(mutex_);
    if (!batch.done) {
      event.kind = Event::Kind::batch_done;
      event.code = batch.code;
      event.quarantined = !released;
      event.text = batch.text;
      report = true;
      tally_.add(Count::batches_done);
      if (batch.code != Code::ok) tally_.add(Count::batches_failed);
    } else if (released) {
      report = true;
    }
    if (report) {
      // before the event: whoever takes it may ask for results and close at once
      batch.done = true;
      batch.released = released;
    }
  }
  if (!report) return;
  emit(std::move(event));
  changed_.notify_all();
}

void Engine::Core::expire(TimePoint now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const BatchId id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    const auto at = running_.find(id);
    if (at != running_.end()) end_batch(*at->second, Code::timeout, "the deadline passed");
  }
}

/// Lanes that keep memory of an ended batch too long are closed: then it is free for certain.
void Engine::Core::drain(TimePoint now) {
  while (!drains_.empty() && drains_.begin()->first <= now) {
    const BatchId id = drains_.begin()->second;
    drains_.erase(drains_.begin());
    const auto at = running_.find(id);
    if (at == running_.end()) continue;
    std::set<EndpointId> holding;
    for (const SliceRecord& slice : slices_)
      if (slice.state == SliceRecord::State::quarantined && slice.batch == at->second) holding.insert(slice.endpoint);
    for (const EndpointId endpoint : holding) {
      const auto state = endpoints_.find(endpoint);
      if (state == endpoints_.end()) continue;
      tally_.failure("lane closed to free memory after a deadline");
      transport_of(state->second.route)
          .close(endpoint, Code::timeout, "it held memory of a batch that is over", outbox_);
    }
  }
}

}  // namespace mc::xfer

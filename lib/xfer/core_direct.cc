// The short way of a small batch whose caller polls (Options::spin): one request that is one slice, to a peer
// that is up and has nothing waiting. submit() posts it and looks once at the devices. Nothing is queued, no
// timer is set, and what has completed by then (always with soft-RoCE, whose post_send carries the bytes) is
// reported without a turn of the loop. Everything else, and every surprise, goes the usual way: a batch that
// is not done is entered where all batches are, with its deadline, before anybody else has the turn. Until then nobody
// looks at the deadline (that would be one more reading of the clock): a batch that is late already may be done well.
//
// It exists because each line that runs beside the verbs counts twice: what it takes, and what it evicts. A
// dozen allocations between two posts made the same post_send a tenth slower in the emulated machine.
#include "base/assert.h"
#include "xfer/core.h"

namespace mc::xfer {

/// Posts the batch's only request. False: it is not plain enough, nothing was done.
bool Engine::Core::post_directly(Batch& batch, Direct& posted) {
  const Request& request = batch.requests[0];
  const uint64_t bytes = request.local.size();
  if (batch.requests.size() != 1 || bytes == 0 || bytes > options_.slice_bytes_min) return false;
  if (request.immediate) return false;
  if (!outbox_.empty()) return false;
  Peer* peer = find_peer(request.peer);
  if (peer == nullptr || peer->gone || !peer->descriptor) return false;
  const BufferInfo* buffer = peer->descriptor->find(request.buffer);
  if (buffer == nullptr || !allowed(*buffer, request)) return false;
  size_t route = 0;
  while (route < peer->routes.size() && (peer->routes[route].up.empty() || !active_[route].entry->covers(*buffer)))
    ++route;
  if (route == peer->routes.size() || !peer->routes[route].idle()) return false;  // others come first
  EndpointId endpoint{};
  int lane_index = 0;
  LaneState* lane = emptiest_lane(peer->routes[route], endpoint, lane_index);
  if (lane == nullptr) return false;
  const uint32_t index = new_slice(batch, 0, 0, static_cast<uint32_t>(bytes));
  posted = {.slice = slice_id(index), .index = index, .route = route, .lane = lane};
  const Slice slice{.id = posted.slice,
                    .op = request.op,
                    .checksum = request.op == Op::read && request.crc32c.has_value(),
                    .buffer = request.buffer,
                    .snapshot = peer->descriptor->version,
                    .offset = request.offset,
                    .local = request.local};
  if (transport_of(route).post(endpoint, lane_index, {&slice, 1}, outbox_) == 0) {
    release_slice(index);
    return false;
  }
  SliceRecord& record = slices_[index];
  record.endpoint = endpoint;
  record.lane = lane_index;
  record.state = SliceRecord::State::posted;
  record.attempts = 1;
  lane->bytes += bytes;
  batch.states[0].cut = bytes;
  tally_.add(Count::batches_submitted);
  tally_.add(Count::slices_posted);
  tally_.add(active_[route].row, Flow::slices, 1);
  return true;
}

/// True: the slice just posted is done, well, and nothing else has happened.
bool Engine::Core::plainly_done(const Batch& batch, const Direct& posted) const {
  if (outbox_.done.size() != 1 || !outbox_.news.empty() || outbox_.room) return false;
  const SliceDone& done = outbox_.done[0];
  if (done.slice != posted.slice || done.code != Code::ok) return false;
  const Request& request = batch.requests[0];
  return request.op == Op::write || !request.crc32c || done.crc32c == *request.crc32c;
}

/// Reports the batch as done and released.
void Engine::Core::finish_directly(Batch& batch, const Direct& posted) {
  RequestResult& result = batch.results[0];
  result.bytes = batch.states[0].done = batch.requests[0].local.size();
  result.crc32c = outbox_.done[0].crc32c;
  outbox_.done.clear();
  posted.lane->bytes -= result.bytes;
  tally_.add(batch.requests[0].transfer_class == TransferClass::urgent ? Count::urgent_bytes : Count::bulk_bytes,
             result.bytes);
  ++round_;
  release_slice(posted.index);
  batch.states[0].finished = true;
  batch.unfinished = 0;
  tally_.add(Count::batches_done);
  access_.unpin(batch.pins);
  batch.pins.clear();
  Event event{.kind = Event::Kind::batch_done, .batch = batch.id, .cookie = batch.cookie};
  {
    std::lock_guard lock(mutex_);
    batch.done = batch.released = true;
  }
  emit(std::move(event));
  changed_.notify_all();
}

/// Under the turn. `until`: when the loop must turn next, if the batch is over. False: it goes the usual way.
Engine::Core::Begun Engine::Core::begin_directly(Batch& batch, TimePoint& until) {
  Direct posted;
  if (!post_directly(batch, posted)) return Begun::no;
  until = transport_of(posted.route).look(outbox_);
  if (plainly_done(batch, posted)) {
    finish_directly(batch, posted);
    return until == TimePoint::min() ? Begun::yes : Begun::over;
  }
  running_.emplace(batch.id, &batch);
  deadlines_.emplace(batch.deadline, batch.id);
  return Begun::yes;
}

}  // namespace mc::xfer

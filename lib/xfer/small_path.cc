#include "xfer/small_path.h"

#include <utility>

#include "base/assert.h"

namespace mc::xfer {

/// Whether known_ is the target of the request. False: the request may not be posted now.
bool SmallPath::targets(const Request& request) {
  // A peer without work is not busy, so nothing waits for its lanes.
  const bool same = known_.peer == request.peer && known_.buffer == request.buffer;
  if (!same || !parts_.peers.busy().empty() || !parts_.lanes.idle(*known_.lane.state)) [[unlikely]]
    if (!find_target(request)) return false;
  return (request.op == Op::read ? known_.reads : known_.writes) &&
         inside(request.offset, request.local.size(), known_.length);
}

/// Makes known_ the target of the request. False: there is none now.
bool SmallPath::find_target(const Request& request) {
  known_ = {};
  Peer* peer = parts_.peers.find(request.peer);
  if (peer == nullptr || peer->gone || !peer->descriptor) return false;
  const BufferInfo* buffer = peer->descriptor->find(request.buffer);
  if (buffer == nullptr) return false;
  size_t route = 0;
  while (route < peer->routes.size() &&
         (peer->routes[route].up.empty() || !parts_.transports.entry(route).covers(*buffer)))
    ++route;
  if (route == peer->routes.size() || !peer->routes[route].queue.idle()) return false;  // requests that wait go first
  const Options& options = parts_.options;
  if (parts_.transports.entry(route).maps_memory && request.local.size() <= options.here_bytes_max &&
      !options.faults.any())
    return false;  // the caller copies the bytes itself
  const Lanes::Lane lane = parts_.lanes.emptiest(peer->routes[route].up);
  if (lane.state == nullptr) return false;
  const auto allows = [&](Op op) { return judge(buffer, op, 0, 0, parts_.services.instance) == Denial::none; };
  known_ = {.peer = request.peer,
            .buffer = request.buffer,
            .length = buffer->length,
            .reads = allows(Op::read),
            .writes = allows(Op::write),
            .route = route,
            .snapshot = peer->descriptor->version,
            .lane = lane};
  return true;
}

// A slice that has completed at the first look is reported without a round (always with soft-RoCE, whose post carries
// the bytes). The deadline is not checked before the batch joins the others, which saves a reading of the clock.
//
// Code that runs beside the verbs costs twice: its own time, and the cache lines that it evicts. A dozen allocations
// between two posts made each post a tenth slower in the emulated machine.
SmallPath::Begun SmallPath::begin(const Request& request, TimePoint deadline, uint64_t cookie) {
  if (flying()) {
    look();
    (void)join();
  }
  if (!parts_.reports.empty()) return {};
  if (!targets(request) || !parts_.access.pin(request.local, local_)) return {};
  const bool entered = parts_.batches.enter();
  const BatchId id = entered ? table_.open() : BatchId::none;
  const Slice slice{.id = parts_.slices.lend(),
                    .op = request.op,
                    .checksum = request.op == Op::read && request.crc32c.has_value(),
                    .buffer = request.buffer,
                    .snapshot = known_.snapshot,
                    .offset = request.offset,
                    .local = request.local};
  Transport& transport = parts_.transports[known_.route];
  if (id == BatchId::none || !transport.post_alone(known_.lane.endpoint, known_.lane.index, slice, parts_.reports)) {
    if (id != BatchId::none) table_.drop(id);
    if (entered) parts_.batches.leave();
    parts_.access.unpin(local_);
    return {};
  }
  ++begun_;
  flying_.id = id;
  flying_.cookie = cookie;
  flying_.deadline = deadline;
  flying_.slice = slice.id;
  flying_.looks = 0;
  Tally& tally = parts_.tally;
  tally.add(Count::batches_submitted);
  tally.add(Count::slices_posted);
  tally.add(parts_.transports.row(known_.route), Flow::slices, 1);
  Begun begun{.id = id};
  if (ended(request, begun.until)) return begun;
  Lanes::enter(*known_.lane.state, request.local.size());
  tally.add(Count::slices_in_flight);
  request_ = request;
  if (parts_.reports.empty() && begun.until != TimePoint::min()) return begun;
  (void)join();  // other work has come up, or the transport must be served
  begun.until = TimePoint::min();
  return begun;
}

/// Looks for the completion of the slice. True: the batch is done, and nothing flies any more. `until`: time of the
/// next timer of the transport.
bool SmallPath::ended(const Request& request, TimePoint& until) {
  Transport& transport = parts_.transports[known_.route];
  const uint64_t slice = flying_.slice;
  uint32_t crc = 0;
  // Other slices, and notifies of other peers, are looked for as well.
  if (parts_.slices.count() > 0 || begun_ % kWideLook == 0) transport.keep_alone();
  if (!transport.end_alone(slice, crc, until, parts_.reports)) return false;
  const bool checked = request.op == Op::read && request.crc32c.has_value();
  if (checked && crc != *request.crc32c) {
    parts_.reports.done.push_back({.slice = slice, .crc32c = crc});  // an error is reported like that of any batch
    return false;
  }
  const uint64_t bytes = request.local.size();
  parts_.access.unpin(local_);
  Tally& tally = parts_.tally;
  tally.add(bytes_of(request.transfer_class), bytes);
  tally.add(Count::batches_done);
  const BatchId id = std::exchange(flying_.id, BatchId::none);
  table_.finish(id, {.bytes = bytes, .crc32c = checked ? crc : 0});
  parts_.events.push_done(id, flying_.cookie);
  return true;
}

void SmallPath::look() {
  MC_ASSERT(flying());
  TimePoint until{};
  if (ended(request_, until)) {
    parts_.lanes.leave(*known_.lane.state, request_.local.size());
    parts_.tally.sub(Count::slices_in_flight);
  } else if (!parts_.reports.empty() || until == TimePoint::min() || ++flying_.looks == kLooksMax) {
    (void)join();
  }
}

bool SmallPath::join() {
  if (!flying()) return false;
  parts_.transports[known_.route].keep_alone();
  auto batch = parts_.batches.make();
  batch->id = std::exchange(flying_.id, BatchId::none);
  batch->cookie = flying_.cookie;
  batch->deadline = flying_.deadline;
  batch->requests.push_back(request_);
  batch->states.push_back({.cut = request_.local.size()});
  batch->results.emplace_back();
  batch->pins.push_back(local_.buffer());
  batch->unfinished = 1;
  OpenBatch& open = *batch;
  parts_.slices.adopt(open, flying_.slice, known_.lane.endpoint, known_.lane.index);
  parts_.batches.keep(std::move(batch));  // before the slot is free, so that the id is never unknown to a caller
  table_.drop(open.id);
  running_.add(open);
  return true;
}

}  // namespace mc::xfer

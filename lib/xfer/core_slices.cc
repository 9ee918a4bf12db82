// Requests become slices here, and slices find lanes. Binding is late: a slice is cut when a lane has
// room for it, so a slow lane simply takes fewer (RDMA notes, A8).
#include <algorithm>

#include "base/assert.h"
#include "base/hash.h"
#include "xfer/core.h"

namespace mc::xfer {
namespace {

constexpr size_t kPostMax = 256;                       // slices offered to a lane in one call
constexpr uint64_t kPostBytesMax = uint64_t{1} << 20;  // bytes before the next lane gets its turn

/// Never worth another attempt: the peer understood and refused.
bool is_final(Code code) {
  return code == Code::invalid || code == Code::not_found || code == Code::unsupported || code == Code::cancelled;
}

std::string request_text(const Request& request) {
  return std::string(request.op == Op::read ? "read" : "write") + " of buffer " + std::to_string(request.buffer) +
         " [" + std::to_string(request.offset) + ", +" + std::to_string(request.local.size()) + ")";
}

}  // namespace

void Engine::Core::intake(Batch& batch) {
  running_.emplace(batch.id, &batch);
  deadlines_.emplace(batch.deadline, batch.id);
  tally_.add(Count::batches_submitted);
  for (uint32_t i = 0; i < batch.requests.size(); ++i) assign(batch, i);
  unsettled_.insert(batch.id);
}

/// Whether the peer lets us do that.
bool Engine::Core::allowed(const BufferInfo& buffer, const Request& request) const {
  if (buffer.access != (request.op == Op::write ? AccessClass::landing : AccessClass::blocks)) return false;
  if (request.op == Op::write && !buffer.writer.is_zero() && buffer.writer != home_.instance) return false;
  return inside(request.offset, request.local.size(), buffer.length);
}

/// Checks a request against what the peer offers. False: it was finished with an error.
bool Engine::Core::check_remote(const Peer& peer, Batch& batch, uint32_t index) {
  const Request& request = batch.requests[index];
  const BufferInfo* buffer = peer.descriptor->find(request.buffer);
  if (buffer != nullptr && allowed(*buffer, request)) return true;
  const auto refuse = [&](Code code, const std::string& why) {
    finish_request(batch, index, code, request_text(request) + " of peer '" + peer.name + "': " + why);
    return false;
  };
  if (buffer == nullptr)
    return refuse(Code::not_found,
                  "it offers no such buffer (descriptor version " + std::to_string(peer.descriptor->version) + ")");
  if (request.op == Op::write && buffer->access != AccessClass::landing)
    return refuse(Code::invalid, "'" + buffer->name + "' may only be read");
  if (request.op == Op::read && buffer->access != AccessClass::blocks)
    return refuse(Code::invalid, "'" + buffer->name + "' may only be written");
  if (request.op == Op::write && !buffer->writer.is_zero() && buffer->writer != home_.instance)
    return refuse(Code::invalid, "'" + buffer->name + "' is another node's landing buffer");
  return refuse(Code::invalid,
                "beyond the end of '" + buffer->name + "', " + std::to_string(buffer->length) + " bytes");
}

/// The first route that is up and covers the buffer; else one worth waiting for; else routes.size().
size_t Engine::Core::pick_route(Peer& peer, const BufferInfo& buffer, TimePoint now) {
  size_t waiting = peer.routes.size();
  for (size_t i = 0; i < peer.routes.size(); ++i) {
    const Route& route = peer.routes[i];
    if (!active_[i].entry->covers(buffer)) continue;
    if (!route.up.empty()) return i;
    if (!route.usable || route.dead) continue;
    if (waiting == peer.routes.size()) {
      waiting = i;
      continue;
    }
    // a route that may be dialled now beats one that has just failed
    if (route.next_try <= now && peer.routes[waiting].next_try > now) waiting = i;
  }
  return waiting;
}

void Engine::Core::assign(Batch& batch, uint32_t index) {
  if (batch.states[index].finished) return;
  const Request& request = batch.requests[index];
  Peer* peer = find_peer(request.peer);
  if (peer == nullptr)
    return finish_request(batch, index, Code::not_found,
                          request_text(request) + ": peer " + std::to_string(static_cast<uint64_t>(request.peer)) +
                              " is not known (disconnected?)");
  if (peer->gone)
    return finish_request(batch, index, Code::peer_lost,
                          request_text(request) + " of peer '" + peer->name + "': " + peer->last_error);
  busy_.insert(peer->id);
  if (!peer->descriptor) {
    peer->waiting.push_back({&batch, index});
    return;
  }
  if (!check_remote(*peer, batch, index)) return;
  if (request.local.empty()) return finish_request(batch, index, Code::ok, {});
  const BufferInfo& buffer = *peer->descriptor->find(request.buffer);
  const size_t route = pick_route(*peer, buffer, SystemClock::instance().now());
  if (route == peer->routes.size()) {
    const std::string why = peer->last_error.empty() ? "no transport reaches it" : peer->last_error;
    return finish_request(batch, index, Code::peer_lost,
                          request_text(request) + " of peer '" + peer->name + "': " + why);
  }
  peer->routes[route].of(request.transfer_class).queue.push_back({&batch, index});
}

/// Moves the work of a route that cannot do it now to one that can.
void Engine::Core::reassign(Peer& peer, size_t index) {
  Route& route = peer.routes[index];
  auto waiting = std::exchange(route.waiting, {});
  const PeerId id = peer.id;
  std::deque<uint32_t> retry;
  for (auto& each : waiting) {
    for (const Work& work : each.queue) assign(*work.batch, work.request);
    retry.insert(retry.end(), each.retry.begin(), each.retry.end());
  }
  const TimePoint now = SystemClock::instance().now();
  for (const uint32_t slice : retry) {
    Peer* again = find_peer(id);
    MC_ASSERT(again != nullptr);
    SliceRecord& record = slices_[slice];
    if (record.state != SliceRecord::State::retry) continue;  // went with an earlier slice of its request
    Batch& batch = *record.batch;
    const uint32_t request = record.request;
    const BufferInfo* buffer = again->descriptor->find(batch.requests[request].buffer);
    const size_t to = buffer == nullptr || again->gone ? again->routes.size() : pick_route(*again, *buffer, now);
    if (to == again->routes.size()) {
      free_slice(slice);
      finish_request(batch, request, buffer == nullptr ? Code::not_found : Code::peer_lost,
                     request_text(batch.requests[request]) + " of peer '" + again->name + "': " + again->last_error);
      continue;
    }
    if (to != index) tally_.add(Count::slices_failed_over);
    again->routes[to].of(class_of(slices_[slice])).retry.push_back(slice);
  }
}

uint64_t Engine::Core::slice_id(uint32_t index) const {
  return static_cast<uint64_t>(slices_[index].generation) << 32 | index;
}

SliceRecord* Engine::Core::find_slice(uint64_t id, uint32_t& index) {
  index = static_cast<uint32_t>(id);
  if (index >= slices_.size() || slices_[index].generation != id >> 32) return nullptr;
  const auto state = slices_[index].state;
  return state == SliceRecord::State::posted || state == SliceRecord::State::quarantined ? &slices_[index] : nullptr;
}

uint32_t Engine::Core::new_slice(Batch& batch, uint32_t request, uint64_t at, uint32_t bytes) {
  if (free_slices_.empty()) {
    slices_.emplace_back();
    free_slices_.push_back(static_cast<uint32_t>(slices_.size() - 1));
  }
  const uint32_t index = free_slices_.back();
  free_slices_.pop_back();
  const uint32_t generation = slices_[index].generation + 1;
  slices_[index] = {.state = SliceRecord::State::retry,
                    .generation = generation,
                    .batch = &batch,
                    .request = request,
                    .at = at,
                    .bytes = bytes};
  ++batch.slices;
  ++batch.states[request].slices;
  tally_.add(Count::slices_in_flight);
  return index;
}

void Engine::Core::free_slice(uint32_t index) {
  SliceRecord& slice = slices_[index];
  MC_ASSERT(slice.state != SliceRecord::State::free);
  Batch& batch = *slice.batch;
  if (slice.state == SliceRecord::State::quarantined) {
    batch.quarantined -= slice.bytes;
    tally_.sub(Count::quarantined_bytes, slice.bytes);
  }
  unsettled_.insert(batch.id);
  release_slice(index);
}

void Engine::Core::release_slice(uint32_t index) {
  SliceRecord& slice = slices_[index];
  --slice.batch->slices;
  --slice.batch->states[slice.request].slices;
  tally_.sub(Count::slices_in_flight);
  slice.state = SliceRecord::State::free;
  slice.batch = nullptr;
  free_slices_.push_back(index);
}

/// Does the slice carry the immediate of its request? The last one does, and is cut when all others are done.
bool Engine::Core::tells(const SliceRecord& slice) const {
  const Request& request = slice.batch->requests[slice.request];
  return request.immediate.has_value() && slice.at + slice.bytes == request.local.size();
}

TransferClass Engine::Core::class_of(const SliceRecord& slice) const {
  return slice.batch->requests[slice.request].transfer_class;
}

/// The next slice to post on a route, at most `wanted` bytes: of the class whose turn it is, one that failed before,
/// else a fresh cut.
bool Engine::Core::next_slice(Peer& peer, size_t route_index, size_t lane_count, uint64_t wanted, TimePoint now,
                              uint32_t& index) {
  Route& route = peer.routes[route_index];
  const uint64_t most = std::clamp(wanted & ~uint64_t{4095}, options_.slice_bytes_min, options_.slice_bytes_max);
  const auto size_of = [&](const Work& work) {
    const uint64_t total = work.batch->requests[work.request].local.size();
    const uint64_t bytes = std::clamp<uint64_t>(total / (8 * lane_count), options_.slice_bytes_min, most);
    return std::min((bytes + 4095) & ~uint64_t{4095}, total - work.batch->states[work.request].cut);
  };
  const auto over = [&](const Work& work) {
    const RequestState& state = work.batch->states[work.request];
    const Request& request = work.batch->requests[work.request];
    if (state.finished || state.cut == request.local.size()) return true;
    // the slice that tells the peer waits for the others: slice_finished() brings the request back
    return request.immediate && state.slices > 0 && state.cut + size_of(work) == request.local.size();
  };
  for (auto& waiting : route.waiting)  // so that a class that waits has something
    while (!waiting.queue.empty() && over(waiting.queue.front())) waiting.queue.pop_front();
  if (route.idle()) return false;
  const TransferClass turn =
      route.order.next(!route.of(TransferClass::urgent).empty(), !route.of(TransferClass::bulk).empty(), now);
  auto& [queue, retry] = route.of(turn);
  if (!retry.empty()) {
    index = retry.front();
    retry.pop_front();
    const SliceRecord whole = slices_[index];
    if (whole.bytes <= most || tells(whole)) return true;
    // cut for a faster lane
    const auto rest = static_cast<uint32_t>(whole.bytes - most);
    const uint32_t other = new_slice(*whole.batch, whole.request, whole.at + most, rest);
    slices_[other].attempts = whole.attempts;
    slices_[index].bytes = static_cast<uint32_t>(most);
    retry.push_front(other);
    return true;
  }
  const Work work = queue.front();
  RequestState& state = work.batch->states[work.request];
  const uint64_t bytes = size_of(work);
  index = new_slice(*work.batch, work.request, state.cut, static_cast<uint32_t>(bytes));
  state.cut += bytes;
  if (over(work)) queue.pop_front();
  return true;
}

LaneState* Engine::Core::emptiest_lane(Route& route, EndpointId& endpoint, int& lane) {
  LaneState* best = nullptr;
  for (const EndpointId id : route.up) {
    EndpointState& state = endpoints_.at(id);
    for (size_t i = 0; i < state.lanes.size(); ++i) {
      LaneState& candidate = state.lanes[i];
      if (candidate.full_round == round_ || (best != nullptr && candidate.bytes >= best->bytes)) continue;
      best = &candidate;
      endpoint = id;
      lane = static_cast<int>(i);
    }
  }
  return best;
}

/// One turn for every route of a peer. True when there is more to do without waiting.
bool Engine::Core::pump(Peer& peer) {
  bool more = false;
  for (size_t i = 0; i < peer.routes.size(); ++i)
    if (!peer.routes[i].up.empty() && !peer.routes[i].idle()) more |= pump_route(peer, i);
  return more;
}

bool Engine::Core::pump_route(Peer& peer, size_t route_index) {
  Route& route = peer.routes[route_index];
  size_t lane_count = 0;
  for (const EndpointId id : route.up) lane_count += endpoints_.at(id).lanes.size();
  const TimePoint now = SystemClock::instance().now();
  Indices offered;
  std::vector<Slice> slices;
  // each lane gets at most one turn a call: others, and the sockets, get theirs before the next
  for (size_t turn = 0; turn < lane_count && !route.idle(); ++turn) {
    EndpointId endpoint{};
    int lane_index = 0;
    LaneState* lane = emptiest_lane(route, endpoint, lane_index);
    if (lane == nullptr) return false;
    offered.clear();
    slices.clear();
    uint64_t bytes = 0;
    uint32_t index;
    const TimePoint bulk_since = route.order.bulk_since();
    const uint64_t wanted = transport_of(route_index).slice_bytes(endpoint, lane_index);
    while (slices.size() < kPostMax && bytes < kPostBytesMax &&
           next_slice(peer, route_index, lane_count, wanted, now, index)) {
      SliceRecord& record = slices_[index];
      const Request& request = record.batch->requests[record.request];
      record.endpoint = endpoint;
      record.lane = lane_index;
      slices.push_back({.id = slice_id(index),
                        .op = request.op,
                        .checksum = request.op == Op::read && request.crc32c.has_value(),
                        .buffer = request.buffer,
                        .snapshot = peer.descriptor->version,
                        .offset = request.offset + record.at,
                        .local = request.local.subspan(record.at, record.bytes),
                        .immediate = tells(record) ? request.immediate : std::nullopt});
      offered.push_back(index);
      bytes += record.bytes;
    }
    if (slices.empty()) break;
    const size_t taken = transport_of(route_index).post(endpoint, lane_index, slices, outbox_);
    MC_ASSERT_LE(taken, slices.size());
    for (size_t i = 0; i < taken; ++i) {
      SliceRecord& record = slices_[offered[i]];
      record.state = SliceRecord::State::posted;
      ++record.attempts;
      lane->bytes += record.bytes;
    }
    tally_.add(Count::slices_posted, taken);
    tally_.add(active_[route_index].row, Flow::slices, taken);
    for (size_t i = offered.size(); i > taken; --i)  // not an attempt
      route.of(class_of(slices_[offered[i - 1]])).retry.push_front(offered[i - 1]);
    const bool bulk_moved = std::any_of(offered.begin(), offered.begin() + static_cast<ptrdiff_t>(taken),
                                        [&](uint32_t i) { return class_of(slices_[i]) == TransferClass::bulk; });
    if (!bulk_moved) route.order.restore(bulk_since == kNever ? now : bulk_since);
    if (taken < offered.size()) lane->full_round = round_;
  }
  EndpointId endpoint{};
  int lane = 0;
  return !route.idle() && emptiest_lane(route, endpoint, lane) != nullptr;
}

void Engine::Core::leave_lane(SliceRecord& slice) {
  const auto at = endpoints_.find(slice.endpoint);
  if (at == endpoints_.end()) return;
  LaneState& lane = at->second.lanes[static_cast<size_t>(slice.lane)];
  MC_ASSERT_LE(slice.bytes, lane.bytes);
  lane.bytes -= slice.bytes;
  ++round_;
}

void Engine::Core::on_done(SliceDone& done) {
  uint32_t index;
  SliceRecord* slice = find_slice(done.slice, index);
  if (slice == nullptr) {
    tally_.add(Count::completions_unknown);
    return;
  }
  leave_lane(*slice);
  if (slice->state == SliceRecord::State::quarantined) return free_slice(index);
  if (done.code == Code::ok) return slice_finished(index, done.crc32c);
  slice_failed(index, done.code, done.text, done.unseen);
}

void Engine::Core::slice_finished(uint32_t index, uint32_t crc) {
  const SliceRecord slice = slices_[index];
  Batch& batch = *slice.batch;
  free_slice(index);
  RequestState& state = batch.states[slice.request];
  if (state.finished) return;
  const Request& request = batch.requests[slice.request];
  const uint64_t total = request.local.size();
  state.done += slice.bytes;
  tally_.add(request.transfer_class == TransferClass::urgent ? Count::urgent_bytes : Count::bulk_bytes, slice.bytes);
  batch.results[slice.request].bytes = state.done;
  const bool checked = request.op == Op::read && request.crc32c.has_value();
  if (checked) state.crc ^= crc32c_shift(crc, total - slice.at - slice.bytes);
  if (state.done < total) {
    if (request.immediate && state.slices == 0) assign(batch, slice.request);  // its last slice may go now
    return;
  }
  if (checked) {
    batch.results[slice.request].crc32c = state.crc;
    if (state.crc != *request.crc32c) {
      tally_.add(Count::checksum_failures);
      return finish_request(batch, slice.request, Code::corrupt,
                            request_text(request) + ": the bytes sum to another CRC32C than expected");
    }
  }
  finish_request(batch, slice.request, Code::ok, {});
}

void Engine::Core::slice_failed(uint32_t index, Code code, const std::string& text, bool unseen) {
  SliceRecord& slice = slices_[index];
  Batch& batch = *slice.batch;
  const uint32_t request = slice.request;
  const Request& asked = batch.requests[request];
  Peer* peer = find_peer(asked.peer);
  if (batch.states[request].finished || peer == nullptr || is_final(code) || slice.attempts >= options_.attempts_max) {
    const int attempts = slice.attempts;
    free_slice(index);
    finish_request(batch, request, code,
                   request_text(asked) + ": " + text + " (attempt " + std::to_string(attempts) + ")");
    return;
  }
  if (tells(slice) && !unseen) {
    free_slice(index);
    return finish_request(batch, request, Code::peer_lost,
                          request_text(asked) + ": " + text + "; whether the peer saw its immediate is not known");
  }
  tally_.add(Count::slices_retried);
  slice.state = SliceRecord::State::retry;
  ++slice.generation;  // a new id: a late completion of this attempt must not end the next
  const auto at = endpoints_.find(slice.endpoint);
  const size_t route = at == endpoints_.end() ? 0 : at->second.route;
  slice.endpoint = EndpointId::none;
  peer->routes[route].of(asked.transfer_class).retry.push_back(index);
  busy_.insert(peer->id);
}

/// Every slice the endpoint still had is free of it now (contract of `lost`).
void Engine::Core::endpoint_died(EndpointId id, Code code, const std::string& text) {
  for (uint32_t i = 0; i < slices_.size(); ++i) {
    SliceRecord& slice = slices_[i];
    if (slice.endpoint != id) continue;
    if (slice.state == SliceRecord::State::quarantined)
      free_slice(i);
    else if (slice.state == SliceRecord::State::posted)
      slice_failed(i, is_final(code) ? Code::peer_lost : code, text, false);
  }
}

}  // namespace mc::xfer

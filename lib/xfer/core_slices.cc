// Requests become slices here, and slices find lanes. Binding is late: a slice is cut when a lane has
// room for it, so a slow lane simply takes fewer (RDMA notes, A8).
#include <algorithm>
#include <array>

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

/// Most bytes of a slice, for a lane that wants `wanted`.
uint64_t most_bytes(const Options& options, uint64_t wanted) {
  return std::clamp(wanted & ~uint64_t{4095}, options.slice_bytes_min, options.slice_bytes_max);
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
    for (const auto* queue : {&each.queue, &each.telling})
      for (const Work& work : *queue) assign(*work.batch, work.request);
    for (const auto* slices : {&each.retry, &each.retelling}) retry.insert(retry.end(), slices->begin(), slices->end());
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
    put_back(again->routes[to], slice, false);
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

/// How large the next slice of a request is.
uint64_t Engine::Core::cut_bytes(const Work& work, const LaneTurn& turn) const {
  const uint64_t total = work.batch->requests[work.request].local.size();
  const uint64_t bytes =
      std::clamp<uint64_t>(total / (8 * turn.lane_count), options_.slice_bytes_min, most_bytes(options_, turn.wanted));
  return std::min((bytes + 4095) & ~uint64_t{4095}, total - work.batch->states[work.request].cut);
}

bool Engine::Core::next_cut_tells(const Work& work, const LaneTurn& turn) const {
  const Request& request = work.batch->requests[work.request];
  return request.immediate && work.batch->states[work.request].cut + cut_bytes(work, turn) == request.local.size();
}

/// True when the request is wholly cut, or when its last slice, which notifies the peer, waits for the others:
/// slice_finished() takes that slice up again.
bool Engine::Core::nothing_to_cut(const Work& work, const LaneTurn& turn) const {
  const RequestState& state = work.batch->states[work.request];
  if (state.finished || state.cut == work.batch->requests[work.request].local.size()) return true;
  return state.slices > 0 && next_cut_tells(work, turn);
}

/// So that what is in front can be posted; those in front that tell go to their own queue.
void Engine::Core::sort_out(Route& route, const LaneTurn& turn) const {
  for (auto& waiting : route.waiting) {
    for (auto& queue = waiting.queue; !queue.empty(); queue.pop_front()) {
      if (nothing_to_cut(queue.front(), turn)) continue;
      if (!next_cut_tells(queue.front(), turn)) break;
      waiting.telling.push_back(queue.front());
    }
    auto& telling = waiting.telling;
    while (!telling.empty() && nothing_to_cut(telling.front(), turn)) telling.pop_front();
  }
}

/// A slice that is to be posted later.
void Engine::Core::put_back(Route& route, uint32_t index, bool first) {
  auto& waiting = route.of(class_of(slices_[index]));
  auto& queue = tells(slices_[index]) ? waiting.retelling : waiting.retry;
  if (first)
    queue.push_front(index);
  else
    queue.push_back(index);
}

/// The next slice to post on a lane: of the class whose turn it is, one with an immediate and one without in turn; one
/// that failed before, else a fresh cut.
bool Engine::Core::next_slice(Route& route, const LaneTurn& turn, uint32_t& index) {
  sort_out(route, turn);
  const bool tells = turn.tells > 0;
  const bool urgent = route.of(TransferClass::urgent).ready(tells), bulk = route.of(TransferClass::bulk).ready(tells);
  if (!urgent && !bulk) return false;
  auto& waiting = route.of(route.order.next(urgent, bulk, turn.now));
  const bool tell = waiting.told = waiting.tells_next(tells);
  if (tell && !waiting.retelling.empty()) {
    index = waiting.retelling.front();
    waiting.retelling.pop_front();
    return true;
  }
  if (!tell && !waiting.retry.empty()) {
    index = waiting.retry.front();
    waiting.retry.pop_front();
    const uint64_t most = most_bytes(options_, turn.wanted);
    const SliceRecord whole = slices_[index];
    if (whole.bytes <= most) return true;
    // cut for a faster lane
    const auto rest = static_cast<uint32_t>(whole.bytes - most);
    const uint32_t other = new_slice(*whole.batch, whole.request, whole.at + most, rest);
    slices_[other].attempts = whole.attempts;
    slices_[index].bytes = static_cast<uint32_t>(most);
    waiting.retry.push_front(other);
    return true;
  }
  auto& queue = tell ? waiting.telling : waiting.queue;
  const Work work = queue.front();
  RequestState& state = work.batch->states[work.request];
  const uint64_t bytes = cut_bytes(work, turn);
  index = new_slice(*work.batch, work.request, state.cut, static_cast<uint32_t>(bytes));
  state.cut += bytes;
  if (nothing_to_cut(work, turn)) queue.pop_front();
  return true;
}

LaneState* Engine::Core::emptiest_lane(Route& route, EndpointId& endpoint, int& lane) {
  LaneState* best = nullptr;
  for (const EndpointId id : route.up) {
    EndpointState& state = endpoints_.at(id);
    for (size_t i = 0; i < state.lanes.size(); ++i) {
      LaneState& candidate = state.lanes[i];
      if (candidate.full_round == round_ || candidate.passed == pump_ ||
          (best != nullptr && candidate.bytes >= best->bytes))
        continue;
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
  ++pump_;
  LaneTurn turn{.lane_count = 0, .now = SystemClock::instance().now()};
  for (const EndpointId id : route.up) turn.lane_count += endpoints_.at(id).lanes.size();
  EndpointId endpoint{};
  int lane_index = 0;
  // each lane gets at most one turn a call: others, and the sockets, get theirs before the next
  for (size_t i = 0; i < turn.lane_count && !route.idle(); ++i) {
    LaneState* lane = emptiest_lane(route, endpoint, lane_index);
    if (lane == nullptr) return false;
    Transport& transport = transport_of(route_index);
    turn.wanted = transport.slice_bytes(endpoint, lane_index);
    turn.tells = transport.immediates_ahead(endpoint, lane_index);
    const size_t taken = offer(peer, route_index, endpoint, lane_index, turn);
    for (size_t k = 0; k < taken; ++k) lane->bytes += slices_[offered_[k]].bytes;
    if (offered_.empty()) lane->passed = pump_;
    if (taken < offered_.size()) lane->full_round = round_;
  }
  return !route.idle() && emptiest_lane(route, endpoint, lane_index) != nullptr;
}

/// Posts what a lane takes of what is next; `offered_` holds all that it was asked to take. How many it took.
size_t Engine::Core::offer(Peer& peer, size_t route_index, EndpointId endpoint, int lane, LaneTurn turn) {
  Route& route = peer.routes[route_index];
  offered_.clear();
  offers_.clear();
  uint64_t bytes = 0;
  uint32_t index;
  const TimePoint bulk_since = route.order.bulk_since();
  std::array<bool, kTransferClasses> told;
  for (size_t i = 0; i < told.size(); ++i) told[i] = route.waiting[i].told;
  while (offers_.size() < kPostMax && bytes < kPostBytesMax && next_slice(route, turn, index)) {
    SliceRecord& record = slices_[index];
    const Request& request = record.batch->requests[record.request];
    record.endpoint = endpoint;
    record.lane = lane;
    const bool telling = tells(record);
    turn.tells -= telling ? 1 : 0;
    offers_.push_back({.id = slice_id(index),
                       .op = request.op,
                       .checksum = request.op == Op::read && request.crc32c.has_value(),
                       .buffer = request.buffer,
                       .snapshot = peer.descriptor->version,
                       .offset = request.offset + record.at,
                       .local = request.local.subspan(record.at, record.bytes),
                       .immediate = telling ? request.immediate : std::nullopt});
    offered_.push_back(index);
    bytes += record.bytes;
  }
  if (offers_.empty()) return 0;
  const size_t taken = transport_of(route_index).post(endpoint, lane, offers_, outbox_);
  MC_ASSERT_LE(taken, offers_.size());
  bool bulk_moved = false;
  for (size_t i = 0; i < told.size(); ++i) route.waiting[i].told = told[i];  // a turn that no lane took was none
  for (size_t i = 0; i < taken; ++i) {
    SliceRecord& record = slices_[offered_[i]];
    record.state = SliceRecord::State::posted;
    ++record.attempts;
    bulk_moved |= class_of(record) == TransferClass::bulk;
    route.of(class_of(record)).told = tells(record);
  }
  tally_.add(Count::slices_posted, taken);
  tally_.add(active_[route_index].row, Flow::slices, taken);
  for (size_t i = offered_.size(); i > taken; --i) put_back(route, offered_[i - 1], true);  // not an attempt
  if (!bulk_moved) route.order.restore(bulk_since == kNever ? turn.now : bulk_since);
  return taken;
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
  put_back(peer->routes[route], index, false);
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

#include "xfer/dispatcher.h"

#include <utility>

#include "base/assert.h"
#include "base/hash.h"

namespace mc::xfer {
namespace {

/// Errors that a retry cannot mend, because the peer understood the request and refused it.
bool is_final(Code code) {
  return code == Code::invalid || code == Code::not_found || code == Code::unsupported || code == Code::cancelled;
}

}  // namespace

bool Dispatcher::pump(Peer& peer) {
  bool more = false;
  for (size_t i = 0; i < peer.routes.size(); ++i)
    if (!peer.routes[i].up.empty() && !peer.routes[i].queue.idle()) more |= pump_route(peer, i);
  return more;
}

bool Dispatcher::pump_route(Peer& peer, size_t index) {
  Route& route = peer.routes[index];
  Lanes& lanes = parts_.lanes;
  lanes.new_pass();
  LaneOffer ask{.lane_count = lanes.count(route.up), .now = SystemClock::instance().now()};
  // Each lane gets at most one turn in a call. The other lanes and the sockets get theirs before the next.
  for (size_t i = 0; i < ask.lane_count && !route.queue.idle(); ++i) {
    const Lanes::Lane lane = lanes.emptiest(route.up);
    if (lane.state == nullptr) return false;
    const Transport& transport = parts_.transports[index];
    ask.wanted = transport.slice_bytes(lane.endpoint, lane.index);
    ask.tells = transport.immediates_ahead(lane.endpoint, lane.index);
    const size_t taken = offer(peer, index, lane, ask);
    for (size_t k = 0; k < taken; ++k) Lanes::enter(*lane.state, parts_.slices[offered_[k]].bytes);
    if (offered_.empty()) lanes.pass(*lane.state);
    if (taken < offered_.size()) lanes.full(*lane.state);
  }
  return !route.queue.idle() && lanes.emptiest(route.up).state != nullptr;
}

/// The slice for a transport. `snapshot`: version of the descriptor that the slice was checked against.
Slice Dispatcher::slice_of(uint32_t index, uint32_t snapshot) const {
  const SliceRecord& record = parts_.slices[index];
  const Request& request = record.asked();
  return {.id = parts_.slices.id(index),
          .op = request.op,
          .checksum = request.op == Op::read && request.crc32c.has_value(),
          .buffer = request.buffer,
          .snapshot = snapshot,
          .offset = request.offset + record.at,
          .local = request.local.subspan(record.at, record.bytes),
          .immediate = record.tells() ? request.immediate : std::nullopt};
}

/// Posts the next slices on a lane and returns how many it took. `offered_` has all slices that were offered.
size_t Dispatcher::offer(Peer& peer, size_t index, const Lanes::Lane& lane, LaneOffer ask) {
  RouteQueue& queue = peer.routes[index].queue;
  offered_.clear();
  offers_.clear();
  uint64_t bytes = 0;
  const RouteQueue::Turn turn = queue.turn();
  while (offers_.size() < kPostMax && bytes < kPostBytesMax) {
    const auto next = queue.next(ask);
    if (!next) break;
    offers_.push_back(slice_of(*next, peer.descriptor->version));
    offered_.push_back(*next);
    if (offers_.back().immediate) --ask.tells;
    bytes += offers_.back().local.size();
  }
  MC_ASSERT_EQ(offers_.size(), offered_.size());
  if (offers_.empty()) return 0;
  const size_t taken = parts_.transports[index].post(lane.endpoint, lane.index, offers_, parts_.reports);
  MC_ASSERT_LE(taken, offers_.size());
  for (size_t i = 0; i < taken; ++i) parts_.slices.posted(offered_[i], lane.endpoint, lane.index);
  queue.taken(turn, offered_, taken, ask.now);
  parts_.tally.add(Count::slices_posted, taken);
  parts_.tally.add(parts_.transports.row(index), Flow::slices, taken);
  return taken;
}

void Dispatcher::on_done(const SliceDone& done) {
  uint32_t index;
  const SliceRecord* slice = parts_.slices.find(done.slice, index);
  if (slice == nullptr) return parts_.tally.add(Count::completions_unknown);
  parts_.lanes.leave(*slice);
  if (slice->state == SliceRecord::State::quarantined) return running_.free_slice(index);
  if (done.code == Code::ok) return finished(index, done.crc32c);
  failed(index, done.code, done.text, done.unseen);
}

void Dispatcher::finished(uint32_t index, uint32_t crc) {
  const SliceRecord slice = parts_.slices[index];
  OpenBatch& batch = *slice.batch;
  running_.free_slice(index);
  RequestState& state = batch.states[slice.request];
  if (state.finished) return;
  const Request& request = batch.requests[slice.request];
  RequestResult& result = batch.results[slice.request];
  const uint64_t total = request.local.size();
  state.done += slice.bytes;
  MC_ASSERT_LE(state.done, state.cut);
  MC_ASSERT_LE(state.cut, total);
  parts_.tally.add(bytes_of(request.transfer_class), slice.bytes);
  result.bytes = state.done;
  const bool checked = request.op == Op::read && request.crc32c.has_value();
  if (checked) state.crc ^= crc32c_shift(crc, total - slice.at - slice.bytes);
  if (state.done < total) {
    // The last slice of the request, which carries the immediate, may be cut now.
    if (request.immediate && state.slices == 0) router_.assign(batch, slice.request);
    return;
  }
  if (checked) {
    result.crc32c = state.crc;
    if (state.crc != *request.crc32c) {
      parts_.tally.add(Count::checksum_failures);
      return running_.finish_request(batch, slice.request, Code::corrupt,
                                     request_text(request) + ": the bytes sum to another CRC32C than expected");
    }
  }
  running_.finish_request(batch, slice.request, Code::ok, {});
}

void Dispatcher::failed(uint32_t index, Code code, const std::string& text, bool unseen) {
  const SliceRecord slice = parts_.slices[index];
  OpenBatch& batch = *slice.batch;
  const Request& asked = slice.asked();
  const auto end = [&](Code with, const std::string& why) {
    running_.free_slice(index);
    running_.finish_request(batch, slice.request, with, request_text(asked) + ": " + text + why);
  };
  Peer* peer = parts_.peers.find(asked.peer);
  if (batch.states[slice.request].finished || peer == nullptr || is_final(code) ||
      slice.attempts >= parts_.options.attempts_max)
    return end(code, " (attempt " + std::to_string(slice.attempts) + ")");
  if (slice.tells() && !unseen) return end(Code::peer_lost, "; whether the peer saw its immediate is not known");
  parts_.tally.add(Count::slices_retried);
  parts_.slices.retry(index);
  const EndpointState* endpoint = parts_.lanes.find(slice.endpoint);
  peer->routes[endpoint == nullptr ? 0 : endpoint->route].queue.put_back(index, false);
  parts_.peers.set_busy(peer->id);
}

void Dispatcher::endpoint_died(EndpointId id, Code code, const std::string& text) {
  for (uint32_t i = 0; i < parts_.slices.size(); ++i) {
    const SliceRecord& slice = parts_.slices[i];
    if (slice.endpoint != id) continue;
    if (slice.state == SliceRecord::State::quarantined)
      running_.free_slice(i);
    else if (slice.state == SliceRecord::State::posted)
      failed(i, is_final(code) ? Code::peer_lost : code, text, false);
  }
}

}  // namespace mc::xfer

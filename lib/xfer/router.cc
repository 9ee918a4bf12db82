#include "xfer/router.h"

#include "base/assert.h"

namespace mc::xfer {

std::string request_text(const Request& request) {
  return std::string(request.op == Op::read ? "read" : "write") + " of buffer " + std::to_string(request.buffer) +
         " [" + std::to_string(request.offset) + ", +" + std::to_string(request.local.size()) + ")";
}

/// Ends a request that the peer's descriptor does not allow.
void Router::refuse(const Peer& peer, OpenBatch& batch, uint32_t index, Denial denial) {
  const Request& request = batch.requests[index];
  const BufferInfo* buffer = peer.descriptor->find(request.buffer);
  const std::string name = buffer == nullptr ? "" : "'" + buffer->name + "'";
  std::string why;
  switch (denial) {
    case Denial::none:
    case Denial::no_buffer:
      why = "it offers no such buffer (descriptor version " + std::to_string(peer.descriptor->version) + ")";
      break;
    case Denial::read_only: why = name + " may only be read"; break;
    case Denial::write_only: why = name + " may only be written"; break;
    case Denial::other_writer: why = name + " is another node's landing buffer"; break;
    case Denial::range: why = "beyond the end of " + name + ", " + std::to_string(buffer->length) + " bytes"; break;
  }
  running_.finish_request(batch, index, denial == Denial::no_buffer ? Code::not_found : Code::invalid,
                          request_text(request) + " of peer '" + peer.who.name + "': " + why);
}

/// peer.routes.size(): no route fits.
size_t Router::pick_route(const Peer& peer, const BufferInfo& buffer, TimePoint now) const {
  size_t waiting = peer.routes.size();
  for (size_t i = 0; i < peer.routes.size(); ++i) {
    const Route& route = peer.routes[i];
    if (!parts_.transports.entry(i).covers(buffer)) continue;
    if (!route.up.empty()) return i;
    if (!route.usable || route.dead) continue;
    // A route that may be dialled now goes ahead of one that has just failed.
    if (waiting == peer.routes.size() || (route.next_try <= now && peer.routes[waiting].next_try > now)) waiting = i;
  }
  return waiting;
}

void Router::assign(OpenBatch& batch, uint32_t index) {
  if (batch.states[index].finished) return;
  const Request& request = batch.requests[index];
  Peer* peer = parts_.peers.find(request.peer);
  if (peer == nullptr)
    return running_.finish_request(batch, index, Code::not_found,
                                   request_text(request) + ": peer " +
                                       std::to_string(static_cast<uint64_t>(request.peer)) +
                                       " is not known (disconnected?)");
  const auto lost = [&](const std::string& why) {
    running_.finish_request(batch, index, Code::peer_lost,
                            request_text(request) + " of peer '" + peer->who.name + "': " + why);
  };
  if (peer->gone) return lost(peer->failure.text);
  parts_.peers.set_busy(peer->id);
  if (!peer->descriptor) {
    peer->waiting.push_back({&batch, index});
    return;
  }
  const BufferInfo* buffer = peer->descriptor->find(request.buffer);
  const Denial denial = judge(buffer, request.op, request.offset, request.local.size(), parts_.services.instance);
  if (denial != Denial::none) return refuse(*peer, batch, index, denial);
  if (request.local.empty()) return running_.finish_request(batch, index, Code::ok, {});
  const size_t route = pick_route(*peer, *buffer, SystemClock::instance().now());
  if (route == peer->routes.size())
    return lost(peer->failure.text.empty() ? "no transport reaches it" : peer->failure.text);
  peer->routes[route].queue.push({&batch, index});
}

void Router::reassign(Peer& peer, size_t index) {
  const auto waiting = peer.routes[index].queue.take_all();
  for (const QueuedRequest& request : waiting.requests) assign(request);
  const TimePoint now = SystemClock::instance().now();
  for (const uint32_t slice : waiting.slices) {
    const SliceRecord& record = parts_.slices[slice];
    // The slice was ended with an earlier slice of its request.
    if (record.state != SliceRecord::State::waiting) continue;
    OpenBatch& batch = *record.batch;
    const uint32_t request = record.request;
    const BufferInfo* buffer = peer.descriptor->find(batch.requests[request].buffer);
    const size_t to = buffer == nullptr || peer.gone ? peer.routes.size() : pick_route(peer, *buffer, now);
    if (to == peer.routes.size()) {
      running_.free_slice(slice);
      running_.finish_request(
          batch, request, buffer == nullptr ? Code::not_found : Code::peer_lost,
          request_text(batch.requests[request]) + " of peer '" + peer.who.name + "': " + peer.failure.text);
      continue;
    }
    if (to != index) parts_.tally.add(Count::slices_failed_over);
    peer.routes[to].queue.put_back(slice, false);
  }
}

}  // namespace mc::xfer

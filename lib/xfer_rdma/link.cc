// What the frames of an rdma endpoint's socket mean. Everything a peer says is bounded and checked
// before it is used; its keys only ever reach its own NIC.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "xfer/access.h"
#include "xfer/tally.h"
#include "xfer_rdma/transport.h"

namespace mc::xfer {

using wire::FrameHeader;
using wire::FrameType;

bool RdmaEndpoint::offered() const {
  return accepted &&
         std::any_of(rails.begin(), rails.end(), [](const auto& rail) { return !rail->pending.lanes.empty(); });
}

void RdmaEndpoint::push(OutFrame frame) {
  io.push(frame.header, std::move(frame.payload));
}

Code RdmaEndpoint::begin(const FrameHeader& header, Sink&, const char*& why) {
  const FrameType kind = header.kind();
  const bool set_up = kind >= FrameType::hello && kind <= FrameType::refuse;
  const bool later = kind == FrameType::notify || kind == FrameType::describe || kind == FrameType::goodbye ||
                     (kind >= FrameType::nics && kind <= FrameType::landed);
  if (handshake.complete() ? later : set_up) return Code::ok;
  why = handshake.complete() ? "unexpected on an rdma socket" : "transfer before the handshake";
  return Code::corrupt;
}

Code RdmaEndpoint::end(const FrameHeader& header, std::span<const std::byte> payload, uint32_t, const char*& why) {
  return transport.on_frame(*this, header, payload, why);
}

Code RdmaTransport::on_frame(RdmaEndpoint& endpoint, const FrameHeader& header, std::span<const std::byte> payload,
                             const char*& why) {
  if (!endpoint.handshake.complete()) return on_handshake(endpoint, header, payload, why);
  if (endpoint.io.queued() > kUnreadMax) {  // notifies stop at kQueueMax: the rest are answers
    why = "the peer asks and reads no answers";
    return Code::corrupt;
  }
  switch (header.kind()) {
    case FrameType::nics: return on_nics(endpoint, payload, why);
    case FrameType::keys: return on_keys(endpoint, payload, why);
    case FrameType::describe: return on_describe(endpoint, payload, why);
    case FrameType::notify: return on_notify(endpoint, header, payload, why);
    case FrameType::heard: return on_heard(endpoint, header.id, why);
    case FrameType::landed: return on_landed(endpoint, header, why);
    case FrameType::goodbye: {
      why = "goodbye";
      const std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
      endpoint.failure =
          News{.kind = News::Kind::lost, .gone = true, .code = Code::peer_lost, .text = "the peer left: " + text};
      return Code::peer_lost;
    }
    case FrameType::path_rest: return on_rest(endpoint, header.id, why);
    default: return on_path(endpoint, header, payload, why);
  }
}

Code RdmaTransport::on_handshake(RdmaEndpoint& endpoint, const FrameHeader& header, std::span<const std::byte> payload,
                                 const char*& why) {
  Handshake::Step step = endpoint.handshake.take(header, payload, endpoint.io);
  if (step.failed) {
    why = step.reason;
    endpoint.failure =
        News{.kind = News::Kind::lost, .gone = step.gone, .code = step.failed->code, .text = step.failed->what};
    return step.failed->code;
  }
  return endpoint.handshake.complete() ? joined(endpoint, why) : Code::ok;
}

/// The peer has proven itself: tell it how to reach us.
Code RdmaTransport::joined(RdmaEndpoint& endpoint, const char*& why) {
  --strangers_;
  if (endpoint.io.sealed()) home_.tally->add(Count::streams_sealed);
  if (endpoint.handshake.hello().lane_count != 1) {
    why = "handshake: an rdma socket is the only lane of its connection";
    return Code::corrupt;
  }
  endpoint.peer = endpoint.handshake.peer_instance();
  endpoint.name = endpoint.handshake.peer_name();
  endpoint.descriptor = endpoint.handshake.descriptor();
  settle_twins(endpoint);
  if (endpoint.doomed) return Code::ok;
  endpoint.push(control_frame(FrameType::nics, wire::encode(own_nics())));
  tell_keys(endpoint);
  return Code::ok;
}

/// Both sides have dialled at once: one connection is enough, and only the side with the lower instance
/// decides which, so that they cannot close both. It keeps the one that carries already, else its own;
/// the other side's dial ends here, and finds its peer connected. Later dials are another matter: the
/// peer may have lost a connection that still looks alive from here.
void RdmaTransport::settle_twins(RdmaEndpoint& endpoint) {
  if (!(home_.instance < endpoint.peer) || endpoint.handshake.identity().is_zero()) return;
  const TimePoint now = SystemClock::instance().now();
  for (const auto& [id, other] : endpoints_) {
    if (other.get() == &endpoint || other->doomed || !other->handshake.complete()) continue;
    if (other->handshake.identity() != endpoint.peer || other->accepted == endpoint.accepted) continue;
    if (other->up && now - other->up_at > home_.options->connect_timeout) continue;
    RdmaEndpoint& spare = other->up || endpoint.accepted ? endpoint : *other;
    doom(spare, Code::busy, false, "both sides dialled at once: the other connection stays");
    if (spare.doomed && &spare == &endpoint) return;
  }
}

wire::RdmaNics RdmaTransport::own_nics() const {
  wire::RdmaNics nics;
  for (const RdmaPort& port : hardware_.ports) nics.nics.push_back(port.describe());
  return nics;
}

void RdmaTransport::tell_ports() {
  for (auto& [id, endpoint] : endpoints_)
    if (endpoint->handshake.complete() && !endpoint->doomed)
      endpoint->push(control_frame(FrameType::nics, wire::encode(own_nics())));
}

bool RdmaTransport::takes_writes(const RdmaEndpoint& endpoint, const Descriptor& own) const {
  return std::any_of(own.buffers.begin(), own.buffers.end(), [&](const BufferInfo& buffer) {
    return buffer.access == AccessClass::landing && reachable(buffer, endpoint.handshake.identity());
  });
}

size_t RdmaTransport::device_index(size_t port) const {
  const auto at = std::find_if(hardware_.devices.begin(), hardware_.devices.end(),
                               [&](const auto& device) { return device == hardware_.ports[port].device; });
  return static_cast<size_t>(at - hardware_.devices.begin());
}

/// Keys of buffers the peer may touch and does not have yet, then the descriptor that names them.
void RdmaTransport::tell_keys(RdmaEndpoint& endpoint) {
  const auto own = home_.describe();  // first: it must not name a buffer whose keys are not sent
  std::vector<size_t> devices;
  for (size_t port = 0; port < hardware_.ports.size(); ++port) devices.push_back(device_index(port));
  if (takes_writes(endpoint, *own))
    for (const auto& rail : endpoint.rails)
      if (rail->machine.state() == PathMachine::State::up) (void)rail->allow_writes(true);
  for (const BufferInfo& buffer : own->buffers) {
    if (endpoint.told.contains(buffer.id) || !reachable(buffer, endpoint.handshake.identity())) continue;
    wire::RdmaKeys keys;
    if (!memory_.keys(buffer.id, devices, keys)) continue;  // going away
    keys.snapshot = own->version;
    endpoint.push(control_frame(FrameType::keys, wire::encode(keys)));
    endpoint.told.insert(buffer.id);
  }
  std::erase_if(endpoint.told, [&](uint32_t id) { return own->find(id) == nullptr; });
  if (endpoint.io.idle()) endpoint.progress = SystemClock::instance().now();
  endpoint.push(control_frame(FrameType::describe, wire::encode(*own)));
}

Code RdmaTransport::on_nics(RdmaEndpoint& endpoint, std::span<const std::byte> payload, const char*& why) {
  auto nics = wire::decode_rdma_nics(payload);
  if (!nics || (!endpoint.nics.empty() && nics->nics.size() != endpoint.nics.size())) {
    why = "malformed list of ports";
    return nics ? Code::corrupt : nics.error().code;
  }
  const bool first = endpoint.nics.empty();
  const TimePoint now = SystemClock::instance().now();
  const std::vector<wire::RdmaNic> before = std::exchange(endpoint.nics, std::move(nics->nics));
  if (endpoint.accepted) return Code::ok;
  if (first) {
    plan(endpoint);
    return Code::ok;
  }
  replan(endpoint, *endpoint.out);
  for (const auto& rail : endpoint.rails) {
    if (endpoint.nics[rail->remote()].lid != before[rail->remote()].lid)
      fail(endpoint, *rail, PathCause::restart, "the peer's port has another LID", true, *endpoint.out);
    // a port of the peer may be up again
    if (!startable(endpoint, *rail)) continue;
    rail->machine.wake(now);
    due(now);
  }
  return Code::ok;
}

Code RdmaTransport::on_keys(RdmaEndpoint& endpoint, std::span<const std::byte> payload, const char*& why) {
  auto keys = wire::decode_rdma_keys(payload);
  if (!keys || keys->nics != endpoint.nics.size()) {
    why = "malformed keys";
    return Code::corrupt;
  }
  if (endpoint.keys.size() >= wire::kXferBuffersMax && !endpoint.keys.contains(keys->buffer)) {
    why = "keys of more buffers than a process may have";
    return Code::corrupt;
  }
  const uint32_t buffer = keys->buffer;
  endpoint.keys.insert_or_assign(buffer, std::move(*keys));
  return Code::ok;
}

Code RdmaTransport::on_describe(RdmaEndpoint& endpoint, std::span<const std::byte> payload, const char*& why) {
  auto descriptor = wire::decode_descriptor(payload);
  if (!descriptor || descriptor->instance != endpoint.peer) {
    why = "malformed or foreign descriptor";
    return Code::corrupt;
  }
  endpoint.descriptor = std::make_shared<const Descriptor>(std::move(*descriptor));
  endpoint.keys_version = endpoint.descriptor->version;
  std::erase_if(endpoint.keys, [&](const auto& entry) { return endpoint.descriptor->find(entry.first) == nullptr; });
  if (endpoint.up)
    endpoint.out->news.push_back(
        {.kind = News::Kind::described, .endpoint = endpoint.id, .descriptor = endpoint.descriptor});
  return Code::ok;
}

}  // namespace mc::xfer

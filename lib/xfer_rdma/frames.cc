#include "xfer_rdma/frames.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "xfer/access.h"
#include "xfer/tally.h"

namespace mc::xfer {

using wire::FrameHeader;
using wire::FrameType;

Code RdmaFrames::on_frame(RdmaEndpoint& endpoint, const FrameHeader& header, std::span<const std::byte> payload,
                          const char*& why) {
  PeerSocket& socket = endpoint.socket;
  if (!socket.handshake.complete()) {
    const Code code = socket.take_handshake(header, payload, why);
    return code == Code::ok && socket.handshake.complete() ? joined(endpoint, why) : code;
  }
  if (socket.io.queued() > kUnreadMax) {  // notifies stop far earlier, so the other frames are answers
    why = "the peer sends requests and reads no answers";
    return Code::corrupt;
  }
  Reports& out = *socket.out;
  switch (header.kind()) {
    case FrameType::nics: return on_nics(endpoint, payload, out, why);
    case FrameType::keys: return endpoint.keyring.take_keys(payload, why);
    case FrameType::describe: return on_describe(endpoint, payload, out, why);
    case FrameType::notify: return endpoint.messages.on_notify(header, payload, out, why);
    case FrameType::heard: return endpoint.messages.on_heard(header.id, why);
    case FrameType::landed: return endpoint.messages.on_landed(header, out, why);
    case FrameType::goodbye: return socket.take_goodbye(payload, why);
    case FrameType::path_rest: return resting_.on_frame(endpoint, header.id, out, why);
    default: return paths_.on_frame(endpoint, header, payload, out, why);
  }
}

/// Called when the peer has proven itself. Sends the ports of this process.
Code RdmaFrames::joined(RdmaEndpoint& endpoint, const char*& why) {
  MC_ASSERT(parts_.strangers > 0);
  --parts_.strangers;
  const Handshake& handshake = endpoint.socket.handshake;
  if (endpoint.socket.io.sealed()) parts_.services.tally->add(Count::streams_sealed);
  if (handshake.hello().lane_count != 1) {
    why = "handshake: an rdma socket is the only lane of its connection";
    return Code::corrupt;
  }
  endpoint.peer = handshake.peer_instance();
  endpoint.name = handshake.peer_name();
  endpoint.descriptor = handshake.descriptor();
  settle_twins(endpoint);
  if (endpoint.doomed()) return Code::ok;
  endpoint.socket.push(control_frame(FrameType::nics, wire::encode(parts_.nics())));
  tell_keys(endpoint);
  return Code::ok;
}

/// Both sides have dialled at once. One connection suffices, and only the side with the lower instance decides which
/// one, so that they cannot close both. It keeps the one that carries already, else its own. The dial of the other side
/// ends here and finds its peer connected. A later dial is not closed, because the peer may have lost a connection that
/// still looks alive from here.
void RdmaFrames::settle_twins(RdmaEndpoint& endpoint) {
  if (!(parts_.services.instance < endpoint.peer) || endpoint.socket.handshake.identity().is_zero()) return;
  for (const auto& [id, other] : parts_.endpoints) {
    if (other.get() == &endpoint || !other->live()) continue;
    if (other->socket.handshake.identity() != endpoint.peer || other->accepted == endpoint.accepted) continue;
    if (other->up && now() - other->up_at > parts_.services.options->connect_timeout) continue;
    RdmaEndpoint& spare = other->up || endpoint.accepted ? endpoint : *other;
    spare.doom({Code::busy, false, "both sides dialled at once: the other connection stays"});
    if (endpoint.doomed()) return;
  }
}

void RdmaFrames::tell_ports() {
  for (auto& [id, endpoint] : parts_.endpoints)
    if (endpoint->live()) endpoint->socket.push(control_frame(FrameType::nics, wire::encode(parts_.nics())));
}

void RdmaFrames::tell_keys(RdmaEndpoint& endpoint) {
  const auto own = parts_.services.describe();  // made first, so that it names no buffer whose keys are not sent
  std::vector<size_t> devices;
  for (size_t port = 0; port < parts_.hardware.ports.size(); ++port) devices.push_back(parts_.device_of(port));
  if (endpoint.takes_writes(*own))
    for (const auto& rail : endpoint.rails)
      if (rail->up()) (void)rail->attempt.allow_writes(true);
  for (const BufferInfo& buffer : own->buffers) {
    if (endpoint.told.contains(buffer.id) || !reachable(buffer, endpoint.socket.handshake.identity())) continue;
    wire::RdmaKeys keys;
    if (!parts_.memory.keys(buffer.id, devices, keys)) continue;  // the buffer is being removed
    keys.snapshot = own->version;
    endpoint.socket.push(control_frame(FrameType::keys, wire::encode(keys)));
    endpoint.told.insert(buffer.id);
  }
  std::erase_if(endpoint.told, [&](uint32_t id) { return own->find(id) == nullptr; });
  endpoint.socket.push(control_frame(FrameType::describe, wire::encode(*own)));
}

Code RdmaFrames::on_nics(RdmaEndpoint& endpoint, std::span<const std::byte> payload, Reports& out, const char*& why) {
  why = "malformed list of ports";
  std::vector<wire::RdmaNic> before;
  if (const Code code = endpoint.keyring.take_nics(payload, before); code != Code::ok) return code;
  if (endpoint.accepted) return Code::ok;
  if (before.empty()) {
    paths_.plan(endpoint);
    return Code::ok;
  }
  paths_.replan(endpoint, out);
  const auto& nics = endpoint.keyring.nics();
  for (const auto& rail : endpoint.rails) {
    if (nics[rail->remote].lid != before[rail->remote].lid)
      paths_.fail(endpoint, *rail, PathCause::restart, "the peer's port has another LID", true, out);
    // A port of the peer may be up again.
    if (!paths_.startable(endpoint, *rail)) continue;
    rail->machine.wake(now());
    parts_.due(now());
  }
  return Code::ok;
}

Code RdmaFrames::on_describe(RdmaEndpoint& endpoint, std::span<const std::byte> payload, Reports& out,
                             const char*& why) {
  auto descriptor = wire::decode_descriptor(payload);
  if (!descriptor || descriptor->instance != endpoint.peer) {
    why = "malformed or foreign descriptor";
    return Code::corrupt;
  }
  endpoint.descriptor = std::make_shared<const Descriptor>(std::move(*descriptor));
  endpoint.keyring.described(*endpoint.descriptor);
  if (endpoint.up)
    out.events.push_back(
        {.kind = EndpointEvent::Kind::described, .endpoint = endpoint.id, .descriptor = endpoint.descriptor});
  return Code::ok;
}

}  // namespace mc::xfer

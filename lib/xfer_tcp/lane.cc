#include "xfer_tcp/lane.h"

#include "base/assert.h"
#include "xfer/tally.h"
#include "xfer_tcp/transport.h"

namespace mc::xfer {

using wire::FrameHeader;
using wire::FrameType;

TcpLane::TcpLane(TcpTransport& transport, Fd fd, Handshake handshake)
    : socket(transport.services(), std::move(fd), std::move(handshake), transport.io()),
      transport_(transport),
      requests_(socket.io),
      service_(socket.io, *transport.services().access, *transport.services().tally) {}

/// On a sealed stream no checksum is needed, because the tag of each record detects what a checksum detects.
bool TcpLane::wants_crc() const {
  return transport_.services().options->payload_crc && !socket.io.sealed();
}

Code TcpLane::begin(const FrameHeader& header, Sink& sink, const char*& why) {
  const FrameType kind = header.kind();
  if (!ready()) {
    if (kind >= FrameType::hello && kind <= FrameType::refuse) return Code::ok;
    why = "transfer before the handshake";
    return Code::corrupt;
  }
  MC_ASSERT(endpoint != nullptr && endpoint->lanes[index] == this);
  if (index != 0) return begin_data(header, sink, why);
  if (kind == FrameType::notify || kind == FrameType::describe || kind == FrameType::goodbye) return Code::ok;
  why = "unexpected on a control lane";
  return Code::corrupt;
}

Code TcpLane::begin_data(const FrameHeader& header, Sink& sink, const char*& why) {
  switch (header.kind()) {
    case FrameType::read:
    case FrameType::ack: return Code::ok;
    case FrameType::data: return requests_.begin_answer(header, wants_crc(), sink, why);
    case FrameType::write:
      if ((header.flags & wire::kFrameHasImmediate) != 0 && !endpoint->up) {
        why = "immediate before the connection was up";
        return Code::corrupt;
      }
      service_.begin_write(header, endpoint->identity(), sink);
      return Code::ok;
    default: why = "unexpected on a data lane"; return Code::corrupt;
  }
}

Code TcpLane::end(const FrameHeader& header, std::span<const std::byte> collected, uint32_t crc, const char*& why) {
  if (!ready()) return end_handshake(header, collected, why);
  MC_ASSERT(endpoint != nullptr && endpoint->lanes[index] == this);
  if (index == 0) return end_control(header, collected, why);
  switch (header.kind()) {
    case FrameType::read: return service_.read(header, endpoint->identity(), why);
    case FrameType::write: return end_write(header, crc, why);
    default: return requests_.end_answer(header, collected, crc, *socket.out, why);
  }
}

Code TcpLane::end_handshake(const FrameHeader& header, std::span<const std::byte> payload, const char*& why) {
  const Code code = socket.take_handshake(header, payload, why);
  return code == Code::ok && ready() ? transport_.joined(*this, why) : code;
}

Code TcpLane::end_control(const FrameHeader& header, std::span<const std::byte> payload, const char*& why) {
  EndpointEvent event{.endpoint = endpoint->id};
  switch (header.kind()) {
    case FrameType::notify:
      event.kind = EndpointEvent::Kind::notify;
      event.bytes.assign(payload.begin(), payload.end());
      break;
    case FrameType::describe: {
      auto descriptor = wire::decode_descriptor(payload);
      if (!descriptor || descriptor->instance != endpoint->peer) {
        why = "malformed or foreign descriptor";
        return Code::corrupt;
      }
      event.kind = EndpointEvent::Kind::described;
      event.descriptor = std::make_shared<const Descriptor>(std::move(*descriptor));
      break;
    }
    default: return socket.take_goodbye(payload, why);
  }
  socket.out->events.push_back(std::move(event));
  return Code::ok;
}

Code TcpLane::end_write(const FrameHeader& header, uint32_t crc, const char*& why) {
  bool landed = false;
  const Code code = service_.end_write(header, crc, landed, why);
  if (landed && (header.flags & wire::kFrameHasImmediate) != 0) {
    tells = true;
    socket.out->events.push_back(
        {.kind = EndpointEvent::Kind::immediate, .endpoint = endpoint->id, .immediate = header.immediate});
  }
  return code;
}

FrameStream::Io TcpLane::receive(size_t budget, Reports& out) {
  service_.begin_turn();
  const FrameStream::Io result = socket.receive(*this, budget, out);
  service_.end_turn();
  Tally& tally = *transport_.services().tally;
  const size_t row = transport_.index() - 1u;
  const TcpRequests::Moved own = requests_.take_moved();
  const TcpService::Moved theirs = service_.take_moved();
  tally.add(row, Flow::read_bytes, own.read);
  tally.add(row, Flow::written_bytes, own.written);
  tally.add(row, Flow::served_bytes, theirs.served);
  tally.add(row, Flow::landed_bytes, theirs.landed);
  tally.add(Count::requests_served, theirs.requests);
  return result;
}

FrameStream::Io TcpLane::flush(Reports& out) {
  gone_.clear();
  const FrameStream::Io result = socket.flush(size_t{2} << 20, gone_);
  for (const auto& gone : gone_) {
    if (gone.pinned != 0) transport_.services().access->unpin(gone.pinned);
    if (gone.slice != 0) requests_.sent(gone.slice, out);
  }
  return result;
}

void TcpLane::release() {
  for (const auto& gone : socket.io.drop_all())
    if (gone.pinned != 0) transport_.services().access->unpin(gone.pinned);
  service_.release();
  requests_.clear();
}

}  // namespace mc::xfer

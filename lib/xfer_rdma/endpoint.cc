#include "xfer_rdma/endpoint.h"

#include <algorithm>

#include "base/assert.h"
#include "xfer/access.h"
#include "xfer_rdma/frames.h"

namespace mc::xfer {

using wire::FrameType;

RdmaEndpoint::RdmaEndpoint(RdmaParts& parts, RdmaFrames& with, Fd fd, Handshake handshake)
    : frames(with),
      id(parts.services.next_endpoint()),
      socket(parts.services, std::move(fd), std::move(handshake)),
      messages(parts, *this) {}

Code RdmaEndpoint::begin(const wire::FrameHeader& header, Sink&, const char*& why) {
  const FrameType kind = header.kind();
  const bool complete = socket.handshake.complete();
  const bool set_up = kind >= FrameType::hello && kind <= FrameType::refuse;
  const bool later = kind == FrameType::notify || kind == FrameType::describe || kind == FrameType::goodbye ||
                     (kind >= FrameType::nics && kind <= FrameType::landed);
  if (complete ? later : set_up) return Code::ok;
  why = complete ? "unexpected on an rdma socket" : "transfer before the handshake";
  return Code::corrupt;
}

Code RdmaEndpoint::end(const wire::FrameHeader& header, std::span<const std::byte> payload, uint32_t,
                       const char*& why) {
  return frames.on_frame(*this, header, payload, why);
}

void RdmaEndpoint::doom(Loss why) {
  MC_ASSERT(why.code != Code::ok);
  if (!loss) loss = std::move(why);
}

bool RdmaEndpoint::any_in(std::initializer_list<PathMachine::State> states) const {
  return std::any_of(rails.begin(), rails.end(), [&](const auto& rail) {
    return std::find(states.begin(), states.end(), rail->machine.state()) != states.end();
  });
}

bool RdmaEndpoint::posted() const {
  return std::any_of(rails.begin(), rails.end(), [](const auto& rail) { return rail->attempt.outstanding() > 0; });
}

bool RdmaEndpoint::offered() const {
  return accepted &&
         std::any_of(rails.begin(), rails.end(), [](const auto& rail) { return !rail->answer.pending.lanes.empty(); });
}

bool RdmaEndpoint::takes_writes(const Descriptor& own) const {
  return std::any_of(own.buffers.begin(), own.buffers.end(), [&](const BufferInfo& buffer) {
    return buffer.access == AccessClass::landing && reachable(buffer, socket.handshake.identity());
  });
}

RdmaRail* RdmaEndpoint::rail_of(int lane, size_t& index) const {
  if (lanes_per_path == 0) return nullptr;
  const size_t path = static_cast<size_t>(lane) / lanes_per_path;
  index = static_cast<size_t>(lane) % lanes_per_path;
  return path < rails.size() ? rails[path].get() : nullptr;
}

}  // namespace mc::xfer

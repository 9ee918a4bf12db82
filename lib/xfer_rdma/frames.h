// Meaning of the frames on the socket of an rdma connection: handshake, ports, keys, descriptors (internal). Everything
// a peer says is bounded and checked before it is used. Not thread-safe: it belongs to the thread that has the loop's
// turn.
#pragma once

#include "xfer_rdma/resting.h"

namespace mc::xfer {

class RdmaFrames {
 public:
  RdmaFrames(RdmaParts& parts, RdmaPaths& paths, RdmaResting& resting)
      : parts_(parts), paths_(paths), resting_(resting) {}

  /// Not ok, and `why`: the connection ends.
  Code on_frame(RdmaEndpoint& endpoint, const wire::FrameHeader& header, std::span<const std::byte> payload,
                const char*& why);
  /// A port of ours has changed: tells every peer.
  void tell_ports();
  /// Sends keys of buffers that the peer may touch and does not have yet, then the descriptor that names them.
  void tell_keys(RdmaEndpoint& endpoint);

 private:
  static constexpr size_t kUnreadMax = 8192;  // frames waiting for one peer, answers among them

  Code joined(RdmaEndpoint& endpoint, const char*& why);
  void settle_twins(RdmaEndpoint& endpoint);
  Code on_nics(RdmaEndpoint& endpoint, std::span<const std::byte> payload, Reports& out, const char*& why);
  Code on_describe(RdmaEndpoint& endpoint, std::span<const std::byte> payload, Reports& out, const char*& why);

  RdmaParts& parts_;
  RdmaPaths& paths_;
  RdmaResting& resting_;
};

}  // namespace mc::xfer

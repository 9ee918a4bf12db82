// The handling of frames on the socket of an rdma connection: handshake, ports, keys, descriptors (internal).
// Everything from a peer is bounded and checked before it is used. Not thread-safe: only the thread that has the loop's
// turn calls this class.
#pragma once

#include "xfer_rdma/resting.h"

namespace mc::xfer {

class RdmaFrames {
 public:
  RdmaFrames(RdmaParts& parts, RdmaPaths& paths, RdmaResting& resting)
      : parts_(parts), paths_(paths), resting_(resting) {}

  /// Not ok: the connection ends, for the reason in `why`.
  Code on_frame(RdmaEndpoint& endpoint, const wire::FrameHeader& header, std::span<const std::byte> payload,
                const char*& why);
  /// Sends the ports to every peer, because one has changed.
  void tell_ports();
  /// Sends the keys that the peer lacks of buffers that it may touch, then the descriptor that names the buffers.
  void tell_keys(RdmaEndpoint& endpoint);

 private:
  static constexpr size_t kUnreadMax = 8192;  // limit of frames that wait for one peer, answers included

  Code joined(RdmaEndpoint& endpoint, const char*& why);
  void settle_twins(RdmaEndpoint& endpoint);
  Code on_nics(RdmaEndpoint& endpoint, std::span<const std::byte> payload, Reports& out, const char*& why);
  Code on_describe(RdmaEndpoint& endpoint, std::span<const std::byte> payload, Reports& out, const char*& why);

  RdmaParts& parts_;
  RdmaPaths& paths_;
  RdmaResting& resting_;
};

}  // namespace mc::xfer

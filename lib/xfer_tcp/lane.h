// One TCP socket of a tcp connection (internal). Lane 0 carries control frames. The other lanes carry the transfers of
// both directions: requests of this side (TcpRequests) and requests of the peer (TcpService).
#pragma once

#include "xfer/peer_socket.h"
#include "xfer_tcp/requests.h"
#include "xfer_tcp/service.h"

namespace mc::xfer {

class TcpTransport;
struct TcpEndpoint;

class TcpLane final : public FrameConsumer {
 public:
  TcpLane(TcpTransport& transport, Fd fd, Handshake handshake);

  Code begin(const wire::FrameHeader& header, Sink& sink, const char*& why) override;
  Code end(const wire::FrameHeader& header, std::span<const std::byte> collected, uint32_t crc,
           const char*& why) override;

  /// Calls FrameStream::receive and counts the bytes that it moved.
  FrameStream::Io receive(size_t budget, Reports& out);
  size_t post(std::span<const Slice> slices) { return requests_.post(slices, wants_crc()); }
  bool cancel(uint64_t slice) { return requests_.cancel(slice); }
  /// Sends queued frames. Reports cancelled slices whose frames have been sent now.
  FrameStream::Io flush(Reports& out);
  /// Releases every pin, because the socket is about to close.
  void release();

  bool ready() const { return socket.handshake.complete(); }
  /// Whether work is outstanding, so that a lack of progress is a fault. Half a frame of the peer counts as work,
  /// because it holds a pin.
  bool waiting() const { return !requests_.idle() || !socket.io.idle() || socket.io.receiving(); }

  PeerSocket socket;
  bool tells = false;               // writes with immediates arrived on the lane
  uint16_t index = 0;               // index of the lane in the endpoint
  TcpEndpoint* endpoint = nullptr;  // set once the handshake has named the endpoint

 private:
  bool wants_crc() const;
  Code begin_data(const wire::FrameHeader& header, Sink& sink, const char*& why);
  Code end_handshake(const wire::FrameHeader& header, std::span<const std::byte> payload, const char*& why);
  Code end_control(const wire::FrameHeader& header, std::span<const std::byte> payload, const char*& why);
  Code end_write(const wire::FrameHeader& header, uint32_t crc, const char*& why);

  TcpTransport& transport_;
  TcpRequests requests_;
  TcpService service_;
  std::vector<FrameStream::Gone> gone_;  // scratch memory
};

}  // namespace mc::xfer

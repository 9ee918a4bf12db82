// One TCP socket of a tcp connection (internal). Lane 0 of a connection carries control frames, the others carry the
// transfers of both directions: requests of this side (TcpRequests) and requests of the peer (TcpService).
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

  /// FrameStream::receive, and what it moved is counted.
  FrameStream::Io receive(size_t budget, Reports& out);
  size_t post(std::span<const Slice> slices) { return requests_.post(slices, wants_crc()); }
  bool cancel(uint64_t slice) { return requests_.cancel(slice); }
  /// Sends what is queued; reports slices whose cancelled frames are out now.
  FrameStream::Io flush(Reports& out);
  /// Lets go of every pin; the socket is about to close.
  void release();

  bool ready() const { return socket.handshake.complete(); }
  /// Something is outstanding, so that no progress is a fault; half a frame of the peer's counts too,
  /// since it holds a pin.
  bool waiting() const { return !requests_.idle() || !socket.io.idle() || socket.io.receiving(); }

  PeerSocket socket;
  bool tells = false;               // writes with immediates came in on it
  uint16_t index = 0;               // lane in the endpoint
  TcpEndpoint* endpoint = nullptr;  // known once the handshake said which

 private:
  bool wants_crc() const;
  Code begin_data(const wire::FrameHeader& header, Sink& sink, const char*& why);
  Code end_handshake(const wire::FrameHeader& header, std::span<const std::byte> payload, const char*& why);
  Code end_control(const wire::FrameHeader& header, std::span<const std::byte> payload, const char*& why);
  Code end_write(const wire::FrameHeader& header, uint32_t crc, const char*& why);

  TcpTransport& transport_;
  TcpRequests requests_;
  TcpService service_;
  std::vector<FrameStream::Gone> gone_;  // scratch
};

}  // namespace mc::xfer

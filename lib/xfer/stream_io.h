// The calls that move the bytes of one stream between its socket and memory (internal). A FrameStream uses plain system
// calls, an io_uring (lib/xfer_tcp) or sealed records (sealed_io.h). No call waits, and no operation is in flight
// between two calls. So after a slice is cancelled or a lane is closed, no kernel can still write to its memory.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <span>

namespace mc::xfer {

/// Each engine has one. The thread that runs the engine's loop calls it.
class StreamIo {
 public:
  virtual ~StreamIo() = default;
  /// Receives like recvmsg(MSG_DONTWAIT | flags) into the parts, one after the other. Returns the number of bytes, 0 at
  /// the end of the stream, or a negative errno.
  virtual ssize_t receive(int fd, std::span<const iovec> parts, int flags) = 0;
  /// Sends like sendmsg(MSG_DONTWAIT | MSG_NOSIGNAL).
  virtual ssize_t send(int fd, std::span<const iovec> parts) = 0;
};

/// Plain system calls.
class SocketCalls final : public StreamIo {
 public:
  ssize_t receive(int fd, std::span<const iovec> parts, int flags) override;
  ssize_t send(int fd, std::span<const iovec> parts) override;
};

/// Shared by all threads, because it has no state.
StreamIo& socket_calls();

/// The parts must outlive the message.
msghdr message_of(std::span<const iovec> parts);

}  // namespace mc::xfer

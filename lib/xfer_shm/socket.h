// The socket between two processes of one host (internal): AF_UNIX of type SEQPACKET. A message is one frame and at
// most one descriptor. "shm:///path" names a file, "shm://name" an abstract name.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "xfer/handshake.h"

namespace mc::xfer {

/// The cause of a connection's end; Code::ok: the connection goes on.
struct ShmFailure {
  Code code = Code::ok;
  const char* reason = "";  // static text for the counter
  std::string text;
  bool gone = false;  // proof that the wanted instance no longer listens there
  wire::Mismatch mismatch = wire::Mismatch::none;
  explicit operator bool() const { return code != Code::ok; }
};

/// Whether the process at the other end of the socket belongs to this process's user or to root.
bool of_our_user(int fd);
/// A listening socket. A socket file without a live process is replaced.
Result<Fd> listen_shm(const std::string& uri);
/// A connected socket. Code::peer_lost: no process listens there. Code::invalid: the URI is no address.
Result<Fd> dial_shm(const std::string& uri);

struct ShmMessage {
  wire::FrameHeader header;
  std::span<const std::byte> payload;  // in the inbox
  Fd passed;                           // share: the arena
};

class ShmSocket {
 public:
  static constexpr size_t kMessageMax = wire::kFrameHeaderBytes + wire::kFrameControlMax;

  explicit ShmSocket(Fd fd) : fd_(std::move(fd)) {}
  int fd() const { return fd_.get(); }
  /// Sends a frame. False when the socket is full; nothing is sent then. Sets `failure` when the socket is broken.
  /// `passed`: descriptor to send with it; -1 = none.
  bool send(const OutFrame& frame, ShmFailure& failure, int passed = -1) const;
  /// Receives the next message into an inbox of kMessageMax bytes. False: there is no message now, or `failure`
  /// describes an error of the socket or the message.
  bool receive(std::span<std::byte> inbox, ShmMessage& message, ShmFailure& failure) const;

 private:
  Fd fd_;
};

}  // namespace mc::xfer

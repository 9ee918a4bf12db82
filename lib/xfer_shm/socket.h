// The socket between two processes of one host (internal): AF_UNIX of type SEQPACKET, one frame a message, at most one
// descriptor beside it. "shm:///path" names a file, "shm://name" an abstract name.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "xfer/handshake.h"

namespace mc::xfer {

/// Why a connection ends; Code::ok: it does not.
struct ShmFailure {
  Code code = Code::ok;
  const char* reason = "";  // static, for the counter
  std::string text;
  bool gone = false;  // proof that the wanted instance no longer listens there
  wire::Mismatch mismatch = wire::Mismatch::none;
  explicit operator bool() const { return code != Code::ok; }
};

/// Is the process at the other end of the socket our user's, or root's?
bool of_our_user(int fd);
/// A listening socket. A socket file that no process answers on is replaced.
Result<Fd> listen_shm(const std::string& uri);
/// A connected socket. Code::peer_lost: nobody listens there; Code::invalid: that is no address.
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
  /// False when the socket is full (nothing is sent); sets `failure` when it is broken. `passed`: -1 = none.
  bool send(const OutFrame& frame, ShmFailure& failure, int passed = -1) const;
  /// The next message, in an inbox of kMessageMax bytes. False: there is none now, or `failure` says what is wrong with
  /// the socket or the message.
  bool receive(std::span<std::byte> inbox, ShmMessage& message, ShmFailure& failure) const;

 private:
  Fd fd_;
};

}  // namespace mc::xfer

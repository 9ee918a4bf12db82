// Reads and writes of the peer on one data lane of a tcp connection, served from the memory of this process (internal).
// Every range is checked against the access table before a byte moves. Not thread-safe: as the transport.
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "xfer/access.h"
#include "xfer/stream.h"
#include "xfer/tally.h"

namespace mc::xfer {

class TcpService {
 public:
  static constexpr size_t kServedMax = 1024;  // frames that wait to be sent: an honest peer has fewer requests out

  /// All of them outlive the service.
  TcpService(FrameStream& io, Access& access, Tally& tally) : io_(io), access_(access), tally_(tally) {}

  /// Answers of writes wait until end_turn(), so that one acknowledgement is enough for those of one receive().
  void begin_turn() { pin_.old = true; }
  void end_turn();

  /// The peer reads: queues the answer.
  Code read(const wire::FrameHeader& header, const InstanceId& peer, const char*& why);
  /// The header of a write came: where its payload goes.
  void begin_write(const wire::FrameHeader& header, const InstanceId& peer, Sink& sink);
  /// The payload is complete. `landed`: it is in place.
  Code end_write(const wire::FrameHeader& header, uint32_t crc, bool& landed, const char*& why);
  /// Lets go of the buffer being written into.
  void release() { unpin(); }

  /// Since the last call; see TcpRequests::Moved.
  struct Moved {
    uint64_t served = 0, landed = 0;  // bytes
    uint64_t requests = 0;
  };
  Moved take_moved() { return std::exchange(moved_, {}); }

 private:
  void refuse(const wire::FrameHeader& header, Code code, const char* reason);
  void acknowledge();
  void unpin();

  FrameStream& io_;
  Access& access_;
  Tally& tally_;
  // The landing buffer being written into stays pinned for the small writes of one receive(): a lock behind
  // a copy waits until the copied bytes have reached the cache, a tenth of the time of 4 KiB writes.
  // One that was cut off by the end of a receive() keeps its pin, but the next one asks again: a peer whose writes
  // never end with a receive() would hold the buffer for ever, and write into it after it was revoked.
  struct Pin {
    uint32_t buffer = 0;          // 0 = none
    bool old = false;             // pinned in an earlier receive()
    std::span<std::byte> memory;  // all of the buffer
  } pin_;
  Code write_code_ = Code::ok;  // of the write that comes in
  const char* write_why_ = "";
  // Writes that came whole are acknowledged together, after the bytes of one receive(): of small ones an ack
  // each would cost a twentieth of the work on both sides.
  std::optional<wire::FrameHeader> unacked_;  // the last of them
  Moved moved_;
};

}  // namespace mc::xfer

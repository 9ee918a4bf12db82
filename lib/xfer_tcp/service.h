// Reads and writes of the peer on one data lane of a tcp connection, served from the memory of this process (internal).
// Every range is checked against the access table before a byte moves. Not thread-safe: only the thread that has the
// loop's turn calls this class.
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
  // Limit of waiting answer frames; an honest peer has fewer requests outstanding.
  static constexpr size_t kServedMax = 1024;

  /// All arguments must outlive the service.
  TcpService(FrameStream& io, Access& access, Tally& tally) : io_(io), access_(access), tally_(tally) {}

  /// Acknowledgements of writes wait until end_turn(), so that one covers all writes of one receive().
  void begin_turn() { pin_.old = true; }
  void end_turn();

  /// Handles a read of the peer: queues the answer.
  Code read(const wire::FrameHeader& header, const InstanceId& peer, const char*& why);
  /// Handles the header of a write: `sink` is where its payload goes.
  void begin_write(const wire::FrameHeader& header, const InstanceId& peer, Sink& sink);
  /// Handles a complete payload. `landed`: the bytes are in place.
  Code end_write(const wire::FrameHeader& header, uint32_t crc, bool& landed, const char*& why);
  /// Releases the buffer that is being written.
  void release() { unpin(); }

  /// Bytes since the last call; see TcpRequests::Moved.
  struct Moved {
    uint64_t served = 0, landed = 0;
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
  // The landing buffer stays pinned for the small writes of one receive(). A lock behind a copy waits until the copied
  // bytes have reached the cache, which takes a tenth of the time of 4 KiB writes. A write that the end of a receive()
  // cut off keeps its pin, but the next write asks for a new grant. Otherwise a peer whose writes never end with a
  // receive() could hold the buffer for ever, and write into it after it was revoked.
  struct Pin {
    uint32_t buffer = 0;          // 0 = none
    bool old = false;             // pinned in an earlier receive()
    std::span<std::byte> memory;  // the whole buffer
  } pin_;
  Code write_code_ = Code::ok;  // result of the write that is arriving
  const char* write_why_ = "";
  // Writes that arrived whole are acknowledged together after the bytes of one receive(). One acknowledgement for each
  // small write would cost a twentieth of the work on both sides.
  std::optional<wire::FrameHeader> unacked_;  // the last of these writes
  Moved moved_;
};

}  // namespace mc::xfer

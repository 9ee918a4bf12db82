// The slices that this side has posted on one data lane of a tcp connection and that the peer has not answered
// (internal). The peer must answer in the order of the requests. Not thread-safe: only the thread that has the loop's
// turn calls this class.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "xfer/fifo.h"
#include "xfer/stream.h"
#include "xfer/transport.h"

namespace mc::xfer {

class TcpRequests {
 public:
  static constexpr size_t kPendingMax = 512;
  static constexpr size_t kPendingBytesMax = size_t{4} << 20;

  /// `io` must outlive the object.
  explicit TcpRequests(FrameStream& io) : io_(io) {}

  bool idle() const { return pending_.empty(); }
  /// Queues frames for slices from the front while there is room, and returns their number. `checksum`: the frames
  /// carry one.
  size_t post(std::span<const Slice> slices, bool checksum);
  /// See Transport::cancel().
  bool cancel(uint64_t slice);
  /// Handles the header of an answer. `checksum`: the answer to a read that computes no sum of its own must carry one.
  Code begin_answer(const wire::FrameHeader& header, bool checksum, Sink& sink, const char*& why);
  /// Handles a complete answer. `text` has the reason when its code is not ok.
  Code end_answer(const wire::FrameHeader& header, std::span<const std::byte> text, uint32_t crc, Reports& out,
                  const char*& why);
  /// The last byte of the slice's write frame has been sent.
  void sent(uint64_t slice, Reports& out);
  /// The lane ends. Its slices end with the connection.
  void clear();

  /// Bytes of slices that ended since the last call. They are counted once for each receive(), because an atomic add
  /// behind a copy waits until the copied bytes have reached the cache. That wait costs more than the rest of a small
  /// read.
  struct Moved {
    uint64_t read = 0, written = 0;
  };
  Moved take_moved() { return std::exchange(moved_, {}); }

 private:
  struct Pending {
    Slice slice;
    bool cancelled = false;
  };
  static constexpr size_t kNotPending = SIZE_MAX;

  size_t find(uint64_t slice) const;  // index in pending_; kNotPending = none
  void finish_writes(size_t last, Reports& out);
  void finish(size_t at, Code code, uint32_t crc, std::string text, Reports& out);

  FrameStream& io_;
  Fifo<Pending> pending_;  // in the order of posting
  size_t pending_bytes_ = 0;
  std::set<uint64_t> draining_;  // cancelled writes whose frame is partly sent
  Moved moved_;
};

}  // namespace mc::xfer

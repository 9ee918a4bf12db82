// One framed TCP connection: a state machine for receiving and a queue for sending, both non-blocking. A FrameConsumer
// interprets the frames.
//
// Receiving copies no payload: it goes from the socket to the address that its consumer names. One readv takes the rest
// of a payload and, behind it, the next header. While frames are small, the second part is a larger stage, so that many
// small frames cost few calls (xfer/receive_stage.h). Staged bytes are copied once and summed in the same pass, and
// many of them are written past the caches.
//
//     readv:  [ rest of payload -> final address ][ stage: next header, small frames ]
//
// Sending gathers headers and payloads of many frames in one sendmsg, straight from registered memory.
//
// StreamIo makes the calls, and no operation is in flight between two of them. A sealed stream uses another StreamIo
// (sealed_io.h), which takes over after the first frames of the handshake.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "wire/xfer_frame.h"
#include "xfer/fifo.h"
#include "xfer/receive_stage.h"
#include "xfer/sealed_io.h"
#include "xfer/stream_io.h"

namespace mc::xfer {

/// The destination of a frame's payload.
struct Sink {
  enum class Kind : uint8_t { collect, direct, discard };
  Kind kind = Kind::collect;
  std::byte* at = nullptr;  // direct: room for header.length bytes
  bool checksum = false;    // direct: compute CRC32C over the bytes as they arrive
  size_t whole = 0;         // direct: bytes that arrive together with these; many are written past the caches
};

class FrameConsumer {
 public:
  virtual ~FrameConsumer() = default;
  /// Called when a header has arrived. Not ok: the stream is broken. `why` is static text.
  virtual Code begin(const wire::FrameHeader& header, Sink& sink, const char*& why) = 0;
  /// Called when the payload is complete. `collected` holds it for Kind::collect.
  virtual Code end(const wire::FrameHeader& header, std::span<const std::byte> collected, uint32_t crc,
                   const char*& why) = 0;
};

class FrameStream {
 public:
  struct Out {
    wire::FrameHeader header;            // payload_crc is filled in when the frame is sent
    std::span<const std::byte> payload;  // borrowed: registered memory
    std::vector<std::byte> owned;        // owned: payload of a small frame
    uint32_t pinned = 0;                 // buffer to unpin when the frame is gone
    uint64_t slice = 0;                  // write: the slice whose memory is `payload`
    bool checksum = false;               // send the CRC32C of the payload
    bool encoded = false;                // `head` is ready
    wire::FrameBytes head{};
    size_t size() const { return head.size() + payload.size(); }
  };
  enum class Io : uint8_t { ok, blocked, broken };

  /// `io` must outlive the stream.
  explicit FrameStream(Fd fd, StreamIo& io = socket_calls()) : fd_(std::move(fd)), io_(io) {}
  int fd() const { return fd_.get(); }

  /// Seals the stream from here on: every byte that has not been parsed, and every frame that is not queued yet. At
  /// most once in the life of a stream.
  void seal(const SealSecrets& secrets, uint64_t records_per_key = kRecordsPerKey);
  bool sealed() const { return sealed_ != nullptr; }

  /// Reads until the socket is empty or `budget` bytes were taken. broken: error() has the cause.
  Io receive(FrameConsumer& consumer, size_t budget);
  /// Drops the rest of the frame that is being received, because its slice was cancelled.
  void discard_rest();
  bool receiving() const { return left_ > 0; }
  const wire::FrameHeader& current() const { return header_; }

  void push(Out out) {
    out_bytes_ += out.size();
    queue_.push_back(std::move(out));
  }
  void push(wire::FrameHeader header, std::vector<std::byte> payload);
  /// Sends until the socket is full or `budget` bytes went out. Appends finished frames with a pin or a slice to
  /// `gone`.
  struct Gone {
    uint32_t pinned;
    uint64_t slice;
  };
  Io flush(size_t budget, std::vector<Gone>& gone);
  bool idle() const { return queue_.empty() && sealing() == 0; }
  size_t queued() const { return queue_.size(); }
  size_t queued_bytes() const { return out_bytes_ + sealing(); }
  /// Whether the write frame of a slice is not wholly sent, or on a sealed stream not wholly read.
  bool holds(uint64_t slice) const;
  /// Removes the write frame of a slice if none of its bytes are on the wire yet.
  enum class Unqueued : uint8_t { removed, partly_sent, sent };
  Unqueued unqueue(uint64_t slice);
  /// Empties the queue and returns the pins and slices of its frames.
  std::vector<Gone> drop_all();

  Code code() const { return code_; }
  const std::string& error() const { return error_; }
  const char* reason() const { return reason_; }

 private:
  static constexpr size_t kStageBytes = size_t{64} << 10;
  // A whole record fits behind the beginning of a header.
  static constexpr size_t kHeaderRoom = wire::kFrameHeaderBytes;
  static constexpr size_t kSmallFrame = size_t{12} << 10;      // frames below this size are staged
  static constexpr size_t kChecksumChunk = size_t{256} << 10;  // the bytes are still in L2 when the CRC reads them
  static constexpr size_t kSendChunk = size_t{256} << 10;      // the bytes are still in L2 when they are sent

  Io fail(Code code, const char* reason, std::string text);
  Io parse_staged(FrameConsumer& consumer);
  Io start_frame(FrameConsumer& consumer);
  Io finish_frame(FrameConsumer& consumer);
  void took(size_t bytes);
  void unstage(size_t bytes);
  Io discard_some(size_t& taken);
  size_t gather(std::span<iovec> parts, size_t budget, size_t& bytes);
  StreamIo& io() { return sealed_ ? *sealed_ : io_; }
  size_t sealing() const { return sealed_ ? sealed_->pending() : 0; }  // bytes between the queue and the socket
  bool empty(bool short_read) const { return sealed_ ? sealed_->drained() : short_read; }
  Io receive_failed(ssize_t result);

  Fd fd_;
  StreamIo& io_;
  std::unique_ptr<SealedIo> sealed_;
  // receive state
  ReceiveStage stage_{kStageBytes + kHeaderRoom};
  wire::FrameHeader header_;
  bool in_frame_ = false;
  Sink sink_;
  size_t left_ = 0;  // bytes left of the payload
  uint32_t crc_ = 0;
  std::vector<std::byte> collected_;
  size_t last_payload_ = 0;
  // send state
  Fifo<Out> queue_;
  size_t sent_ = 0;   // bytes sent of the front frame
  size_t clear_ = 0;  // number of front frames that were queued before seal()
  size_t out_bytes_ = 0;
  // failure state
  Code code_ = Code::ok;
  std::string error_;
  const char* reason_ = "";
};

}  // namespace mc::xfer

// StreamIo of one sealed connection (internal). Its caller reads and writes plaintext. The socket carries the records
// of seal.h. Every byte for the caller has passed its tag.
//
// Receiving fills a stage with ciphertext and opens whole records from it straight into the caller's parts. Only a
// record that is larger than the room there goes through a buffer. Sending seals from the caller's memory into a
// bounded buffer, so bytes that send() accepted are never read again. A large part begins a record of its own, because
// the receiver needs the final address of a payload, which is known once its header has passed its tag.
//
// An object serves one socket and one thread at a time.
#pragma once

#include <memory>

#include "xfer/seal.h"
#include "xfer/stream_io.h"

namespace mc::xfer {

/// The secrets of both directions, as this side names them.
struct SealSecrets {
  SealSecret out{};
  SealSecret in{};
};

class SealedIo final : public StreamIo {
 public:
  /// `under` must outlive the object.
  SealedIo(StreamIo& under, const SealSecrets& secrets, uint64_t records_per_key = kRecordsPerKey)
      : under_(under), out_(secrets.out, records_per_key), in_(secrets.in, records_per_key) {}

  /// -EBADMSG: a record is not the peer's, or the stream ended inside a record; reason() has the text. `flags` are
  /// ignored, because MSG_TRUNC only saves a copy.
  ssize_t receive(int fd, std::span<const iovec> parts, int flags) override;
  /// Returns the number of bytes sealed. Sends as much as the socket takes. Without parts, sends pending bytes.
  ssize_t send(int fd, std::span<const iovec> parts) override;

  /// Adds ciphertext that was read from the socket before the keys were known.
  void feed(std::span<const std::byte> ciphertext);
  /// Whether receive() has bytes or an error without a read of the socket.
  bool buffered() const { return reason_[0] != 0 || plain_begin_ < plain_end_ || whole_record(); }
  /// The last read emptied the socket, and nothing is buffered.
  bool drained() const { return short_read_ && !buffered(); }
  /// Sealed bytes that the socket has not taken yet.
  size_t pending() const { return sealed_end_ - sealed_begin_; }
  /// Static text: why receive() failed with -EBADMSG.
  const char* reason() const { return reason_; }

 private:
  static constexpr size_t kRecordsAhead = 4;
  // KRecordsAhead records and a few short ones.
  static constexpr size_t kRoom = kRecordsAhead * (kRecordBytes + kRecordExtra) + 4096;
  static constexpr size_t kAlone = size_t{16} << 10;  // a part of at least this size begins a record

  class Parts;
  using Bytes = std::unique_ptr<std::byte[]>;
  static Bytes& made(Bytes& bytes, size_t size);
  size_t open_records(Parts& parts);
  size_t seal_record(Parts& parts);
  bool whole_record() const;
  void make_room();

  StreamIo& under_;
  Seal out_;
  Seal in_;
  Bytes stage_;  // ciphertext; pages that are never used cost nothing
  size_t stage_begin_ = 0;
  size_t stage_end_ = 0;
  bool short_read_ = false;
  bool first_ = true;  // no record was opened yet
  Bytes plain_;        // one record that had no room at its destination
  size_t plain_begin_ = 0;
  size_t plain_end_ = 0;
  Bytes sealed_;  // records to be sent
  size_t sealed_begin_ = 0;
  size_t sealed_end_ = 0;
  const char* reason_ = "";
};

}  // namespace mc::xfer

// StreamIo of one sealed connection (internal): its caller reads and writes plaintext, the socket carries the
// records of seal.h. Every byte that the caller gets has passed its tag.
//
// Receiving fills a stage with ciphertext and opens whole records from it straight into the caller's parts; only a
// record that is larger than the room there goes through a buffer of its own. Sending seals from the caller's memory
// into a bounded buffer: a byte that send() took is no longer read at its place. A large part begins a record of its
// own, because the receiver knows the final address of a payload only when its header has passed its tag.
//
// One socket; used by one thread at a time.
#pragma once

#include <memory>

#include "xfer/seal.h"
#include "xfer/stream_io.h"

namespace mc::xfer {

/// Both directions, as this side sees them.
struct SealSecrets {
  SealSecret out{};
  SealSecret in{};
};

class SealedIo final : public StreamIo {
 public:
  /// `under` outlives it.
  SealedIo(StreamIo& under, const SealSecrets& secrets, uint64_t records_per_key = kRecordsPerKey)
      : under_(under), out_(secrets.out, records_per_key), in_(secrets.in, records_per_key) {}

  /// -EBADMSG: a record is not the peer's, or the stream ended inside a record; see reason(). `flags` are
  /// ignored: MSG_TRUNC only spares a copy.
  ssize_t receive(int fd, std::span<const iovec> parts, int flags) override;
  /// Returns the bytes that were sealed, and sent as far as the socket had room. With no parts, sends pending bytes.
  ssize_t send(int fd, std::span<const iovec> parts) override;

  /// Ciphertext that was read from the socket before the keys were known.
  void feed(std::span<const std::byte> ciphertext);
  /// receive() has bytes or an error without a read of the socket.
  bool buffered() const { return reason_[0] != 0 || plain_begin_ < plain_end_ || whole_record(); }
  /// The last read emptied the socket, and nothing is buffered.
  bool drained() const { return short_read_ && !buffered(); }
  /// Sealed bytes that the socket did not take yet.
  size_t pending() const { return sealed_end_ - sealed_begin_; }
  /// Why receive() failed with -EBADMSG; static.
  const char* reason() const { return reason_; }

 private:
  static constexpr size_t kRecordsAhead = 4;
  static constexpr size_t kRoom = kRecordsAhead * (kRecordBytes + kRecordExtra) + 4096;  // and a few short records
  static constexpr size_t kAlone = size_t{16} << 10;  // parts from this size on begin a record

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
  Bytes plain_;        // of one record that had no room at its place
  size_t plain_begin_ = 0;
  size_t plain_end_ = 0;
  Bytes sealed_;  // records on their way out
  size_t sealed_begin_ = 0;
  size_t sealed_end_ = 0;
  const char* reason_ = "";
};

}  // namespace mc::xfer

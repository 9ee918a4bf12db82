#include "xfer/sealed_io.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/assert.h"

namespace mc::xfer {

/// A cursor over the caller's parts.
class SealedIo::Parts {
 public:
  static constexpr size_t kMax = 64;  // limit of parts in one record
  using Cut = std::array<iovec, kMax>;

  explicit Parts(std::span<const iovec> parts) : parts_(parts) { skip_empty(); }
  bool done() const { return at_ == parts_.size(); }
  size_t here() const { return parts_[at_].iov_len - offset_; }  // bytes left of the current part
  size_t room() const {
    size_t bytes = 0;
    for (size_t i = at_; i < parts_.size(); ++i) bytes += parts_[i].iov_len;
    return bytes - offset_;
  }
  /// The next bytes of the current part, at most `most`.
  iovec take(size_t most) {
    const iovec cut{static_cast<std::byte*>(parts_[at_].iov_base) + offset_, std::min(most, here())};
    offset_ += cut.iov_len;
    skip_empty();
    return cut;
  }
  /// Takes the next `bytes`, which must exist. Returns the number of parts that they are in.
  size_t take(size_t bytes, Cut& cut) {
    size_t count = 0;
    while (bytes > 0) {
      MC_ASSERT_LT(count, cut.size());
      cut[count] = take(bytes);
      bytes -= cut[count++].iov_len;
    }
    return count;
  }

 private:
  void skip_empty() {
    while (!done() && here() == 0) {
      ++at_;
      offset_ = 0;
    }
  }
  std::span<const iovec> parts_;
  size_t at_ = 0;
  size_t offset_ = 0;
};

SealedIo::Bytes& SealedIo::made(Bytes& bytes, size_t size) {
  if (bytes == nullptr) bytes = std::make_unique_for_overwrite<std::byte[]>(size);
  return bytes;
}

bool SealedIo::whole_record() const {
  const size_t bytes = stage_end_ - stage_begin_;
  if (bytes < kRecordHead) return false;
  // A length that is out of range counts as a whole record, which open_records() refuses.
  const size_t length =
      record_length(std::span<const std::byte, kRecordHead>(stage_.get() + stage_begin_, kRecordHead));
  return length == 0 || bytes >= length + kRecordExtra;
}

void SealedIo::feed(std::span<const std::byte> ciphertext) {
  MC_ASSERT_LE(ciphertext.size(), kRoom - stage_end_);
  if (ciphertext.empty()) return;
  std::memcpy(made(stage_, kRoom).get() + stage_end_, ciphertext.data(), ciphertext.size());
  stage_end_ += ciphertext.size();
}

/// Opens the whole records that fit into the parts, but at least one if there is one. Returns the bytes handed out.
size_t SealedIo::open_records(Parts& parts) {
  size_t out = 0;
  while (reason_[0] == 0 && whole_record()) {
    const std::byte* at = stage_.get() + stage_begin_;
    const size_t length = record_length(std::span<const std::byte, kRecordHead>(at, kRecordHead));
    const bool fits = length <= parts.room();
    if (!fits && out > 0) break;
    Parts::Cut cut;
    size_t count = 1;
    if (fits && length > 0)
      count = parts.take(length, cut);
    else
      cut[0] = {made(plain_, kRecordBytes).get(), length};
    if (length == 0 || !in_.open({at, length + kRecordExtra}, std::span(cut).first(count))) {
      reason_ = first_        ? "seal: first record does not open"
                : length == 0 ? "seal: record length out of bounds"
                              : "seal: record fails its tag";
      break;
    }
    first_ = false;
    stage_begin_ += length + kRecordExtra;
    if (fits) {
      out += length;
      continue;
    }
    plain_begin_ = 0;
    plain_end_ = length;
    break;
  }
  return out;
}

void SealedIo::make_room() {
  if (stage_begin_ == 0) return;
  // less than a record is left
  if (stage_begin_ == stage_end_ || kRoom - stage_begin_ < kRoom / 2) {
    std::memmove(stage_.get(), stage_.get() + stage_begin_, stage_end_ - stage_begin_);
    stage_end_ -= stage_begin_;
    stage_begin_ = 0;
  }
}

ssize_t SealedIo::receive(int fd, std::span<const iovec> wanted, int) {
  Parts parts(wanted);
  for (;;) {
    if (plain_begin_ == plain_end_) {
      if (const size_t out = open_records(parts); out > 0) return static_cast<ssize_t>(out);
      if (reason_[0] != 0) return -EBADMSG;
    }
    if (plain_begin_ < plain_end_) {
      size_t out = 0;
      while (!parts.done() && plain_begin_ < plain_end_) {
        const iovec part = parts.take(plain_end_ - plain_begin_);
        std::memcpy(part.iov_base, plain_.get() + plain_begin_, part.iov_len);
        plain_begin_ += part.iov_len;
        out += part.iov_len;
      }
      return static_cast<ssize_t>(out);
    }
    make_room();
    const iovec room{made(stage_, kRoom).get() + stage_end_, kRoom - stage_end_};
    const ssize_t n = under_.receive(fd, {&room, 1}, 0);
    short_read_ = n < static_cast<ssize_t>(room.iov_len);
    if (n == 0 && stage_begin_ < stage_end_) {
      reason_ = "seal: stream ends inside a record";
      return -EBADMSG;
    }
    if (n <= 0) return n;
    stage_end_ += static_cast<size_t>(n);
  }
}

/// Appends one record with the next bytes of the parts. Returns how many of their bytes it holds.
size_t SealedIo::seal_record(Parts& parts) {
  Parts::Cut cut;
  size_t count = 0;
  size_t length = 0;
  while (!parts.done() && count < cut.size() && length < kRecordBytes) {
    if (count > 0 && parts.here() >= kAlone) break;
    cut[count] = parts.take(kRecordBytes - length);
    length += cut[count++].iov_len;
  }
  out_.seal(std::span(cut).first(count), {sealed_.get() + sealed_end_, length + kRecordExtra});
  sealed_end_ += length + kRecordExtra;
  return length;
}

ssize_t SealedIo::send(int fd, std::span<const iovec> wanted) {
  Parts parts(wanted);
  size_t taken = 0;
  for (;;) {
    if (pending() > 0) {
      const iovec part{sealed_.get() + sealed_begin_, pending()};
      const ssize_t n = under_.send(fd, {&part, 1});
      if (n > 0) sealed_begin_ += static_cast<size_t>(n);
      if (pending() > 0) {  // the next call returns an error
        if (taken > 0) return static_cast<ssize_t>(taken);
        return n < 0 ? n : -EAGAIN;
      }
    }
    sealed_begin_ = sealed_end_ = 0;
    if (parts.done()) return static_cast<ssize_t>(taken);
    made(sealed_, kRoom);
    while (!parts.done() && kRoom - sealed_end_ >= kRecordBytes + kRecordExtra) taken += seal_record(parts);
  }
}

}  // namespace mc::xfer

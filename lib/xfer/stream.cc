#include "xfer/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/copy_crc.h"
#include "base/hash.h"

namespace mc::xfer {

using wire::kFrameHeaderBytes;

namespace {

std::string failed_call(const char* call, ssize_t result) {
  return errno_error(call, static_cast<int>(-result)).what;
}

}  // namespace

FrameStream::Io FrameStream::fail(Code code, const char* reason, std::string text) {
  code_ = code;
  reason_ = reason;
  error_ = std::move(text);
  return Io::broken;
}

void FrameStream::seal(const SealSecrets& secrets, uint64_t records_per_key) {
  MC_ASSERT(!sealed_);
  MC_ASSERT(!in_frame_ || left_ == 0);
  clear_ = queue_.size();
  sealed_ = std::make_unique<SealedIo>(io_, secrets, records_per_key);
  sealed_->feed(stage_.bytes());
  stage_.clear();
}

/// Interprets the result of a call that received nothing.
FrameStream::Io FrameStream::receive_failed(ssize_t result) {
  if (result == -EAGAIN || result == -EINTR) return Io::blocked;
  if (result == -EBADMSG && sealed_) return fail(Code::corrupt, sealed_->reason(), sealed_->reason());
  return fail(Code::peer_lost, "connection lost", result == 0 ? "closed by the peer" : failed_call("recv", result));
}

void FrameStream::took(size_t bytes) {
  if (sink_.kind != Sink::Kind::discard) {
    if (sink_.checksum) crc_ = crc32c({sink_.at, bytes}, crc_);
    sink_.at += bytes;
  }
  left_ -= bytes;
}

/// Takes payload bytes from the stage.
void FrameStream::unstage(size_t bytes) {
  const std::byte* from = stage_.bytes().data();
  if (sink_.kind != Sink::Kind::discard && bytes > 0) {
    if (sink_.checksum)
      crc_ = copy_crc32c(sink_.at, from, bytes, crc_, sink_.whole);
    else
      copy_bytes(sink_.at, from, bytes, sink_.whole);
    sink_.at += bytes;
  }
  stage_.drop(bytes);
  left_ -= bytes;
}

FrameStream::Io FrameStream::start_frame(FrameConsumer& consumer) {
  const char* why = nullptr;
  const auto head = stage_.bytes().first<kFrameHeaderBytes>();
  if (const Code code = wire::decode(head, header_, why); code == Code::unsupported)
    return fail(code, why,
                "the peer uses protocol version " + std::to_string(header_.version) + ", this process uses " +
                    std::to_string(wire::kXferVersion));
  else if (code != Code::ok)
    return fail(code, why, std::string("bad frame: ") + why);
  stage_.drop(kFrameHeaderBytes);
  sink_ = {};
  crc_ = 0;
  if (const Code code = consumer.begin(header_, sink_, why); code != Code::ok)
    return fail(code, why, "frame '" + std::string(to_string(header_.kind())) + "': " + why);
  left_ = header_.payload_bytes();
  last_payload_ = left_;
  in_frame_ = true;
  if (sink_.kind == Sink::Kind::collect) {
    MC_ASSERT_LE(left_, wire::kFrameControlMax);  // decode() bounds every type that is collected
    collected_.resize(left_);
    sink_.at = collected_.data();
  }
  return Io::ok;
}

FrameStream::Io FrameStream::finish_frame(FrameConsumer& consumer) {
  in_frame_ = false;
  const char* why = nullptr;
  const bool collected = sink_.kind == Sink::Kind::collect;
  const std::span<const std::byte> bytes =
      collected ? std::span<const std::byte>(collected_) : std::span<const std::byte>();
  if (const Code code = consumer.end(header_, bytes, crc_, why); code != Code::ok)
    return fail(code, why, "frame '" + std::string(to_string(header_.kind())) + "': " + why);
  return Io::ok;
}

/// Consumes from the stage whole frames, and the beginning of the next one.
FrameStream::Io FrameStream::parse_staged(FrameConsumer& consumer) {
  for (;;) {
    if (in_frame_) {
      unstage(std::min(left_, stage_.size()));
      if (left_ > 0) break;
      if (finish_frame(consumer) == Io::broken) return Io::broken;
    }
    if (stage_.size() < kFrameHeaderBytes) break;
    if (start_frame(consumer) == Io::broken) return Io::broken;
  }
  stage_.compact();  // at most the beginning of a header is left
  return Io::ok;
}

FrameStream::Io FrameStream::discard_some(size_t& taken) {
  // With MSG_TRUNC, TCP drops the bytes without copying them. Other sockets copy them, so the size of the stage is the
  // limit.
  const auto scratch = stage_.scratch();
  const iovec part{scratch.data(), std::min(left_, scratch.size())};
  const ssize_t n = io().receive(fd_.get(), {&part, 1}, MSG_TRUNC);
  if (n <= 0) return receive_failed(n);
  taken = static_cast<size_t>(n);
  took(taken);
  return Io::ok;
}

FrameStream::Io FrameStream::receive(FrameConsumer& consumer, size_t budget) {
  // Bytes buffered by the seal must be taken, because the socket will not report them.
  while (budget > 0 || (sealed_ && sealed_->buffered())) {
    if (parse_staged(consumer) == Io::broken) return Io::broken;
    size_t taken = 0;
    if (in_frame_ && sink_.kind == Sink::Kind::discard) {
      if (const Io io = discard_some(taken); io != Io::ok) return io;
      budget -= std::min(budget, taken);
      continue;
    }
    std::array<iovec, 2> parts;
    size_t direct = 0;
    size_t count = 0;
    if (in_frame_) {
      direct = std::min(left_, sink_.checksum ? kChecksumChunk : std::max(budget, size_t{64} << 10));
      parts[count++] = {sink_.at, direct};
    }
    size_t room = 0;
    if (direct == left_) {  // the next header may follow
      const auto behind = stage_.room(last_payload_ < kSmallFrame ? stage_.capacity() : kFrameHeaderBytes);
      room = behind.size();
      parts[count++] = {behind.data(), room};
    }
    const ssize_t n = io().receive(fd_.get(), std::span(parts).first(count), 0);
    if (n <= 0) return receive_failed(n);
    taken = static_cast<size_t>(n);
    const size_t into_payload = std::min(direct, taken);
    if (into_payload > 0) took(into_payload);
    stage_.filled(taken - into_payload);
    budget -= std::min(budget, taken);
    if (empty(taken < direct + room)) {  // saves the call that would report it
      const Io io = parse_staged(consumer);
      if (io == Io::broken || empty(true)) return io == Io::broken ? io : Io::blocked;
    }
  }
  return parse_staged(consumer);
}

void FrameStream::discard_rest() {
  MC_ASSERT(in_frame_);
  sink_ = {Sink::Kind::discard, nullptr, false};
}

void FrameStream::push(wire::FrameHeader header, std::vector<std::byte> payload) {
  Out out;
  header.length = payload.size();
  out.header = header;
  out.owned = std::move(payload);
  out.payload = out.owned;  // a moved vector keeps its storage, so the span stays valid
  push(std::move(out));
}

/// Prefetches the payload of the next frame while this one is handled. A payload may be anywhere in a large pool, and
/// hardware prefetch stays within a page.
void prefetch(std::span<const std::byte> payload) {
  for (size_t at = 0; at < std::min(payload.size(), size_t{512}); at += 64) __builtin_prefetch(payload.data() + at);
}

/// Collects the parts of the next call: the rest of the front frame and the frames behind it, but not clear and sealed
/// ones together. Returns their number.
size_t FrameStream::gather(std::span<iovec> parts, size_t budget, size_t& bytes) {
  size_t count = 0;
  size_t summed = 0;
  size_t skip = sent_;
  const size_t frames = clear_ > 0 ? clear_ : queue_.size();
  for (size_t i = 0; i < frames; ++i) {
    Out& out = queue_[i];
    if (count + 2 > parts.size() || bytes >= budget || summed >= kSendChunk) break;
    if (!out.encoded) {
      // The checksum is computed here and not when the frame was queued, so that the kernel copies the bytes from the
      // cache.
      if (out.checksum) {
        out.header.flags |= wire::kFrameHasPayloadCrc;
        out.header.payload_crc = crc32c(out.payload);
        summed += out.payload.size();
      }
      out.head = wire::encode(out.header);
      out.encoded = true;
    }
    const auto add = [&](std::span<const std::byte> part) {
      const size_t drop = std::min(skip, part.size());
      skip -= drop;
      part = part.subspan(drop);
      if (part.empty()) return;
      parts[count++] = {const_cast<std::byte*>(part.data()), part.size()};
      bytes += part.size();
    };
    add(out.head);
    add(out.payload);
    if (i + 1 < queue_.size()) prefetch(queue_[i + 1].payload);
  }
  return count;
}

FrameStream::Io FrameStream::flush(size_t budget, std::vector<Gone>& gone) {
  constexpr size_t kPartsMax = 256;
  while (!idle() && budget > 0) {
    std::array<iovec, kPartsMax> parts;
    size_t bytes = 0;
    const size_t count = gather(parts, budget, bytes);
    const ssize_t n = (clear_ > 0 ? io_ : io()).send(fd_.get(), std::span(parts).first(count));
    if (n < 0) {
      if (n == -EAGAIN || n == -EINTR || n == -ENOBUFS) return Io::blocked;
      return fail(Code::peer_lost, "connection lost", failed_call("send", n));
    }
    size_t went = static_cast<size_t>(n);
    budget -= std::min(budget, went);
    out_bytes_ -= went;
    sent_ += went;
    while (!queue_.empty() && sent_ >= queue_.front().size()) {
      sent_ -= queue_.front().size();
      if (queue_.front().pinned != 0 || queue_.front().slice != 0)
        gone.push_back({queue_.front().pinned, queue_.front().slice});
      queue_.pop_front();
      if (clear_ > 0) --clear_;
    }
    if (went < bytes) return Io::blocked;
  }
  return Io::ok;
}

bool FrameStream::holds(uint64_t slice) const {
  for (size_t i = 0; i < queue_.size(); ++i)
    if (queue_[i].slice == slice) return true;
  return false;
}

FrameStream::Unqueued FrameStream::unqueue(uint64_t slice) {
  for (size_t i = 0; i < queue_.size(); ++i) {
    if (queue_[i].slice != slice) continue;
    if (i == 0 && sent_ > 0) return Unqueued::partly_sent;
    MC_ASSERT_LE(queue_[i].size(), out_bytes_);
    MC_ASSERT_LE(clear_, i);  // a handshake has no slices
    out_bytes_ -= queue_[i].size();
    queue_.erase(i);
    return Unqueued::removed;
  }
  return Unqueued::sent;
}

std::vector<FrameStream::Gone> FrameStream::drop_all() {
  std::vector<Gone> gone;
  for (size_t i = 0; i < queue_.size(); ++i)
    if (queue_[i].pinned != 0 || queue_[i].slice != 0) gone.push_back({queue_[i].pinned, queue_[i].slice});
  queue_.clear();
  sent_ = 0;
  clear_ = 0;
  out_bytes_ = 0;
  return gone;
}

}  // namespace mc::xfer

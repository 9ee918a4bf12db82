#include "xfer_tcp/requests.h"

#include "base/assert.h"

namespace mc::xfer {

using wire::FrameHeader;
using wire::FrameType;

size_t TcpRequests::post(std::span<const Slice> slices, bool checksum) {
  size_t taken = 0;
  for (const Slice& slice : slices) {
    const size_t bytes = slice.local.size();
    if (pending_.size() >= kPendingMax || (!pending_.empty() && pending_bytes_ + bytes > kPendingBytesMax)) break;
    FrameHeader header;
    header.type = static_cast<uint8_t>(slice.op == Op::read ? FrameType::read : FrameType::write);
    header.id = slice.id;
    header.buffer = slice.buffer;
    header.snapshot = slice.snapshot;
    header.offset = slice.offset;
    header.length = bytes;
    FrameStream::Out frame;
    if (slice.op == Op::write) {
      frame.payload = slice.local;
      frame.slice = slice.id;
      frame.checksum = checksum;
      header.flags |= wire::kFrameTogether;
      if (slice.immediate) {
        header.flags |= wire::kFrameHasImmediate;
        header.immediate = *slice.immediate;
      }
    } else if (checksum && !slice.checksum) {
      header.flags |= wire::kFrameHasPayloadCrc;  // asks for a checksum
    }
    frame.header = header;
    io_.push(std::move(frame));
    pending_.push_back({slice, false});
    pending_bytes_ += bytes;
    ++taken;
  }
  MC_ASSERT_LE(pending_.size(), kPendingMax);
  MC_ASSERT(taken == slices.size() || !pending_.empty());  // an idle lane takes one slice, however large
  return taken;
}

bool TcpRequests::cancel(uint64_t slice) {
  const size_t index = find(slice);
  // The report of its completion was lost on the way to the engine, so no memory is in use.
  if (index == kNotPending) return true;
  Pending& at = pending_[index];
  if (at.slice.op == Op::read) {
    at.cancelled = true;  // the answer will come and be dropped
    const FrameHeader& current = io_.current();
    if (io_.receiving() && current.kind() == FrameType::data && current.id == slice) io_.discard_rest();
    return true;
  }
  switch (io_.unqueue(slice)) {
    case FrameStream::Unqueued::removed:
      MC_ASSERT_LE(at.slice.local.size(), pending_bytes_);
      pending_bytes_ -= at.slice.local.size();
      pending_.erase(index);
      return true;
    case FrameStream::Unqueued::sent: at.cancelled = true; return true;
    case FrameStream::Unqueued::partly_sent:
      draining_.insert(slice);  // sent() reports the slice when its last byte has been sent
      return false;
  }
  return false;
}

Code TcpRequests::begin_answer(const FrameHeader& header, bool checksum, Sink& sink, const char*& why) {
  const size_t at = find(header.id);
  if (at == kNotPending || pending_[at].slice.op != Op::read) {
    why = "answer without a request";
    return Code::corrupt;
  }
  if (header.code() != Code::ok) return Code::ok;  // the short error text is collected
  const Pending& asked = pending_[at];
  if (header.length != asked.slice.local.size()) {
    why = "answer of another length than requested";
    return Code::corrupt;
  }
  sink.kind = asked.cancelled ? Sink::Kind::discard : Sink::Kind::direct;
  sink.at = asked.slice.local.data();
  const bool guarded = (header.flags & wire::kFrameHasPayloadCrc) != 0;
  if (!guarded && !asked.slice.checksum && checksum) {
    why = "answer without the requested checksum";
    return Code::corrupt;
  }
  sink.checksum = asked.slice.checksum || guarded;
  sink.whole = pending_bytes_;
  return Code::ok;
}

Code TcpRequests::end_answer(const FrameHeader& header, std::span<const std::byte> text, uint32_t crc, Reports& out,
                             const char*& why) {
  const size_t at = find(header.id);
  const Op op = header.kind() == FrameType::ack ? Op::write : Op::read;
  if (at == kNotPending || pending_[at].slice.op != op) {
    why = "answer without a request";
    return Code::corrupt;
  }
  if (op == Op::write && io_.holds(header.id)) {
    why = "write acknowledged before it was sent";
    return Code::corrupt;
  }
  if ((header.flags & wire::kFrameTogether) != 0 && header.code() == Code::ok) {
    finish_writes(at, out);
    return Code::ok;
  }
  Code code = header.code();
  std::string what;
  if (code != Code::ok) {
    what.assign(reinterpret_cast<const char*>(text.data()), text.size());
  } else if (op == Op::read && (header.flags & wire::kFrameHasPayloadCrc) != 0 && !pending_[at].cancelled &&
             crc != header.payload_crc) {
    code = Code::corrupt;
    what = "payload fails its frame's checksum";
  }
  finish(at, code, crc, std::move(what), out);
  return Code::ok;
}

/// One acknowledgement ends the write at that index and all writes before it. Reads have answers of their own.
void TcpRequests::finish_writes(size_t last, Reports& out) {
  MC_ASSERT_LT(last, pending_.size());
  size_t reads = 0;
  for (size_t left = last + 1; left > 0; --left) {
    if (pending_[reads].slice.op == Op::write)
      finish(reads, Code::ok, 0, {}, out);
    else
      ++reads;
  }
}

size_t TcpRequests::find(uint64_t slice) const {
  for (size_t i = 0; i < pending_.size(); ++i)
    if (pending_[i].slice.id == slice) return i;
  return kNotPending;
}

void TcpRequests::finish(size_t index, Code code, uint32_t crc, std::string text, Reports& out) {
  MC_ASSERT_LT(index, pending_.size());
  const Pending& at = pending_[index];
  MC_ASSERT_LE(at.slice.local.size(), pending_bytes_);
  pending_bytes_ -= at.slice.local.size();
  if (!at.cancelled) {
    if (code == Code::ok) (at.slice.op == Op::read ? moved_.read : moved_.written) += at.slice.local.size();
    // A refused write never delivers its immediate.
    out.done.push_back({at.slice.id, code, crc, std::move(text), code != Code::ok});
  }
  pending_.erase(index);
  MC_ASSERT(!pending_.empty() || pending_bytes_ == 0);
}

void TcpRequests::sent(uint64_t slice, Reports& out) {
  if (draining_.erase(slice) == 0) return;
  const size_t at = find(slice);
  if (at == kNotPending) return;
  pending_[at].cancelled = true;  // the acknowledgement that follows is dropped
  out.done.push_back({slice, Code::cancelled, 0, "cancelled while it was being sent"});
}

void TcpRequests::clear() {
  pending_.clear();
  pending_bytes_ = 0;
}

}  // namespace mc::xfer

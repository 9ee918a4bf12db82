// What the frames of a tcp lane mean. Everything a peer says is checked here before a byte moves:
// ranges against the access table, answers against the questions that were asked.
#include <algorithm>

#include "base/assert.h"
#include "xfer/access.h"
#include "xfer/tally.h"
#include "xfer_tcp/transport.h"

namespace mc::xfer {

using wire::FrameHeader;
using wire::FrameType;

namespace {

FrameHeader answer(FrameType type, const FrameHeader& question, Code code) {
  FrameHeader header;
  header.type = static_cast<uint8_t>(type);
  header.id = question.id;
  header.status = static_cast<uint32_t>(code);
  return header;
}

std::vector<std::byte> text_bytes(std::string_view text) {
  const auto* p = reinterpret_cast<const std::byte*>(text.data());
  return {p, p + std::min(text.size(), wire::kReasonBytesMax)};
}

/// "why: read of buffer 3 [0, +4096)"; and that the asker looked at an old descriptor, if it did.
std::vector<std::byte> refusal_text(const char* why, const char* what, const FrameHeader& header, uint32_t version) {
  std::string text = std::string(why) + ": " + what + " of buffer " + std::to_string(header.buffer) + " [" +
                     std::to_string(header.offset) + ", +" + std::to_string(header.length) + ")";
  if (header.snapshot != version)
    text += "; asked with descriptor version " + std::to_string(header.snapshot) + ", now " + std::to_string(version);
  return text_bytes(text);
}

}  // namespace

/// Each record of a sealed stream has its tag, which sees all that a checksum sees.
bool TcpLane::wants_crc() const {
  return transport_.home().options->payload_crc && !io.sealed();
}

StreamIo& TcpLane::io_of(TcpTransport& transport) {
  return transport.io();
}

Access& TcpLane::access() const {
  return *transport_.home().access;
}

Code TcpLane::begin(const FrameHeader& header, Sink& sink, const char*& why) {
  if (!ready()) return begin_handshake(header, why);
  if (index != 0) return begin_data(header, sink, why);
  switch (header.kind()) {
    case FrameType::notify:
    case FrameType::describe:
    case FrameType::goodbye: return Code::ok;
    default: why = "unexpected on a control lane"; return Code::corrupt;
  }
}

Code TcpLane::begin_handshake(const FrameHeader& header, const char*& why) const {
  switch (header.kind()) {
    case FrameType::hello:
    case FrameType::challenge:
    case FrameType::proof:
    case FrameType::ready:
    case FrameType::refuse: return Code::ok;
    default: why = "transfer before the handshake"; return Code::corrupt;
  }
}

Code TcpLane::begin_data(const FrameHeader& header, Sink& sink, const char*& why) {
  switch (header.kind()) {
    case FrameType::read:
    case FrameType::ack: return Code::ok;
    case FrameType::write:
      if ((header.flags & wire::kFrameHasImmediate) != 0 && !endpoint->up) {
        why = "immediate before the connection was up";
        return Code::corrupt;
      }
      begin_write(header, sink);
      return Code::ok;
    case FrameType::data: break;
    default: why = "unexpected on a data lane"; return Code::corrupt;
  }
  const size_t at = find(header.id);
  if (at == kNotPending || pending_[at].slice.op != Op::read) {
    why = "answer to a question that was not asked";
    return Code::corrupt;
  }
  if (header.code() != Code::ok) return Code::ok;  // a short text is collected
  const Pending& asked = pending_[at];
  if (header.length != asked.slice.local.size()) {
    why = "answer of another length than asked";
    return Code::corrupt;
  }
  sink.kind = asked.cancelled ? Sink::Kind::discard : Sink::Kind::direct;
  sink.at = asked.slice.local.data();
  const bool guarded = (header.flags & wire::kFrameHasPayloadCrc) != 0;
  if (!guarded && !asked.slice.checksum && wants_crc()) {
    why = "answer without the checksum that was asked for";
    return Code::corrupt;
  }
  sink.checksum = asked.slice.checksum || guarded;
  sink.whole = pending_bytes_;
  return Code::ok;
}

void TcpLane::begin_write(const FrameHeader& header, Sink& sink) {
  write_code_ = Code::ok;
  if (write_pin_ == 0 || write_old_ || write_pin_ != header.buffer ||
      !inside(header.offset, header.length, write_memory_.size())) {
    drop_write_pin();
    const auto grant = access().grant(Op::write, header.buffer, header.offset, header.length, endpoint->identity());
    write_code_ = grant.code;
    write_why_ = grant.why;
    if (grant.code != Code::ok) {
      sink.kind = Sink::Kind::discard;
      return;
    }
    write_pin_ = header.buffer;
    write_old_ = false;
    write_memory_ = grant.whole;
  }
  sink = {Sink::Kind::direct, write_memory_.data() + header.offset, (header.flags & wire::kFrameHasPayloadCrc) != 0,
          moved_.landed + header.length};
}

void TcpLane::drop_write_pin() {
  if (write_pin_ != 0) access().unpin(std::exchange(write_pin_, 0));
  write_memory_ = {};
}

Code TcpLane::end(const FrameHeader& header, std::span<const std::byte> collected, uint32_t crc, const char*& why) {
  if (!ready()) return end_handshake(header, collected, why);
  if (index == 0) return end_control(header, collected, why);
  switch (header.kind()) {
    case FrameType::read: return serve_read(header, why);
    case FrameType::write: return end_write(header, crc, why);
    default: return end_answer(header, collected, crc, why);
  }
}

Code TcpLane::end_handshake(const FrameHeader& header, std::span<const std::byte> payload, const char*& why) {
  Handshake::Step step = handshake.take(header, payload, io);
  if (step.failed) {
    why = step.reason;
    News news{.kind = News::Kind::lost, .gone = step.gone, .code = step.failed->code, .text = step.failed->what};
    failure = std::move(news);
    return step.failed->code;
  }
  return ready() ? transport_.joined(*this, why) : Code::ok;
}

Code TcpLane::end_control(const FrameHeader& header, std::span<const std::byte> payload, const char*& why) {
  News news{.endpoint = endpoint->id};
  switch (header.kind()) {
    case FrameType::notify:
      news.kind = News::Kind::notify;
      news.bytes.assign(payload.begin(), payload.end());
      break;
    case FrameType::describe: {
      auto descriptor = wire::decode_descriptor(payload);
      if (!descriptor || descriptor->instance != endpoint->peer) {
        why = "malformed or foreign descriptor";
        return Code::corrupt;
      }
      news.kind = News::Kind::described;
      news.descriptor = std::make_shared<const Descriptor>(std::move(*descriptor));
      break;
    }
    default: {  // goodbye
      why = "goodbye";
      const std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
      failure = News{.kind = News::Kind::lost, .gone = true, .code = Code::peer_lost, .text = "the peer left: " + text};
      return Code::peer_lost;
    }
  }
  out->news.push_back(std::move(news));
  return Code::ok;
}

Code TcpLane::serve_read(const FrameHeader& header, const char*& why) {
  if (io.queued() >= kServedMax) {
    why = "more requests outstanding than a lane allows";
    return Code::corrupt;
  }
  send_ack();  // answers leave in the order of the questions
  const auto grant = access().grant(Op::read, header.buffer, header.offset, header.length, endpoint->identity());
  if (grant.code != Code::ok) {
    Tally& tally = *transport_.home().tally;
    tally.add(Count::requests_refused);
    tally.failure(grant.why);
    io.push(answer(FrameType::data, header, grant.code), refusal_text(grant.why, "read", header, access().version()));
    return Code::ok;
  }
  FrameHeader head = answer(FrameType::data, header, Code::ok);
  head.length = grant.memory.size();
  ++moved_.requests;
  moved_.served += grant.memory.size();
  // the asker decides: it knows whether the bytes have a checksum of their own
  const bool checksum = (header.flags & wire::kFrameHasPayloadCrc) != 0;
  io.push({.header = head, .payload = grant.memory, .pinned = header.buffer, .checksum = checksum});
  return Code::ok;
}

Code TcpLane::end_write(const FrameHeader& header, uint32_t crc, const char*& why) {
  if (io.queued() >= kServedMax) {
    why = "more requests outstanding than a lane allows";
    return Code::corrupt;
  }
  if (write_code_ == Code::ok && (header.flags & wire::kFrameHasPayloadCrc) != 0 && crc != header.payload_crc) {
    write_code_ = Code::corrupt;
    write_why_ = "payload fails its checksum";
  }
  if (write_code_ == Code::ok) {
    ++moved_.requests;
    moved_.landed += header.length;
    if ((header.flags & wire::kFrameTogether) != 0)
      unacked_ = header;
    else
      io.push(answer(FrameType::ack, header, Code::ok), {});
    if ((header.flags & wire::kFrameHasImmediate) != 0) {
      tells = true;
      out->news.push_back({.kind = News::Kind::immediate, .endpoint = endpoint->id, .immediate = header.immediate});
    }
  } else {
    send_ack();
    Tally& tally = *transport_.home().tally;
    tally.add(Count::requests_refused);
    tally.failure(write_why_);
    io.push(answer(FrameType::ack, header, write_code_), refusal_text(write_why_, "write", header, access().version()));
  }
  return Code::ok;
}

void TcpLane::send_ack() {
  if (!unacked_) return;
  FrameHeader ack = answer(FrameType::ack, *unacked_, Code::ok);
  ack.flags |= wire::kFrameTogether;
  unacked_.reset();
  io.push(ack, {});
}

Code TcpLane::end_answer(const FrameHeader& header, std::span<const std::byte> text, uint32_t crc, const char*& why) {
  const size_t at = find(header.id);
  const Op op = header.kind() == FrameType::ack ? Op::write : Op::read;
  if (at == kNotPending || pending_[at].slice.op != op) {
    why = "answer to a question that was not asked";
    return Code::corrupt;
  }
  if (op == Op::write && io.holds(header.id)) {
    why = "acknowledged before it was sent";
    return Code::corrupt;
  }
  if ((header.flags & wire::kFrameTogether) != 0 && header.code() == Code::ok) {
    size_t reads = 0;  // before it: they have answers of their own
    for (size_t left = at + 1; left > 0; --left) {
      if (pending_[reads].slice.op == Op::write)
        finish(reads, Code::ok, 0, {});
      else
        ++reads;
    }
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
  finish(at, code, crc, std::move(what));
  return Code::ok;
}

size_t TcpLane::find(uint64_t slice) const {
  for (size_t i = 0; i < pending_.size(); ++i)
    if (pending_[i].slice.id == slice) return i;
  return kNotPending;
}

void TcpLane::finish(size_t index, Code code, uint32_t crc, std::string text) {
  const Pending& at = pending_[index];
  pending_bytes_ -= at.slice.local.size();
  if (!at.cancelled) {
    if (code == Code::ok) (at.slice.op == Op::read ? moved_.read : moved_.written) += at.slice.local.size();
    out->done.push_back({at.slice.id, code, crc, std::move(text), code != Code::ok});  // refused: not told to anybody
  }
  pending_.erase(index);
}

FrameStream::Io TcpLane::receive(size_t budget) {
  write_old_ = true;
  const FrameStream::Io result = io.receive(*this, budget);
  send_ack();
  const bool landing = io.receiving() && io.current().kind() == FrameType::write && write_code_ == Code::ok;
  if (!landing) drop_write_pin();  // an owner that waits to unregister it need not wait for the next write
  Tally& tally = *transport_.home().tally;
  const size_t row = transport_.index() - 1u;
  const Moved moved = std::exchange(moved_, {});
  tally.add(row, Flow::read_bytes, moved.read);
  tally.add(row, Flow::written_bytes, moved.written);
  tally.add(row, Flow::served_bytes, moved.served);
  tally.add(row, Flow::landed_bytes, moved.landed);
  tally.add(Count::requests_served, moved.requests);
  return result;
}

size_t TcpLane::post(std::span<const Slice> slices) {
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
    const bool checksum = wants_crc();
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
      header.flags |= wire::kFrameHasPayloadCrc;  // asks for it
    }
    frame.header = header;
    io.push(std::move(frame));
    pending_.push_back({slice, false});
    pending_bytes_ += bytes;
    ++taken;
  }
  return taken;
}

bool TcpLane::cancel(uint64_t slice) {
  const size_t index = find(slice);
  if (index == kNotPending) return true;  // its completion was lost on the way up: nothing touches it
  Pending& at = pending_[index];
  if (at.slice.op == Op::read) {
    at.cancelled = true;  // the answer will come, and go nowhere
    const FrameHeader& current = io.current();
    if (io.receiving() && current.kind() == FrameType::data && current.id == slice) io.discard_rest();
    return true;
  }
  switch (io.unqueue(slice)) {
    case FrameStream::Unqueued::removed:
      pending_bytes_ -= at.slice.local.size();
      pending_.erase(index);
      return true;
    case FrameStream::Unqueued::sent: at.cancelled = true; return true;
    case FrameStream::Unqueued::partly_sent:
      draining_.insert(slice);  // flush() reports when the last byte has left
      return false;
  }
  return false;
}

FrameStream::Io TcpLane::flush(Reports& outbox) {
  gone_.clear();
  const size_t before = io.queued_bytes();
  const FrameStream::Io result = io.flush(size_t{2} << 20, gone_);
  if (io.queued_bytes() != before) progress = SystemClock::instance().now();
  for (const auto& gone : gone_) {
    if (gone.pinned != 0) access().unpin(gone.pinned);
    if (gone.slice == 0 || draining_.erase(gone.slice) == 0) continue;
    const size_t at = find(gone.slice);
    if (at == kNotPending) continue;
    pending_[at].cancelled = true;  // the ack that follows is nobody's
    outbox.done.push_back({gone.slice, Code::cancelled, 0, "cancelled while it was being sent"});
  }
  return result;
}

void TcpLane::release() {
  for (const auto& gone : io.drop_all())
    if (gone.pinned != 0) access().unpin(gone.pinned);
  drop_write_pin();
  pending_.clear();
  pending_bytes_ = 0;
}

}  // namespace mc::xfer

#include "xfer_tcp/service.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"

namespace mc::xfer {

using wire::FrameHeader;
using wire::FrameType;

namespace {

constexpr const char* kTooMany = "more requests outstanding than a lane allows";

FrameHeader answer(FrameType type, const FrameHeader& question, Code code) {
  FrameHeader header;
  header.type = static_cast<uint8_t>(type);
  header.id = question.id;
  header.status = static_cast<uint32_t>(code);
  return header;
}

/// A text such as "why: read of buffer 3 [0, +4096)", with a note when the peer used an old descriptor.
std::vector<std::byte> refusal_text(const char* why, const FrameHeader& header, uint32_t version) {
  std::string text = std::string(why) + ": " + (header.kind() == FrameType::read ? "read" : "write") + " of buffer " +
                     std::to_string(header.buffer) + " [" + std::to_string(header.offset) + ", +" +
                     std::to_string(header.length) + ")";
  if (header.snapshot != version)
    text +=
        "; requested with descriptor version " + std::to_string(header.snapshot) + ", now " + std::to_string(version);
  const auto* p = reinterpret_cast<const std::byte*>(text.data());
  return {p, p + std::min(text.size(), wire::kReasonBytesMax)};
}

}  // namespace

Code TcpService::read(const FrameHeader& header, const InstanceId& peer, const char*& why) {
  if (io_.queued() >= kServedMax) {
    why = kTooMany;
    return Code::corrupt;
  }
  acknowledge();  // answers are sent in the order of the requests
  const auto grant = access_.grant(Op::read, header.buffer, header.offset, header.length, peer);
  if (grant.code != Code::ok) {
    refuse(header, grant.code, grant.why);
    return Code::ok;
  }
  MC_ASSERT_EQ(grant.memory.size(), header.length);
  FrameHeader head = answer(FrameType::data, header, Code::ok);
  head.length = grant.memory.size();
  ++moved_.requests;
  moved_.served += grant.memory.size();
  // the peer decides, because it has (or lacks) a sum of its own for the bytes
  const bool checksum = (header.flags & wire::kFrameHasPayloadCrc) != 0;
  io_.push({.header = head, .payload = grant.memory, .pinned = header.buffer, .checksum = checksum});
  return Code::ok;
}

void TcpService::begin_write(const FrameHeader& header, const InstanceId& peer, Sink& sink) {
  write_code_ = Code::ok;
  if (pin_.buffer == 0 || pin_.old || pin_.buffer != header.buffer ||
      !inside(header.offset, header.length, pin_.memory.size())) {
    unpin();
    const auto grant = access_.grant(Op::write, header.buffer, header.offset, header.length, peer);
    write_code_ = grant.code;
    write_why_ = grant.why;
    if (grant.code != Code::ok) {
      sink.kind = Sink::Kind::discard;
      return;
    }
    MC_ASSERT(pin_.buffer == 0 && header.buffer != 0);
    pin_ = {.buffer = header.buffer, .old = false, .memory = grant.whole};
  }
  MC_ASSERT(inside(header.offset, header.length, pin_.memory.size()));
  sink = {Sink::Kind::direct, pin_.memory.data() + header.offset, (header.flags & wire::kFrameHasPayloadCrc) != 0,
          moved_.landed + header.length};
}

Code TcpService::end_write(const FrameHeader& header, uint32_t crc, bool& landed, const char*& why) {
  landed = false;
  if (io_.queued() >= kServedMax) {
    why = kTooMany;
    return Code::corrupt;
  }
  if (write_code_ == Code::ok && (header.flags & wire::kFrameHasPayloadCrc) != 0 && crc != header.payload_crc) {
    write_code_ = Code::corrupt;
    write_why_ = "payload fails its checksum";
  }
  if (write_code_ != Code::ok) {
    acknowledge();
    refuse(header, write_code_, write_why_);
    return Code::ok;
  }
  MC_ASSERT_EQ(pin_.buffer, header.buffer);
  ++moved_.requests;
  moved_.landed += header.length;
  if ((header.flags & wire::kFrameTogether) != 0)
    unacked_ = header;
  else
    io_.push(answer(FrameType::ack, header, Code::ok), {});
  landed = true;
  return Code::ok;
}

void TcpService::end_turn() {
  acknowledge();
  const bool landing = io_.receiving() && io_.current().kind() == FrameType::write && write_code_ == Code::ok;
  if (!landing) unpin();  // an owner that waits to unregister the buffer need not wait for the next write
}

void TcpService::refuse(const FrameHeader& header, Code code, const char* reason) {
  tally_.add(Count::requests_refused);
  tally_.failure(reason);
  const FrameType type = header.kind() == FrameType::read ? FrameType::data : FrameType::ack;
  io_.push(answer(type, header, code), refusal_text(reason, header, access_.version()));
}

void TcpService::acknowledge() {
  if (!unacked_) return;
  FrameHeader ack = answer(FrameType::ack, *unacked_, Code::ok);
  ack.flags |= wire::kFrameTogether;
  unacked_.reset();
  io_.push(ack, {});
}

void TcpService::unpin() {
  const Pin pin = std::exchange(pin_, {});
  if (pin.buffer != 0) access_.unpin(pin.buffer);
}

}  // namespace mc::xfer

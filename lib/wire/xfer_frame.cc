// Codec of the transfer engine's frames. Every count and string length is bounded before it is used;
// a decoder must consume exactly the bytes it was given.
#include "wire/xfer_frame.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "wire/frame_codec.h"
#include "wire/rdma_frame.h"

namespace mc::wire {
namespace {

constexpr uint32_t kDescriptorMagic = 0x4458434d;  // "MCXD"
constexpr uint16_t kDescriptorHasTicket = 1;

uint64_t payload_limit(FrameType type) {
  switch (type) {
    case FrameType::read:
    case FrameType::data:
    case FrameType::write: return kFrameDataMax;
    case FrameType::hello:
    case FrameType::challenge: return kHelloBytesMax;
    case FrameType::refuse:
    case FrameType::ack:
    case FrameType::goodbye: return kReasonBytesMax;
    case FrameType::path_offer:
    case FrameType::path_answer:
    case FrameType::path_ready:
    case FrameType::path_down: return kRdmaPathBytesMax;
    case FrameType::path_rest:
    case FrameType::heard:
    case FrameType::landed:
    case FrameType::immediate: return 0;
    case FrameType::notify: return kNotifyBytesMax;
    case FrameType::share: return UINT64_MAX;  // length is the length of the buffer; no payload follows on that socket
    default: return kFrameControlMax;
  }
}

}  // namespace

std::string_view to_string(FrameType type) {
  switch (type) {
    case FrameType::hello: return "hello";
    case FrameType::challenge: return "challenge";
    case FrameType::proof: return "proof";
    case FrameType::ready: return "ready";
    case FrameType::refuse: return "refuse";
    case FrameType::read: return "read";
    case FrameType::data: return "data";
    case FrameType::write: return "write";
    case FrameType::ack: return "ack";
    case FrameType::notify: return "notify";
    case FrameType::describe: return "describe";
    case FrameType::share: return "share";
    case FrameType::goodbye: return "goodbye";
    case FrameType::nics: return "nics";
    case FrameType::keys: return "keys";
    case FrameType::path_offer: return "path_offer";
    case FrameType::path_answer: return "path_answer";
    case FrameType::path_ready: return "path_ready";
    case FrameType::path_down: return "path_down";
    case FrameType::path_rest: return "path_rest";
    case FrameType::heard: return "heard";
    case FrameType::landed: return "landed";
    case FrameType::immediate: return "immediate";
  }
  return "unknown";
}

std::string_view to_string(AccessClass access) {
  switch (access) {
    case AccessClass::private_memory: return "private";
    case AccessClass::blocks: return "blocks";
    case AccessClass::landing: return "landing";
  }
  return "unknown";
}

FrameBytes encode(FrameHeader header) {
  FrameBytes bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  header.header_crc = crc32c(std::span(bytes).first(offsetof(FrameHeader, header_crc)));
  std::memcpy(bytes.data() + offsetof(FrameHeader, header_crc), &header.header_crc, sizeof header.header_crc);
  return bytes;
}

static uint8_t known_flags(FrameType type) {
  switch (type) {
    case FrameType::write: return kFrameHasPayloadCrc | kFrameHasImmediate | kFrameTogether;
    case FrameType::ack: return kFrameHasPayloadCrc | kFrameTogether;
    default: return kFrameHasPayloadCrc;
  }
}

Code decode(std::span<const std::byte, kFrameHeaderBytes> bytes, FrameHeader& out, const char*& why) {
  std::memcpy(&out, bytes.data(), sizeof out);
  why = nullptr;
  if (out.magic != kXferMagic) {
    why = "bad magic";
  } else if (out.version != kXferVersion) {  // checked before the checksum, which another version may keep elsewhere
    why = "other protocol version";
    return Code::unsupported;
  } else if (out.header_crc != crc32c(bytes.first(offsetof(FrameHeader, header_crc)))) {
    why = "bad header checksum";
  } else if (out.type < static_cast<uint8_t>(FrameType::hello) || out.type > static_cast<uint8_t>(kFrameTypeLast)) {
    why = "unknown frame type";
  } else if (out.status > static_cast<uint32_t>(Code::cancelled)) {
    why = "unknown status";
  } else if ((out.flags & ~known_flags(out.kind())) != 0 || out.reserved0 != 0 ||
             ((out.flags & kFrameHasImmediate) == 0 && out.immediate != 0)) {
    why = "reserved bits set";
  } else if (out.length > payload_limit(out.kind())) {
    why = "length beyond the bound of its type";
  } else if (out.kind() == FrameType::data && out.code() != Code::ok && out.length > kReasonBytesMax) {
    why = "length beyond the bound of its type";
  }
  return why ? Code::corrupt : Code::ok;
}

const BufferInfo* XferDescriptor::find(uint32_t id) const {
  const auto at = std::lower_bound(buffers.begin(), buffers.end(), id,
                                   [](const BufferInfo& buffer, uint32_t wanted) { return buffer.id < wanted; });
  return at != buffers.end() && at->id == id ? &*at : nullptr;
}

const BufferInfo* XferDescriptor::find(std::string_view buffer_name) const {
  const auto at = std::find_if(buffers.begin(), buffers.end(),
                               [&](const BufferInfo& buffer) { return buffer.name == buffer_name; });
  return at != buffers.end() ? &*at : nullptr;
}

std::vector<std::byte> encode(const XferDescriptor& descriptor) {
  Writer out;
  out.number(kDescriptorMagic);
  out.number(kXferVersion);
  const bool has_ticket = descriptor.ticket != Ticket{};
  out.number(has_ticket ? kDescriptorHasTicket : uint16_t{0});
  out.raw(descriptor.instance.bytes);
  out.raw(descriptor.boot.bytes);
  out.number(descriptor.version);
  out.text(descriptor.name, kXferNameBytesMax);
  out.number(static_cast<uint16_t>(descriptor.uris.size()));
  for (const auto& uri : descriptor.uris) out.text(uri, kXferUriBytesMax);
  out.number(static_cast<uint16_t>(descriptor.buffers.size()));
  for (const auto& buffer : descriptor.buffers) {
    out.number(buffer.id);
    out.number(static_cast<uint8_t>(buffer.access));
    out.number(static_cast<uint8_t>(buffer.shared));
    out.number(buffer.length);
    out.raw(buffer.writer.bytes);
    out.text(buffer.name, kXferNameBytesMax);
  }
  if (has_ticket) out.raw(descriptor.ticket);
  out.number(crc32c(out.bytes()));
  return std::move(out.bytes());
}

Result<XferDescriptor> decode_descriptor(std::span<const std::byte> bytes) {
  const auto bad = [&] { return malformed("descriptor", bytes.size()); };
  if (bytes.size() < 4 || bytes.size() > kFrameControlMax) return bad();
  uint32_t crc;
  std::memcpy(&crc, bytes.data() + bytes.size() - 4, 4);
  const auto body = bytes.first(bytes.size() - 4);
  if (crc != crc32c(body)) return Error{Code::corrupt, "xfer: descriptor fails its checksum"};
  Reader in(body);
  if (in.number<uint32_t>() != kDescriptorMagic) return bad();
  if (const auto version = in.number<uint16_t>(); version != kXferVersion)
    return Error{Code::unsupported, "xfer: the descriptor has protocol version " + std::to_string(version) +
                                        ", this process uses " + std::to_string(kXferVersion)};
  const auto flags = in.number<uint16_t>();
  if ((flags & ~kDescriptorHasTicket) != 0) return bad();
  XferDescriptor descriptor;
  in.raw(descriptor.instance.bytes);
  in.raw(descriptor.boot.bytes);
  descriptor.version = in.number<uint32_t>();
  descriptor.name = in.text(kXferNameBytesMax);
  const size_t uri_count = in.number<uint16_t>();
  if (in.failed() || uri_count > kXferUrisMax || descriptor.instance.is_zero()) return bad();
  for (size_t i = 0; i < uri_count; ++i) descriptor.uris.push_back(in.text(kXferUriBytesMax));
  const size_t buffer_count = in.number<uint16_t>();
  if (in.failed() || buffer_count > kXferBuffersMax) return bad();
  for (size_t i = 0; i < buffer_count && !in.failed(); ++i) {
    BufferInfo buffer;
    buffer.id = in.number<uint32_t>();
    const auto access = in.number<uint8_t>();
    if (access > static_cast<uint8_t>(AccessClass::landing)) return bad();
    buffer.access = static_cast<AccessClass>(access);
    buffer.shared = in.flag();
    buffer.length = in.number<uint64_t>();
    in.raw(buffer.writer.bytes);
    buffer.name = in.text(kXferNameBytesMax);
    if (!descriptor.buffers.empty() && descriptor.buffers.back().id >= buffer.id) return bad();
    descriptor.buffers.push_back(std::move(buffer));
  }
  if ((flags & kDescriptorHasTicket) != 0) {
    in.raw(descriptor.ticket);
    if (descriptor.ticket == Ticket{}) return bad();
  }
  if (!in.done()) return bad();
  return descriptor;
}

std::string dump(const XferDescriptor& descriptor) {
  std::string out = "name " + descriptor.name + "\ninstance " + descriptor.instance.hex() + "\nboot " +
                    descriptor.boot.hex() + "\nversion " + std::to_string(descriptor.version) + "\n";
  for (const auto& uri : descriptor.uris) out += "uri " + uri + "\n";
  for (const auto& buffer : descriptor.buffers) {
    out += "buffer " + std::to_string(buffer.id) + " " + buffer.name + " " + std::string(to_string(buffer.access)) +
           " " + std::to_string(buffer.length) + " bytes" + (buffer.shared ? " shared" : "") +
           (buffer.writer.is_zero() ? "" : " writer " + buffer.writer.hex()) + "\n";
  }
  return out;
}

std::vector<std::byte> encode(const XferHello& hello) {
  Writer out;
  out.raw(hello.instance.bytes);
  out.raw(hello.wanted.bytes);
  out.raw(hello.connection.bytes);
  out.number(hello.lane);
  out.number(hello.lane_count);
  out.number(static_cast<uint8_t>(hello.secured));
  out.number(static_cast<uint8_t>(hello.seal));
  out.raw(hello.nonce);
  out.raw(hello.share);
  out.text(hello.name, kXferNameBytesMax);
  return std::move(out.bytes());
}

Result<XferHello> decode_hello(std::span<const std::byte> bytes) {
  Reader in(bytes);
  XferHello hello;
  in.raw(hello.instance.bytes);
  in.raw(hello.wanted.bytes);
  in.raw(hello.connection.bytes);
  hello.lane = in.number<uint16_t>();
  hello.lane_count = in.number<uint16_t>();
  hello.secured = in.flag();
  const auto seal = in.number<uint8_t>();
  hello.seal = static_cast<SealSetting>(seal);
  in.raw(hello.nonce);
  in.raw(hello.share);
  hello.name = in.text(kXferNameBytesMax);
  if (!in.done() || hello.instance.is_zero() || hello.lane_count == 0 || hello.lane_count > kXferLanesMax ||
      hello.lane >= hello.lane_count || seal > static_cast<uint8_t>(SealSetting::must))
    return malformed("hello", bytes.size());
  return hello;
}

std::vector<std::byte> encode(const XferChallenge& challenge) {
  Writer out;
  out.raw(challenge.instance.bytes);
  out.number(static_cast<uint8_t>(challenge.secured));
  out.number(static_cast<uint8_t>(challenge.seal));
  out.raw(challenge.nonce);
  out.raw(challenge.share);
  out.raw(challenge.proof);
  out.text(challenge.name, kXferNameBytesMax);
  return std::move(out.bytes());
}

Result<XferChallenge> decode_challenge(std::span<const std::byte> bytes) {
  Reader in(bytes);
  XferChallenge challenge;
  in.raw(challenge.instance.bytes);
  challenge.secured = in.flag();
  const auto seal = in.number<uint8_t>();
  challenge.seal = static_cast<SealSetting>(seal);
  in.raw(challenge.nonce);
  in.raw(challenge.share);
  in.raw(challenge.proof);
  challenge.name = in.text(kXferNameBytesMax);
  if (!in.done() || challenge.instance.is_zero() || seal > static_cast<uint8_t>(SealSetting::must))
    return malformed("challenge", bytes.size());
  return challenge;
}

}  // namespace mc::wire

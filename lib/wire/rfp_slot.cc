#include "wire/rfp_slot.h"

#include <bit>

#include "base/hash.h"
#include "wire/frame_codec.h"

namespace mc::wire {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kOpenMagic = 0x4f52'434d;    // "MCRO"
constexpr uint32_t kOpenedMagic = 0x4152'434d;  // "MCRA"

bool valid_slot_bytes(uint32_t bytes) {
  return bytes >= kRfpSlotBytesMin && bytes <= kRfpSlotBytesMax && bytes % 64 == 0;
}

template <class Header>
uint32_t slot_crc(Header header, std::span<const std::byte> payload) {
  header.crc = 0;
  return crc32c(payload, crc32c(std::as_bytes(std::span(&header, 1))));
}

void put(Writer& out, const RfpGeometry& geometry) {
  out.number(geometry.slots);
  out.number(geometry.request_bytes);
  out.number(geometry.response_bytes);
}

RfpGeometry take_geometry(Reader& in) {
  RfpGeometry out;
  out.slots = in.number<uint32_t>();
  out.request_bytes = in.number<uint32_t>();
  out.response_bytes = in.number<uint32_t>();
  return out;
}

Result<void> check_head(Reader& in, uint32_t magic, size_t size) {
  if (in.number<uint32_t>() != magic) return Error{Code::not_found, "rfp: no message of remote fetching"};
  const auto version = in.number<uint16_t>();
  if (in.failed()) return Error{Code::corrupt, "rfp: message of " + std::to_string(size) + " bytes"};
  if (version == kRfpVersion) return {};
  return Error{Code::unsupported,
               "rfp: the peer uses version " + std::to_string(version) + ", this process uses " +
                   std::to_string(kRfpVersion) + ": run one release on all hosts"};
}

}  // namespace

bool RfpGeometry::valid() const {
  return slots > 0 && slots <= kRfpSlotsMax && std::has_single_bit(slots) && valid_slot_bytes(request_bytes) &&
         valid_slot_bytes(response_bytes);
}

uint32_t rfp_crc(RfpRequest header, std::span<const std::byte> payload) {
  return slot_crc(header, payload);
}

uint32_t rfp_crc(RfpResponse header, std::span<const std::byte> payload) {
  return slot_crc(header, payload);
}

std::vector<std::byte> encode(const RfpOpen& open) {
  Writer out;
  out.number(kOpenMagic);
  out.number(kRfpVersion);
  out.number(uint16_t{0});
  out.number(open.epoch);
  put(out, open.geometry);
  out.number(open.pushed);
  return std::move(out.bytes());
}

std::vector<std::byte> encode(const RfpOpened& opened) {
  Writer out;
  out.number(kOpenedMagic);
  out.number(kRfpVersion);
  out.number(static_cast<uint16_t>(opened.code));
  out.number(opened.epoch);
  out.number(opened.instance);
  put(out, opened.geometry);
  out.number(opened.requests);
  out.number(opened.responses);
  return std::move(out.bytes());
}

Result<RfpOpen> decode_rfp_open(std::span<const std::byte> bytes) {
  Reader in(bytes);
  MC_CHECK(check_head(in, kOpenMagic, bytes.size()));
  const auto reserved = in.number<uint16_t>();
  RfpOpen open;
  open.epoch = in.number<uint64_t>();
  open.geometry = take_geometry(in);
  open.pushed = in.number<uint32_t>();
  if (!in.done() || reserved != 0 || !open.geometry.valid() || open.pushed == 0)
    return Error{Code::corrupt, "rfp: malformed open of " + std::to_string(bytes.size()) + " bytes"};
  return open;
}

Result<RfpOpened> decode_rfp_opened(std::span<const std::byte> bytes) {
  Reader in(bytes);
  MC_CHECK(check_head(in, kOpenedMagic, bytes.size()));
  const auto code = in.number<uint16_t>();
  RfpOpened opened;
  opened.code = static_cast<Code>(code);
  opened.epoch = in.number<uint64_t>();
  opened.instance = in.number<uint64_t>();
  opened.geometry = take_geometry(in);
  opened.requests = in.number<uint32_t>();
  opened.responses = in.number<uint32_t>();
  const bool named = opened.requests != 0 && opened.responses != 0;
  const bool none = opened.requests == 0 && opened.responses == 0;
  if (!in.done() || code > static_cast<uint16_t>(Code::cancelled) || !opened.geometry.valid() ||
      !(opened.code == Code::ok ? named : none))
    return Error{Code::corrupt, "rfp: malformed answer of " + std::to_string(bytes.size()) + " bytes"};
  return opened;
}

}  // namespace mc::wire

#include "wire/notify.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/hash.h"
#include "wire/xfer_frame.h"

namespace mc::wire {
namespace {

static_assert(std::endian::native == std::endian::little);
static_assert(kNotifyMessageBytesMax <= kNotifyBytesMax);  // one notify frame carries one message

constexpr uint16_t kKindExtentsReady = 1;

struct NotifyHeader {
  uint32_t magic = kNotifyMagic;
  uint16_t version = kNotifyVersion;
  uint16_t kind = kKindExtentsReady;
  char request[kNotifyRequestBytes] = {};
  uint32_t attempt = 0;
  uint32_t layer = 0;
  uint32_t first_block = 0;
  uint32_t count = 0;
  uint32_t reserved = 0;
  uint32_t crc = 0;
};
static_assert(sizeof(NotifyHeader) == kNotifyHeaderBytes && offsetof(NotifyHeader, crc) == 60);

uint32_t crc_of(std::span<const std::byte> bytes) {
  return crc32c(bytes.subspan(kNotifyHeaderBytes), crc32c(bytes.first(offsetof(NotifyHeader, crc))));
}

Error corrupt_notify(const std::string& what) {
  return {Code::corrupt, "notify: " + what};
}

}  // namespace

Result<std::vector<std::vector<std::byte>>> encode_extents_ready(const ExtentsReady& ready) {
  if (ready.req.empty() || ready.req.size() > kNotifyRequestBytes)
    return Error{Code::invalid, "notify: request id of " + std::to_string(ready.req.size()) + " bytes, 1..32 fit"};
  std::vector<std::vector<std::byte>> out;
  for (size_t begin = 0; begin < ready.extents.size(); begin += kNotifyEntriesMax) {
    const auto part =
        std::span(ready.extents).subspan(begin, std::min(kNotifyEntriesMax, ready.extents.size() - begin));
    NotifyHeader header;
    std::memcpy(header.request, ready.req.data(), ready.req.size());
    header.attempt = ready.attempt;
    header.layer = ready.layer;
    header.first_block = ready.first_block + static_cast<uint32_t>(begin);
    header.count = static_cast<uint32_t>(part.size());
    auto& bytes = out.emplace_back(kNotifyHeaderBytes + part.size() * kNotifyEntryBytes);
    std::memcpy(bytes.data(), &header, kNotifyHeaderBytes);
    std::byte* at = bytes.data() + kNotifyHeaderBytes;
    for (const ReadyExtent& extent : part) {
      std::memcpy(at, &extent.segment_offset, 8);
      std::memcpy(at + 8, &extent.crc, 4);
      at += kNotifyEntryBytes;
    }
    const uint32_t crc = crc_of(bytes);
    std::memcpy(bytes.data() + offsetof(NotifyHeader, crc), &crc, 4);
  }
  return out;
}

Result<ExtentsReady> parse_extents_ready(std::span<const std::byte> bytes) {
  NotifyHeader header;
  if (bytes.size() < kNotifyHeaderBytes || bytes.size() > kNotifyMessageBytesMax)
    return corrupt_notify(std::to_string(bytes.size()) + " bytes, 64..4096 are allowed");
  std::memcpy(&header, bytes.data(), kNotifyHeaderBytes);
  if (header.magic != kNotifyMagic) return corrupt_notify("does not start with \"MCNT\"");
  if (header.version != kNotifyVersion || header.kind != kKindExtentsReady)
    return Error{Code::unsupported, "notify: version " + std::to_string(header.version) + " kind " +
                                        std::to_string(header.kind) + ", this build reads version 1 kind 1"};
  if (header.count == 0 || bytes.size() != kNotifyHeaderBytes + size_t{header.count} * kNotifyEntryBytes)
    return corrupt_notify("announces " + std::to_string(header.count) + " extents in " + std::to_string(bytes.size()) +
                          " bytes");
  if (const uint32_t crc = crc_of(bytes); crc != header.crc)
    return corrupt_notify("checksum is " + std::to_string(header.crc) + ", its bytes give " + std::to_string(crc));
  const std::string_view request(header.request, kNotifyRequestBytes);
  const size_t length = std::min(request.find('\0'), request.size());
  const bool padded = request.find_first_not_of('\0', length) == std::string_view::npos;
  if (length == 0 || !padded) return corrupt_notify("request id is not 1..32 bytes padded with zeros");
  if (header.reserved != 0)
    return corrupt_notify("reserved word is " + std::to_string(header.reserved) + ", must be 0");
  if (header.first_block > UINT32_MAX - header.count)
    return corrupt_notify("first_block is " + std::to_string(header.first_block) + ", out of range");
  ExtentsReady out{.req = RequestId(request.substr(0, length)),
                   .attempt = header.attempt,
                   .layer = header.layer,
                   .first_block = header.first_block,
                   .extents = std::vector<ReadyExtent>(header.count)};
  const std::byte* at = bytes.data() + kNotifyHeaderBytes;
  for (ReadyExtent& extent : out.extents) {
    std::memcpy(&extent.segment_offset, at, 8);
    std::memcpy(&extent.crc, at + 8, 4);
    at += kNotifyEntryBytes;
  }
  return out;
}

}  // namespace mc::wire

// The memory of a remote-fetch channel (Su et al., "RFP: When RPC is Faster than Server-Bypass with RDMA", EuroSys
// 2017), little-endian. A channel belongs to one client and has W slots. A call uses slot `sequence mod W`.
//
//   requests, on the server, written by the client:       | control, 64 bytes | slot 0 | slot 1 | ... | slot W-1 |
//   responses, on the server, read by the client:         | slot 0 | slot 1 | ... | slot W-1 |
//   pushed, on the client, written by the server:         | slot 0 | slot 1 | ... | slot W-1 |
//
//   request slot   | sequence u64 | epoch u64    | size u32 | method u16 | flags u16   | CRC32C u32 | 0 u32 | payload
//   response slot  | sequence u64 | instance u64 | size u32 | status u16 | time_us u16 | CRC32C u32 | 0 u32 | payload
//   control        | mode u64: bit 63 = push, the others = the first sequence of that mode | zeros
//
// `size` counts the bytes of the payload. The CRC32C covers the header, with 0 in its place, and the payload. A slot is
// ready when its sequence is the expected one and the CRC32C is right, so a copy that mixes two writes is never taken.
// Sequences have 64 bits, because 32 bits wrap after 71 minutes at a million calls per second. Sequence 0 is never
// used. The mode is one aligned word, because no write of more than 8 bytes is atomic for a reader.
//
// Two notifies set a channel up:
//   open     "MCRO" | u16 version | u16 0 | u64 epoch | geometry | u32 buffer of `pushed`
//   opened   "MCRA" | u16 version | u16 code | u64 epoch | u64 instance | geometry | u32 requests | u32 responses
//   geometry u32 slots | u32 bytes of a request slot | u32 bytes of a response slot
// Golden bytes: tests/golden/wire/rfp_slot.txt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace mc::wire {

inline constexpr uint16_t kRfpVersion = 1;
inline constexpr size_t kRfpHeaderBytes = 32;
inline constexpr size_t kRfpControlBytes = 64;
inline constexpr uint32_t kRfpSlotsMax = 64;
inline constexpr uint32_t kRfpSlotBytesMin = 64;
inline constexpr uint32_t kRfpSlotBytesMax = 64 << 10;

struct RfpGeometry {
  uint32_t slots = 8;              // power of two
  uint32_t request_bytes = 1024;   // of a slot, header included; a multiple of 64
  uint32_t response_bytes = 4096;  // likewise
  bool operator==(const RfpGeometry&) const = default;

  bool valid() const;
  uint32_t slot_of(uint64_t sequence) const { return static_cast<uint32_t>(sequence & (slots - 1)); }
  uint64_t request_at(uint32_t slot) const { return kRfpControlBytes + uint64_t{slot} * request_bytes; }
  uint64_t response_at(uint32_t slot) const { return uint64_t{slot} * response_bytes; }
  uint64_t requests_bytes() const { return request_at(slots); }
  uint64_t responses_bytes() const { return response_at(slots); }
  uint32_t request_room() const { return request_bytes - static_cast<uint32_t>(kRfpHeaderBytes); }
  uint32_t response_room() const { return response_bytes - static_cast<uint32_t>(kRfpHeaderBytes); }
};

struct RfpRequest {
  uint64_t sequence = 0;
  uint64_t epoch = 0;  // of the channel: drawn by the client when it opens the channel
  uint32_t size = 0;
  uint16_t method = 0;
  uint16_t flags = 0;  // 0
  uint32_t crc = 0;
  uint32_t reserved = 0;  // 0
};

struct RfpResponse {
  uint64_t sequence = 0;
  uint64_t instance = 0;  // of the server's end of the channel, drawn by the server
  uint32_t size = 0;
  uint16_t status = 0;
  uint16_t time_us = 0;  // from taking the request to publishing the response; 65535 = at least that
  uint32_t crc = 0;
  uint32_t reserved = 0;  // 0
};
static_assert(sizeof(RfpRequest) == kRfpHeaderBytes && offsetof(RfpRequest, crc) == 24);
static_assert(sizeof(RfpResponse) == kRfpHeaderBytes && offsetof(RfpResponse, crc) == 24);

/// The CRC32C of a slot whose header is this one; the header's own `crc` does not count.
uint32_t rfp_crc(RfpRequest header, std::span<const std::byte> payload);
uint32_t rfp_crc(RfpResponse header, std::span<const std::byte> payload);

/// The control word: from `sequence` on the server pushes (or does not). Earlier calls have the other mode.
constexpr uint64_t rfp_mode(bool push, uint64_t sequence) { return (push ? uint64_t{1} << 63 : 0) | sequence; }
constexpr bool rfp_pushes(uint64_t mode, uint64_t sequence) {
  return (sequence >= (mode & ~(uint64_t{1} << 63))) == (mode >> 63 == 1);
}

/// A client asks for a channel.
struct RfpOpen {
  uint64_t epoch = 0;
  RfpGeometry geometry;
  uint32_t pushed = 0;  // buffer of the client that the server may write
  bool operator==(const RfpOpen&) const = default;
};

/// The server's answer. With a code other than Code::ok there is no channel, and the buffers are 0.
struct RfpOpened {
  Code code = Code::ok;
  uint64_t epoch = 0;  // of the RfpOpen
  uint64_t instance = 0;
  RfpGeometry geometry;
  uint32_t requests = 0, responses = 0;  // buffers of the server
  bool operator==(const RfpOpened&) const = default;
};

std::vector<std::byte> encode(const RfpOpen& open);
std::vector<std::byte> encode(const RfpOpened& opened);
/// Code::not_found: the notify is none of remote fetching. Code::unsupported: another version. Code::corrupt: the rest.
Result<RfpOpen> decode_rfp_open(std::span<const std::byte> bytes);
Result<RfpOpened> decode_rfp_opened(std::span<const std::byte> bytes);

}  // namespace mc::wire

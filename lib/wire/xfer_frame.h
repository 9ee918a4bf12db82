// The frames of the transfer engine: one fixed 64-byte header, an optional payload right behind it, and the payloads of
// the handshake. TCP streams carry frames back to back. The control socket of the shm transport carries one frame a
// message. Everything is little-endian. A header carries its own CRC32C. Payload bytes are protected end to end by the
// KV extents' CRC32C, and by `payload_crc` where kFrameHasPayloadCrc is set. A `read` with that flag requests it for
// the answer. A `write` with kFrameHasImmediate carries a number that the receiver's owner gets when the bytes are in
// place. Golden bytes: tests/golden/wire/xfer_frame.txt. On a sealed stream all frames but the hello and the challenge
// are inside the records of xfer/seal.h.
//
//    0        4     6    7    8               16        20        24              32
//    | magic  | ver |type|flag| id            | buffer  | snapshot| offset        |
//    | "MCXF" |  3  |    |    | slice, seq no.|         |         |               |
//   32              40        44            48              56        60        64
//    | length        | status  | payload_crc | reserved = 0  |immediate| head_crc|
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace mc::wire {

inline constexpr uint32_t kXferMagic = 0x4658434d;  // "MCXF"
inline constexpr uint16_t kXferVersion = 3;         // 2: kFrameTogether, immediates; 3: key shares, sealing
inline constexpr size_t kFrameHeaderBytes = 64;
inline constexpr size_t kFrameDataMax = size_t{8} << 20;      // payload of data and write frames
inline constexpr size_t kFrameControlMax = size_t{64} << 10;  // payload of every other frame
inline constexpr size_t kNotifyBytesMax = 4096;
inline constexpr size_t kHelloBytesMax = 1024;   // bound before a peer has proven its identity
inline constexpr size_t kReasonBytesMax = 256;   // text of a refusal or an error
inline constexpr size_t kXferNameBytesMax = 64;  // node and buffer names
inline constexpr size_t kXferUrisMax = 8;
inline constexpr size_t kXferUriBytesMax = 256;
inline constexpr size_t kXferBuffersMax = 512;
inline constexpr size_t kXferLanesMax = 64;
inline constexpr uint8_t kFrameHasPayloadCrc = 1;
inline constexpr uint8_t kFrameHasImmediate = 2;  // `write` only
inline constexpr uint8_t kFrameTogether = 4;      // `write` and `ack` only

enum class FrameType : uint8_t {
  hello = 1,  // dialler: its instance, the wanted instance, nonce
  challenge,  // listener: its instance, nonce, proof
  proof,      // dialler: proof, descriptor
  ready,      // listener: descriptor; the lane may carry transfers
  refuse,     // either side, in a handshake: status and a text; the sender closes
  read,       // id, buffer, snapshot, offset, length; no payload
  data,       // answers a read: id, status, payload = bytes, or a text when status is not ok
  write,      // id, buffer, snapshot, offset, payload = bytes; kFrameTogether: one ack may answer several
  // Answers a write: id, status, payload = a text when status is not ok. With kFrameTogether it also ends every earlier
  // write of that lane that has no answer yet.
  ack,
  notify,    // id = sequence number, payload = up to kNotifyBytesMax bytes
  describe,  // payload = the sender's new descriptor
  share,     // shm only: buffer, length, and a file descriptor
  goodbye,   // the sender closes on purpose; payload = a text
  // rdma only (wire/rdma_frame.h), on the socket that sets paths up:
  nics,         // the sender's ports and their addresses
  keys,         // rkeys of one buffer
  path_offer,   // dialler: queue pairs of a new attempt at a path
  path_answer,  // listener: its queue pairs for that attempt
  path_ready,   // either side: the path carried the sender's test pattern
  path_down,    // either side: this attempt has ended, with the cause
  path_rest,    // either side: id = a RestVerb about the queue pairs of the connection; no payload
  heard,        // either side: id = number of the receiver's notifies that were delivered; no payload
  // Either side: buffer = path, snapshot = epoch: id = number of the receiver's immediates on it; no payload.
  landed,
  // shm only:
  immediate,  // id = the immediate of a write whose bytes are in the arena; no payload
};
inline constexpr FrameType kFrameTypeLast = FrameType::immediate;
std::string_view to_string(FrameType type);

/// The setting in which two ends of a connection differ although they must agree. It is the id of a `refuse` frame; 0 =
/// none of these.
enum class Mismatch : uint8_t { none, secret, seal, version };
inline constexpr Mismatch kMismatchLast = Mismatch::version;

struct FrameHeader {
  uint32_t magic = kXferMagic;
  uint16_t version = kXferVersion;
  uint8_t type = 0;
  uint8_t flags = 0;
  uint64_t id = 0;
  uint32_t buffer = 0;
  uint32_t snapshot = 0;  // version of the descriptor that the requester used
  uint64_t offset = 0;
  uint64_t length = 0;  // length of the payload; in `read`, number of bytes wanted
  uint32_t status = 0;  // mc::Code
  uint32_t payload_crc = 0;
  uint64_t reserved0 = 0;
  uint32_t immediate = 0;   // 0 without kFrameHasImmediate
  uint32_t header_crc = 0;  // CRC32C of the first 60 bytes

  FrameType kind() const { return static_cast<FrameType>(type); }
  Code code() const { return static_cast<Code>(status); }
  /// Number of bytes that follow this header on the wire.
  uint64_t payload_bytes() const { return kind() == FrameType::read ? 0 : length; }
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes && offsetof(FrameHeader, id) == 8);
static_assert(offsetof(FrameHeader, offset) == 24 && offsetof(FrameHeader, status) == 40);
static_assert(offsetof(FrameHeader, header_crc) == 60 && std::endian::native == std::endian::little);

using FrameBytes = std::array<std::byte, kFrameHeaderBytes>;
/// Fills in the header CRC.
FrameBytes encode(FrameHeader header);
/// Checks magic, version, CRC, type, status, reserved fields and the payload bound of the type. `why` is a static text,
/// set on failure. Code::unsupported for another protocol version, else corrupt.
Code decode(std::span<const std::byte, kFrameHeaderBytes> bytes, FrameHeader& out, const char*& why);

/// The access of peers to a buffer. One peer writes `landing`; all peers read `blocks`.
enum class AccessClass : uint8_t { private_memory = 0, blocks = 1, landing = 2 };
std::string_view to_string(AccessClass access);

struct BufferInfo {
  uint32_t id = 0;  // never reused in one instance
  AccessClass access = AccessClass::private_memory;
  bool shared = false;  // a memfd: same-host peers can map it
  uint64_t length = 0;
  InstanceId writer;  // landing: the only writer; zero = every peer
  std::string name;
  bool operator==(const BufferInfo&) const = default;
};

using Nonce = std::array<uint8_t, 32>;
using Proof = std::array<uint8_t, 32>;
using Ticket = std::array<uint8_t, 32>;

/// An immutable snapshot of the buffers and transports that a process offers. Readers replace it as a whole.
struct XferDescriptor {
  std::string name;
  InstanceId instance;
  Id128 boot;            // boot id of the host's kernel; zero = unknown
  uint32_t version = 0;  // grows with every change
  std::vector<std::string> uris;
  std::vector<BufferInfo> buffers;  // ascending id
  /// A secret of the described process. The control plane gives it to peers with the descriptor. In a cluster without a
  /// secret, a dialler uses it to prove that it is such a peer. All zero: none, as on the data plane.
  Ticket ticket{};

  const BufferInfo* find(uint32_t id) const;
  const BufferInfo* find(std::string_view buffer_name) const;
  bool operator==(const XferDescriptor&) const = default;
};
std::vector<std::byte> encode(const XferDescriptor& descriptor);
Result<XferDescriptor> decode_descriptor(std::span<const std::byte> bytes);
/// The descriptor as text, one line for each fact.
std::string dump(const XferDescriptor& descriptor);

using KeyShare = std::array<uint8_t, 32>;  // X25519 public key (RFC 7748), drawn for one handshake

/// One side's choice whether to seal the stream behind the handshake. The stream is sealed when one side must and the
/// other side may.
enum class SealSetting : uint8_t { never = 0, may = 1, must = 2 };

struct XferHello {
  InstanceId instance;
  InstanceId wanted;  // zero: any instance that listens at the address
  Id128 connection;   // joins the lanes of one endpoint; see xfer/transport.h, Dial::connection
  uint16_t lane = 0;  // 0 = control
  uint16_t lane_count = 1;
  bool secured = false;  // the sender has a cluster key
  SealSetting seal = SealSetting::never;
  Nonce nonce{};
  KeyShare share{};  // zero when `seal` is never
  std::string name;
  bool operator==(const XferHello&) const = default;
};
struct XferChallenge {
  InstanceId instance;
  bool secured = false;
  SealSetting seal = SealSetting::never;
  Nonce nonce{};
  KeyShare share{};  // zero when the stream is not sealed
  Proof proof{};
  std::string name;
  bool operator==(const XferChallenge&) const = default;
};
std::vector<std::byte> encode(const XferHello& hello);
std::vector<std::byte> encode(const XferChallenge& challenge);
Result<XferHello> decode_hello(std::span<const std::byte> bytes);
Result<XferChallenge> decode_challenge(std::span<const std::byte> bytes);

}  // namespace mc::wire

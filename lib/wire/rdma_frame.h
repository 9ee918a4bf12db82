// The messages that two rdma transports exchange over their socket after the handshake: ports and their addresses,
// rkeys, queue pairs. Payloads of the frames nics .. path_down; golden bytes in tests/golden/wire/rdma_frame.txt.
// rkeys travel nowhere else.
//
//   nics         u16 version | u16 n | n x { name, u8 port, u8 active, u16 lid, u16 mtu, u8 rd_atomic,
//                                            u16 g | g x { gid[16], u8 prefix } }
//   keys         u32 buffer | u32 snapshot | u64 base | u64 length | u64 chunk | u16 nics | u32 chunks |
//                nics x chunks x u32 rkey
//   path_offer   u32 path | u32 path_count | u32 epoch | u16 nic_from | u16 nic_to | gid_from[16] |
//   path_answer  gid_to[16] | u16 lid | u16 mtu | u8 rd_atomic | u64 scratch | u32 scratch_rkey |
//                u16 l | l x { u32 qpn, u32 psn }
//   path_ready   u32 path | u32 epoch
//   path_down    u32 path | u32 epoch | u8 cause | text
//   path_rest    nothing; the header's id is a RestVerb
//   heard        nothing; the header's id is the number of notifies that were delivered
//   landed       nothing; the header's buffer and snapshot are path and epoch, its id is the number of the
//                receiver's immediates that arrived on that attempt, its offset a LandedState
//   notify       the notify; the header's id is its sequence number, and its offset as `heard`
//
// A notify on a queue pair is one SEND, of this:
//   u64 sequence | u64 heard | u32 length | u32 CRC32C of all the rest | bytes
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace mc::wire {

inline constexpr uint16_t kRdmaVersion = 3;
inline constexpr size_t kRdmaNicsMax = 8;    // ports of one process
inline constexpr size_t kRdmaGidsMax = 16;   // addresses of one port that are sent
inline constexpr size_t kRdmaPathsMax = 16;  // paths of one connection
inline constexpr size_t kRdmaLanesMax = 4;   // queue pairs of one path
inline constexpr size_t kRdmaChunksMax = 1024;
inline constexpr size_t kRdmaPathBytesMax = 512;
inline constexpr size_t kRdmaNotifyHeaderBytes = 24;
inline constexpr uint64_t kRdmaNotifiesAhead = 16;    // credit: SENDs beyond the number that the peer has confirmed
inline constexpr uint64_t kRdmaImmediatesAhead = 32;  // credit of WRITEs with an immediate, on each path

using Gid = std::array<uint8_t, 16>;

/// A message about all queue pairs of a connection.
enum class RestVerb : uint8_t {
  ask = 0,      // asks the receiver to give them up, unless it uses them
  insist = 1,   // asks to give them up once the posted work is done
  busy = 2,     // answers `ask`: in use
  resting = 3,  // the sender's queue pairs are destroyed
  wake = 4,     // listener: asks for new attempts at the paths
};

/// The state of the attempt that a `landed` reports on.
enum class LandedState : uint8_t {
  open = 0,    // more immediates may come; the count is credit
  over = 1,    // no more will come
  unsure = 2,  // no more will come, and some may have come without being counted
};

struct RdmaGid {
  Gid gid{};
  uint8_t prefix = 128;  // number of subnet bits of `gid`
  bool operator==(const RdmaGid&) const = default;
};

struct RdmaNic {
  std::string name;  // "mlx5_0"
  uint8_t port = 1;
  bool active = false;
  uint16_t lid = 0;
  uint16_t mtu = 0;  // bytes: 256 .. 4096, a power of two
  uint8_t rd_atomic = 0;
  std::vector<RdmaGid> gids;  // usable ones, best first
  bool operator==(const RdmaNic&) const = default;
};

struct RdmaNics {
  std::vector<RdmaNic> nics;
  bool operator==(const RdmaNics&) const = default;
};

/// The keys by which a NIC reaches a buffer: address `base` + offset with rkey[nic * chunks + offset / chunk_bytes].
struct RdmaKeys {
  uint32_t buffer = 0;
  uint32_t snapshot = 0;  // version of the sender's descriptor when it sent the keys
  uint64_t base = 0;
  uint64_t length = 0;
  uint64_t chunk_bytes = 0;
  uint16_t nics = 0;
  std::vector<uint32_t> rkeys;
  uint64_t chunks() const { return chunk_bytes == 0 ? 0 : (length + chunk_bytes - 1) / chunk_bytes; }
  bool operator==(const RdmaKeys&) const = default;
};

struct RdmaLaneAddress {
  uint32_t qpn = 0;
  uint32_t psn = 0;
  bool operator==(const RdmaLaneAddress&) const = default;
};

struct RdmaPathOffer {
  uint32_t path = 0;
  uint32_t path_count = 1;
  uint32_t epoch = 0;  // epoch of this attempt; grows, never reused on a connection
  uint16_t nic_from = 0;
  uint16_t nic_to = 0;
  Gid gid_from{};  // address of the sender
  Gid gid_to{};    // address of the receiver
  uint16_t lid = 0;
  uint16_t mtu = 0;
  uint8_t rd_atomic = 0;
  uint64_t scratch = 0;
  uint32_t scratch_rkey = 0;
  std::vector<RdmaLaneAddress> lanes;
  bool operator==(const RdmaPathOffer&) const = default;
};

struct RdmaPathReady {
  uint32_t path = 0;
  uint32_t epoch = 0;
  bool operator==(const RdmaPathReady&) const = default;
};

struct RdmaPathDown {
  uint32_t path = 0;
  uint32_t epoch = 0;
  uint8_t cause = 0;  // xfer's PathCause; unknown values are a fault of the path
  std::string text;
  bool operator==(const RdmaPathDown&) const = default;
};

struct RdmaNotify {
  uint64_t sequence = 0;  // number of the notify on its connection, from 0
  uint64_t heard = 0;     // number of the receiver's notifies that were delivered, which is new credit for it
  std::span<const std::byte> bytes;
};

std::vector<std::byte> encode(const RdmaNics& nics);
std::vector<std::byte> encode(const RdmaKeys& keys);
std::vector<std::byte> encode(const RdmaPathOffer& offer);
std::vector<std::byte> encode(const RdmaPathReady& ready);
std::vector<std::byte> encode(const RdmaPathDown& down);
Result<RdmaNics> decode_rdma_nics(std::span<const std::byte> bytes);
Result<RdmaKeys> decode_rdma_keys(std::span<const std::byte> bytes);
Result<RdmaPathOffer> decode_rdma_path_offer(std::span<const std::byte> bytes);
Result<RdmaPathReady> decode_rdma_path_ready(std::span<const std::byte> bytes);
Result<RdmaPathDown> decode_rdma_path_down(std::span<const std::byte> bytes);

/// Writes into `out`, which has room for the header and at most kNotifyBytesMax bytes. Returns the size.
size_t encode(const RdmaNotify& notify, std::span<std::byte> out);
/// Decodes a notify. The result refers to `bytes`.
Result<RdmaNotify> decode_rdma_notify(std::span<const std::byte> bytes);

}  // namespace mc::wire

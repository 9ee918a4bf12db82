// The notify that prefill sends to decode on the data plane: it names complete extents of a request, the places to
// READ them from, and their checksums. It is small, of fixed size and little-endian, because one is sent for each
// layer and chunk. A control message would cost 74 us instead of 2 us. Golden bytes: tests/golden/wire/notify.txt.
//
//    0        4     6      8                        40        44      48       52      56      60      64
//    | magic  | ver | kind | request id, zero-padded| attempt | layer | first  | count | rsvd  | CRC32C| entries
//    | "MCNT" |  1  |  1   | 32 bytes               |         |       | block  |       | = 0   |   *   |
//   entry, 12 bytes: | segment offset u64 | CRC32C of the extent u32 |     blocks first_block, first_block+1, ...
//   * over bytes 0..59 and all entries
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace mc::wire {

inline constexpr uint32_t kNotifyMagic = 0x544e434d;  // "MCNT"
inline constexpr uint16_t kNotifyVersion = 1;
inline constexpr size_t kNotifyHeaderBytes = 64;
inline constexpr size_t kNotifyEntryBytes = 12;
inline constexpr size_t kNotifyMessageBytesMax = 4096;
inline constexpr size_t kNotifyEntriesMax = (kNotifyMessageBytesMax - kNotifyHeaderBytes) / kNotifyEntryBytes;  // 336
inline constexpr size_t kNotifyRequestBytes = 32;

struct ReadyExtent {
  uint64_t segment_offset = 0;  // of this layer's extent in the sender's pool segment
  uint32_t crc = 0;
  bool operator==(const ReadyExtent&) const = default;
};

/// Extents of one layer for consecutive blocks of a request's block table.
struct ExtentsReady {
  RequestId req;  // 1..32 bytes
  uint32_t attempt = 1;
  uint32_t layer = 0;
  uint32_t first_block = 0;
  std::vector<ReadyExtent> extents;
  bool operator==(const ExtentsReady&) const = default;
};

/// One or more messages of at most 4 KiB (336 extents each), in block order. Code::invalid when the
/// request id is empty or too long; nothing for no extents.
Result<std::vector<std::vector<std::byte>>> encode_extents_ready(const ExtentsReady& ready);
/// Code::corrupt or Code::unsupported, naming the field.
Result<ExtentsReady> parse_extents_ready(std::span<const std::byte> bytes);

}  // namespace mc::wire

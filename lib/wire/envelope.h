// The first frame of every control message; the second frame is the body (wire/messages.h). The
// transport below (lib/ctl) reads the envelope and never the body.
//
//   msgpack map   v           u32   protocol version; read before anything else
//                 type        str   1..64 bytes: a message's kType, or "ctl.ping"
//                 id          u64   grows with every message of the sender instance, from 1
//                 re          u64   id of the message this one answers; absent = no answer
//                 from        str   0..64 bytes: sender's node name, "" before it has one
//                 inst        bin16 sender's instance
//                 to          bin16 the only instance that may take it; absent = any receiver
//                 epoch       u64   sender's start, unix ms: orders the instances of one name
//                 deadline_ms u64   time left for the work it asks for, at sending; absent = none
//                 seq         u64   number of the message in its direction of a connection, from 1; absent = uncounted
//                 sum         bin16 first half of the SHA-256 of the body; with seq
//
// Unknown keys are skipped, so keys may be added within a version. A new meaning needs a new version.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"

namespace mc::wire {

inline constexpr uint32_t kEnvelopeVersion = 1;
inline constexpr size_t kEnvelopeBytesMax = 512;
inline constexpr size_t kEnvelopeTextMax = 64;  // bound of `type` and `from`

struct Envelope {
  std::string type;
  uint64_t id = 0;
  uint64_t re = 0;
  std::string from;
  InstanceId instance;
  InstanceId to;
  uint64_t epoch = 0;
  std::optional<Duration> deadline;  // whole milliseconds on the wire, rounded up
  uint64_t seq = 0;                  // 0 = uncounted; see numbered()
  Id128 sum;

  bool operator==(const Envelope&) const = default;
};

/// `version` is a parameter so that tests can send another one.
std::vector<uint8_t> encode(const Envelope& envelope, uint32_t version = kEnvelopeVersion);

/// An encoded envelope, which has neither seq nor sum, with both.
std::vector<uint8_t> numbered(std::span<const uint8_t> encoded, uint64_t seq, const Id128& sum);

/// Code::unsupported with MC2102 and both versions when v differs; Code::corrupt or Code::invalid
/// with MC2106, naming the key, for anything else.
Result<Envelope> decode_envelope(std::span<const uint8_t> bytes);

}  // namespace mc::wire

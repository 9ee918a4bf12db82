// Copying memory and summing it in one pass. A checksum that costs a second pass over memory gets
// switched off; folded into the copy it costs almost nothing, since a copy waits for memory anyway.
//
// Every variant reads each byte of the source once and sums what it stores, so the result is the CRC32C of the bytes
// at the target, even when the source changes meanwhile (a peer may write to a shared arena while it is read).
//
// Large copies write past the caches (non-temporal stores): such a target is evicted before anyone
// reads it, and not fetching it first saves a third of the memory traffic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mc {

/// A copy of at least this many bytes bypasses the caches, alone or in pieces that belong together.
inline constexpr size_t kCopyStreamBytes = size_t{128} << 10;

/// Copies `size` bytes (ranges must not overlap) and returns crc32c of them, continuing from `seed`.
/// `whole` is the size of what this is a piece of (smaller = this is all).
uint32_t copy_crc32c(std::byte* to, const std::byte* from, size_t size, uint32_t seed = 0, size_t whole = 0);
/// The copy without the sum.
void copy_bytes(std::byte* to, const std::byte* from, size_t size, size_t whole = 0);
// The sum without the copy is crc32c of base/hash.h.

/// One implementation; [0] of the table is the definition, the last usable one is used.
struct CopyVariant {
  const char* name;
  bool (*usable)();
  /// `stream`: past the caches, where the variant can.
  uint32_t (*copy_crc)(std::byte* to, const std::byte* from, size_t size, uint32_t seed, bool stream);
  void (*copy)(std::byte* to, const std::byte* from, size_t size, bool stream);
  uint32_t (*sum)(const std::byte* from, size_t size, uint32_t seed);
};
/// For tests.
std::span<const CopyVariant* const> copy_variants();

extern const CopyVariant kCopyAvx512;

}  // namespace mc

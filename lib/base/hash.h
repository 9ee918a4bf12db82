// The two checksums of the project. SHA-256 (OpenSSL) names things; CRC32C (ISA-L, the iSCSI
// polynomial) guards bytes that move. CRC32C of A||B can be had from the parts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/ids.h"

namespace mc {

/// CRC32C as used by iSCSI, ext4 and RFC 3720: crc32c("123456789") == 0xe3069283.
/// Pass an earlier result as `seed` to continue over the next bytes.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t seed = 0);
/// The share of `crc` in the checksum of something `bytes_after` bytes longer:
/// crc32c(A||B) == crc32c_shift(crc32c(A), B.size()) ^ crc32c(B). About 1 us.
uint32_t crc32c_shift(uint32_t crc, uint64_t bytes_after);

/// Streaming SHA-256. Move-only; `finish` may be called once.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  Sha256& update(std::span<const std::byte> bytes);
  Sha256& update(std::string_view text);
  /// Little-endian, fixed width: the same bytes on every platform.
  Sha256& update_u32(uint32_t value);
  Sha256& update_u64(uint64_t value);
  std::array<uint8_t, 32> finish();
  /// First 128 bits of the digest.
  Id128 finish128();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mc

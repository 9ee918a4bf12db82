// HMAC-SHA256 (RFC 2104): a digest that only the holders of a key can compute.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace mc {

/// `key` has at most 64 bytes, one block of SHA-256.
std::array<uint8_t, 32> hmac_sha256(std::string_view key, std::string_view message);

}  // namespace mc

#include "base/hmac.h"

#include <span>
#include <string>

#include "base/assert.h"
#include "base/hash.h"

namespace mc {

std::array<uint8_t, 32> hmac_sha256(std::string_view key, std::string_view message) {
  constexpr size_t kBlockBytes = 64;
  MC_ASSERT_LE(key.size(), kBlockBytes);
  std::string inner_pad(kBlockBytes, '\x36'), outer_pad(kBlockBytes, '\x5c');
  for (size_t i = 0; i < key.size(); ++i) {
    inner_pad[i] = static_cast<char>(inner_pad[i] ^ key[i]);
    outer_pad[i] = static_cast<char>(outer_pad[i] ^ key[i]);
  }
  const auto inner = Sha256().update(inner_pad).update(message).finish();
  return Sha256().update(outer_pad).update(std::as_bytes(std::span(inner))).finish();
}

}  // namespace mc

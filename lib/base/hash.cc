#include "base/hash.h"

#include <openssl/evp.h>

#include "base/assert.h"

namespace mc {

namespace {

/// a * b modulo the CRC32C polynomial; bit 31 is x^0 (reflected, as in zlib's crc32_combine).
constexpr uint32_t crc_multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b & 1) ? (b >> 1) ^ 0x82f63b78u : b >> 1;
  }
  return product;
}

/// x^(2^k) for k = 0..66: enough for 2^64 bytes of 8 bits.
constexpr auto kCrcPowers = [] {
  std::array<uint32_t, 67> powers{};
  powers[0] = 1u << 30;
  for (size_t k = 1; k < powers.size(); ++k) powers[k] = crc_multiply(powers[k - 1], powers[k - 1]);
  return powers;
}();

}  // namespace

uint32_t crc32c_shift(uint32_t crc, uint64_t bytes_after) {
  for (size_t k = 3; bytes_after != 0 && crc != 0; bytes_after >>= 1, ++k)
    if (bytes_after & 1) crc = crc_multiply(kCrcPowers[k], crc);
  return crc;
}

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  MC_ASSERT(state_->context && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  MC_ASSERT(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
  return *this;
}

Sha256& Sha256::update(std::string_view text) {
  return update(std::as_bytes(std::span(text)));
}

Sha256& Sha256::update_u32(uint32_t value) {
  std::array<std::byte, 4> raw;
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<std::byte>(value >> (8 * i));
  return update(raw);
}

Sha256& Sha256::update_u64(uint64_t value) {
  return update_u32(static_cast<uint32_t>(value)).update_u32(static_cast<uint32_t>(value >> 32));
}

std::array<uint8_t, 32> Sha256::finish() {
  std::array<uint8_t, 32> digest{};
  unsigned length = 0;
  MC_ASSERT(EVP_DigestFinal_ex(state_->context, digest.data(), &length) == 1 && length == 32);
  return digest;
}

Id128 Sha256::finish128() {
  const auto digest = finish();
  Id128 id;
  std::copy(digest.begin(), digest.begin() + 16, id.bytes.begin());
  return id;
}

}  // namespace mc

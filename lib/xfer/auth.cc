// The fence around OpenSSL's X25519 and random generator.
#include "xfer/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <string>
#include <vector>

#include "base/assert.h"
#include "base/hash.h"

namespace mc::xfer {

wire::Nonce random_nonce() {
  wire::Nonce nonce;
  MC_ASSERT_EQ(RAND_bytes(nonce.data(), static_cast<int>(nonce.size())), 1);
  return nonce;
}

wire::Ticket random_ticket() {
  return random_nonce();  // 32 bytes of the same generator
}

Id128 random_id() {
  Id128 id;
  MC_ASSERT_EQ(RAND_bytes(id.bytes.data(), static_cast<int>(id.bytes.size())), 1);
  return id;
}

namespace {

/// Writes the length first, so that two different lists of fields give different bytes.
void add(std::vector<uint8_t>& message, std::span<const uint8_t> bytes) {
  for (size_t i = 0; i < 4; ++i) message.push_back(static_cast<uint8_t>(bytes.size() >> (8 * i)));
  message.insert(message.end(), bytes.begin(), bytes.end());
}
void add(std::vector<uint8_t>& message, std::string_view text) {
  add(message, std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}
void add(std::vector<uint8_t>& message, const std::vector<std::byte>& bytes) {
  add(message, std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
}

/// Both messages, as they are sent.
std::vector<uint8_t> transcript(std::string_view label, const wire::XferHello& hello,
                                const wire::XferChallenge& challenge) {
  std::vector<uint8_t> message;
  add(message, "mc-xfer-" + std::to_string(wire::kXferVersion));
  add(message, label);
  add(message, wire::encode(hello));
  add(message, wire::encode(challenge));
  return message;
}

}  // namespace

wire::Proof prove(std::string_view secret, std::string_view label, const wire::XferHello& hello,
                  const wire::XferChallenge& challenge) {
  wire::XferChallenge unproven = challenge;
  unproven.proof = {};
  return hkdf_extract({reinterpret_cast<const uint8_t*>(secret.data()), secret.size()},
                      transcript(label, hello, unproven));
}

bool same(const wire::Proof& a, const wire::Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void ShareKey::Free::operator()(evp_pkey_st* key) const {
  EVP_PKEY_free(key);
}

ShareKey::ShareKey() : ShareKey(random_nonce()) {}

ShareKey::ShareKey(const std::array<uint8_t, 32>& private_key)
    : key_(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, private_key.data(), private_key.size())) {
  MC_ASSERT(key_ != nullptr);
}

wire::KeyShare ShareKey::share() const {
  wire::KeyShare share;
  size_t length = share.size();
  MC_ASSERT_EQ(EVP_PKEY_get_raw_public_key(key_.get(), share.data(), &length), 1);
  MC_ASSERT_EQ(length, share.size());
  return share;
}

std::optional<std::array<uint8_t, 32>> ShareKey::agree(const wire::KeyShare& theirs) const {
  const std::unique_ptr<evp_pkey_st, Free> other(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, theirs.data(), theirs.size()));
  MC_ASSERT(other != nullptr);
  struct FreeContext {
    void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
  };
  const std::unique_ptr<EVP_PKEY_CTX, FreeContext> context(EVP_PKEY_CTX_new(key_.get(), nullptr));
  MC_ASSERT(context != nullptr);
  std::array<uint8_t, 32> secret;
  size_t length = secret.size();
  MC_ASSERT_EQ(EVP_PKEY_derive_init(context.get()), 1);
  // Fails for an all-zero result, which RFC 7748, section 6.1, requires.
  if (EVP_PKEY_derive_set_peer(context.get(), other.get()) != 1 ||
      EVP_PKEY_derive(context.get(), secret.data(), &length) != 1)
    return std::nullopt;
  MC_ASSERT_EQ(length, secret.size());
  return secret;
}

SealSecrets seal_secrets(const std::array<uint8_t, 32>& exchanged, std::string_view secret,
                         const wire::XferHello& hello, const wire::XferChallenge& challenge, bool dialled) {
  const auto messages = transcript("seal", hello, challenge);
  const auto salt = Sha256().update(std::as_bytes(std::span(messages))).finish();
  std::vector<uint8_t> input(exchanged.begin(), exchanged.end());
  input.insert(input.end(), secret.begin(), secret.end());
  auto key = hkdf_extract(salt, input);
  OPENSSL_cleanse(input.data(), input.size());
  SealSecrets out;
  hkdf_expand(key, "mc-xfer-3 dialler to listener", dialled ? out.out : out.in);
  hkdf_expand(key, "mc-xfer-3 listener to dialler", dialled ? out.in : out.out);
  OPENSSL_cleanse(key.data(), key.size());
  return out;
}

}  // namespace mc::xfer

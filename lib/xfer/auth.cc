// The fence around OpenSSL's HMAC and random generator.
#include "xfer/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <vector>

#include "base/assert.h"

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

wire::Proof prove(std::string_view secret, std::string_view label, const wire::XferHello& hello,
                  const wire::XferChallenge& challenge) {
  std::vector<uint8_t> message;
  const auto add = [&](const auto& bytes) { message.insert(message.end(), bytes.begin(), bytes.end()); };
  const auto add_text = [&](std::string_view text) {  // length first: no two field lists read the same
    message.push_back(static_cast<uint8_t>(text.size()));
    add(text);
  };
  add_text("mc-xfer-1");
  add_text(label);
  add(hello.nonce);
  add(challenge.nonce);
  add(hello.instance.bytes);
  add(challenge.instance.bytes);
  add(hello.connection.bytes);
  for (const uint16_t number : {hello.lane, hello.lane_count}) {
    message.push_back(static_cast<uint8_t>(number));
    message.push_back(static_cast<uint8_t>(number >> 8));
  }
  add_text(hello.name);
  add_text(challenge.name);
  wire::Proof proof{};
  unsigned length = 0;
  MC_ASSERT(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), message.data(), message.size(),
                 proof.data(), &length) != nullptr);
  MC_ASSERT_EQ(length, proof.size());
  return proof;
}

bool same(const wire::Proof& a, const wire::Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace mc::xfer

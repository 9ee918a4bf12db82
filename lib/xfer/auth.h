// Proof of the cluster's secret by challenge. Each side sends a nonce and returns an HMAC-SHA256 over the protocol
// version, a label of its role, and every byte of the hello and of the challenge. So a proof is valid for one
// connection, one direction and one lane, and an attacker can change nothing that the two messages agree on.
//
// A proof authenticates the set-up of a connection. Its later bytes are protected when the stream is sealed (seal.h).
// The keys of a sealed stream come from both messages, the secret, and an X25519 exchange (RFC 7748) whose private keys
// live as long as the handshake. Recorded traffic therefore stays encrypted when the secret leaks later.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "wire/xfer_frame.h"
#include "xfer/sealed_io.h"

extern "C" struct evp_pkey_st;

namespace mc::xfer {

/// 32 bytes from the system's generator.
wire::Nonce random_nonce();
wire::Ticket random_ticket();
Id128 random_id();
/// HMAC-SHA256. `label` is "dialler", "listener", or "ticket" when the key is the listener's ticket. The proof inside
/// the challenge is left out.
wire::Proof prove(std::string_view secret, std::string_view label, const wire::XferHello& hello,
                  const wire::XferChallenge& challenge);
/// Constant time.
bool same(const wire::Proof& a, const wire::Proof& b);

/// A private key of X25519, for one handshake.
class ShareKey {
 public:
  ShareKey();  // generates a random key
  explicit ShareKey(const std::array<uint8_t, 32>& private_key);
  wire::KeyShare share() const;
  /// The secret that both private keys give; none for a share that gives no secret (a point of small order).
  std::optional<std::array<uint8_t, 32>> agree(const wire::KeyShare& theirs) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  std::unique_ptr<evp_pkey_st, Free> key_;
};

/// HKDF over the exchanged secret and the cluster's secret, salted with the hash of both messages. Gives one secret for
/// each direction.
SealSecrets seal_secrets(const std::array<uint8_t, 32>& exchanged, std::string_view secret,
                         const wire::XferHello& hello, const wire::XferChallenge& challenge, bool dialled);

}  // namespace mc::xfer

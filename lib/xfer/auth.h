// Proof of the cluster's secret by challenge: each side sends a nonce and returns an HMAC-SHA256 over
// a label of its role, both nonces, both instances and the lane, so a proof fits one connection, one
// direction and one lane only. This authenticates the set-up of a connection, not its later bytes: an
// attacker on the path can still inject into a TCP stream (isolate the network, or tunnel it).
#pragma once

#include <string_view>

#include "wire/xfer_frame.h"

namespace mc::xfer {

/// 32 bytes from the system's generator.
wire::Nonce random_nonce();
wire::Ticket random_ticket();
Id128 random_id();
/// HMAC-SHA256. `label` is "dialler", "listener", or "ticket" where the key is the listener's ticket.
wire::Proof prove(std::string_view secret, std::string_view label, const wire::XferHello& hello,
                  const wire::XferChallenge& challenge);
/// Constant time.
bool same(const wire::Proof& a, const wire::Proof& b);

}  // namespace mc::xfer

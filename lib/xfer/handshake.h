// The handshake of one lane, without sockets: frames in, frames out. Every transport uses it, and its tests
// and its fuzzer drive it with hand-made bytes.
//
//   dialler                                   listener
//     hello (who, whom, nonce, share)  -->
//                                      <--     challenge (who, nonce, share, proof)
//     proof (proof, descriptor)        -->     <- from here on inside sealed records, if the stream is sealed
//                                      <--     ready (descriptor)
//
// Descriptors travel on lane 0 only, and only after the other side has proven the secret. A side that finds an
// error sends `refuse` with a code and a text and closes.
//
// An instance id is public, so a claim of one proves nothing. A handshake establishes the identity of a peer that
// proves the cluster's secret, or of a listener that was dialled at the address of the descriptor we were given. Where
// the cluster has no secret (Options::insecure), a dialler proves with the ticket of the listener's descriptor that
// the control plane introduced it; a dialler without the ticket is served as a stranger.
//
// An attacker without the secret gains this:
// - The listener proves itself first, to anybody. Its proof is no use elsewhere: it covers the hello it answers, its
//   own nonce and the word "listener". A dialler accepts it only for its own hello, whose nonce never comes back; a
//   listener accepts only proofs that cover the word "dialler", and only a dialler that has just checked a listener's
//   proof makes one. So a proof that is reflected, replayed, or collected from many listeners fits no other
//   handshake. A dialler whose hello is sent back to its own listener is refused as being the same instance.
// - A relay can pass all four messages on. It then carries a connection of the two honest sides, and each proof covers
//   both key shares and both wishes: a relay that replaces a share, or takes back the wish to seal, fails the proofs.
//   On a sealed stream the relay cannot read or change what follows. On a stream that is not sealed it can do both.
// - Refusals before the proofs are authenticated by nothing: an attacker on the path can end any attempt to connect.
// - Before the dialler's proof the listener reveals its name, its instance, and whether it has a secret.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "xfer/auth.h"
#include "xfer/transport.h"

namespace mc::xfer {

struct OutFrame {
  wire::FrameHeader header;
  std::vector<std::byte> payload;
};

OutFrame control_frame(wire::FrameType type, std::vector<std::byte> payload);
OutFrame refusal(Code code, std::string_view text, wire::Mismatch mismatch = wire::Mismatch::none);
/// The last frame of a connection that is closed on purpose: the peer need not dial again.
OutFrame goodbye(std::string_view why);

class FrameStream;

/// Code::invalid: Options::tcp_seal is unknown, or it needs a secret that is not there.
Result<void> check_seal(const Options& options);
/// Meaning of Options::tcp_seal for a connection that stays on loopback, or that leaves it.
wire::SealWish seal_wish(const Options& options, bool loopback);

class Handshake {
 public:
  static Handshake dial(const Home& home, const InstanceId& wanted, const Id128& connection, uint16_t lane,
                        uint16_t lane_count, wire::SealWish seal = wire::SealWish::never,
                        const wire::Ticket& ticket = {});
  static Handshake listen(const Home& home, wire::SealWish seal = wire::SealWish::never);

  /// The dialler's first frame.
  OutFrame opening() const;

  struct Step {
    std::optional<OutFrame> send;  // also on failure: the refusal to send before closing
    /// From here on the stream is sealed: `send` already is the dialler's first sealed frame, and still a clear one
    /// of the listener's.
    std::optional<SealSecrets> seal;
    std::optional<Error> failed;
    const char* reason = "";                         // static, for the failure counter
    bool gone = false;                               // the wanted instance is not there any more
    wire::Mismatch mismatch = wire::Mismatch::none;  // of a failure
  };
  /// Consumes one frame of the peer.
  Step take(const wire::FrameHeader& header, std::span<const std::byte> payload);
  /// The same for a handshake over a stream: seals it when it is time, and queues the answer.
  Step take(const wire::FrameHeader& header, std::span<const std::byte> payload, FrameStream& stream);

  bool complete() const { return state_ == State::complete; }
  bool dialled() const { return dialled_; }
  const wire::XferHello& hello() const { return hello_; }
  /// The instance that the peer says it is.
  InstanceId peer_instance() const { return dialled_ ? challenge_.instance : hello_.instance; }
  /// Complete, and the peer has proven that it belongs to the cluster.
  bool proven() const { return proven_ && complete(); }
  /// Its instance, where that is established; else zero.
  InstanceId identity() const {
    const bool addressed = dialled_ && !hello_.wanted.is_zero();
    return proven() || (addressed && complete()) ? peer_instance() : InstanceId{};
  }
  const std::string& peer_name() const { return dialled_ ? challenge_.name : hello_.name; }
  std::shared_ptr<const Descriptor> descriptor() const { return descriptor_; }  // lane 0, else null

 private:
  enum class State : uint8_t { hello, challenge, proof, ready, complete };  // what is awaited

  Handshake(const Home& home, wire::SealWish seal) : home_(&home), seal_(seal) {}
  Step on_hello(std::span<const std::byte> payload);
  Step on_challenge(std::span<const std::byte> payload);
  Step on_proof(std::span<const std::byte> payload);
  Step on_ready(std::span<const std::byte> payload);
  Step take_descriptor(std::span<const std::byte> payload);
  static Step fail(const char* reason, Code code, std::string text, wire::Mismatch mismatch = wire::Mismatch::none);
  bool seals() const;
  Step disagree(wire::SealWish theirs) const;
  bool agree(const wire::KeyShare& theirs, Step& step);

  const Home* home_;
  wire::SealWish seal_;
  std::optional<ShareKey> key_;  // gone as soon as both shares are known
  bool dialled_ = false;
  bool proven_ = false;
  wire::Ticket ticket_{};  // dialler's, of the listener; zero = none
  State state_ = State::hello;
  wire::XferHello hello_;
  wire::XferChallenge challenge_;
  std::shared_ptr<const Descriptor> descriptor_;  // immutable; the engine and its callers keep it
};

}  // namespace mc::xfer

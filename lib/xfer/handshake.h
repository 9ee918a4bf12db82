// The handshake of one lane, without sockets: frames in, frames out. Every transport uses it. Its tests and its fuzzer
// drive it with hand-made bytes.
//
//   dialler                                        listener
//     hello (both instances, nonce, share)  -->
//                                           <--     challenge (instance, nonce, share, proof)
//     proof (proof, descriptor)             -->     <- records are sealed from here on, if the stream is sealed
//                                           <--     ready (descriptor)
//
// Descriptors travel on lane 0 only, and only after the other side has proven the secret. A side that finds an error
// sends `refuse` with a code and a text, then closes.
//
// An instance id is public, so a claim of one proves nothing. A handshake establishes the identity of a peer that
// proves the cluster's secret, and of a listener at the address in the descriptor that this process was given. In a
// cluster without a secret (Options::insecure), a dialler uses the ticket in the listener's descriptor to prove that
// the control plane introduced it. A dialler without the ticket is served as a stranger.
//
// An attacker without the secret can do only the following:
// - The listener proves itself first, to every dialler. Its proof is useless elsewhere, because it covers the hello
//   that it answers, its own nonce and the word "listener". A dialler accepts a proof only for its own hello, whose
//   nonce is never used again. A listener accepts only proofs over the word "dialler", and a dialler makes such a proof
//   only after it has checked a listener's proof. So a proof that is reflected, replayed, or collected from many
//   listeners fits no other handshake. A dialler whose hello is sent back to its own listener is refused, because the
//   instance is its own.
// - A relay can pass all four messages on, and then carries a connection between the two honest sides. Each proof
//   covers both key shares and both seal settings, so a relay that replaces a share or a setting fails the proofs. On a
//   sealed stream the relay cannot read or change later bytes. On an unsealed stream it can do both.
// - A refusal before the proofs is not authenticated, so an attacker on the path can end any attempt to connect.
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
/// The last frame of a connection that is closed on purpose. The peer does not dial again.
OutFrame goodbye(std::string_view why);

class FrameStream;

/// Code::invalid: Options::tcp_seal is unknown, or needs a secret that is missing.
Result<void> check_seal(const Options& options);
/// The seal setting that Options::tcp_seal means for a connection on loopback, or for one that leaves the host.
wire::SealSetting seal_setting(const Options& options, bool loopback);

class Handshake {
 public:
  static Handshake dial(const Services& services, const InstanceId& wanted, const Id128& connection, uint16_t lane,
                        uint16_t lane_count, wire::SealSetting seal = wire::SealSetting::never,
                        const wire::Ticket& ticket = {});
  static Handshake listen(const Services& services, wire::SealSetting seal = wire::SealSetting::never);

  /// The dialler's first frame.
  OutFrame opening() const;

  struct Step {
    std::optional<OutFrame> send;  // also set on failure: the refusal to send before closing
    /// Set when the stream is sealed from here on. `send` is then the dialler's first sealed frame, or the listener's
    /// last clear frame.
    std::optional<SealSecrets> seal;
    std::optional<Error> failed;
    const char* reason = "";                         // static text for the failure counter
    bool gone = false;                               // the wanted instance no longer exists
    wire::Mismatch mismatch = wire::Mismatch::none;  // set for a failure
  };
  /// Consumes one frame of the peer.
  Step take(const wire::FrameHeader& header, std::span<const std::byte> payload);
  /// Consumes one frame of a handshake over a stream. Seals the stream when it is time, and queues the answer.
  Step take(const wire::FrameHeader& header, std::span<const std::byte> payload, FrameStream& stream);

  bool complete() const { return state_ == State::complete; }
  bool dialled() const { return dialled_; }
  const wire::XferHello& hello() const { return hello_; }
  /// The instance that the peer claims.
  InstanceId peer_instance() const { return dialled_ ? challenge_.instance : hello_.instance; }
  /// The handshake is complete, and the peer has proven that it belongs to the cluster.
  bool proven() const { return proven_ && complete(); }
  /// The peer's instance when it is established, else zero.
  InstanceId identity() const {
    const bool addressed = dialled_ && !hello_.wanted.is_zero();
    return proven() || (addressed && complete()) ? peer_instance() : InstanceId{};
  }
  const std::string& peer_name() const { return dialled_ ? challenge_.name : hello_.name; }
  std::shared_ptr<const Descriptor> descriptor() const { return descriptor_; }  // lane 0, else null

 private:
  enum class State : uint8_t { hello, challenge, proof, ready, complete };  // the awaited frame

  Handshake(const Services& services, wire::SealSetting seal) : services_(&services), seal_(seal) {}
  Step on_hello(std::span<const std::byte> payload);
  Step on_challenge(std::span<const std::byte> payload);
  Step on_proof(std::span<const std::byte> payload);
  Step on_ready(std::span<const std::byte> payload);
  Step take_descriptor(std::span<const std::byte> payload);
  static Step fail(const char* reason, Code code, std::string text, wire::Mismatch mismatch = wire::Mismatch::none);
  bool seals() const;
  Step disagree(wire::SealSetting theirs) const;
  bool agree(const wire::KeyShare& theirs, Step& step);

  const Services* services_;
  wire::SealSetting seal_;
  std::optional<ShareKey> key_;  // deleted as soon as both shares are known
  bool dialled_ = false;
  bool proven_ = false;
  wire::Ticket ticket_{};  // dialler: ticket of the listener; zero = none
  State state_ = State::hello;
  wire::XferHello hello_;
  wire::XferChallenge challenge_;
  std::shared_ptr<const Descriptor> descriptor_;  // immutable; shared by the engine and its callers
};

}  // namespace mc::xfer

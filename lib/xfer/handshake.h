// The handshake of one lane, without sockets: frames in, frames out. Both transports of this folder
// use it, and its tests and fuzzer drive it with hand-made bytes.
//
//   dialler                                listener
//     hello (who, whom, nonce)      -->
//                                   <--     challenge (who, nonce, proof)
//     proof (proof, descriptor)     -->
//                                   <--     ready (descriptor)
//
// Descriptors travel on lane 0 only, and only after the other side has proven the secret. Whoever
// finds something wrong sends `refuse` with a code and a text and closes.
//
// An instance id is public, so who claims one is not believed. A handshake establishes the identity of a peer that
// proves the cluster's secret, or of a listener that was dialled at the address of the descriptor we were given. Where
// the cluster has no secret (Options::insecure), a dialler proves with the ticket of the listener's descriptor that
// the control plane introduced it; whoever does not is served as a stranger.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "xfer/transport.h"

namespace mc::xfer {

struct OutFrame {
  wire::FrameHeader header;
  std::vector<std::byte> payload;
};

OutFrame control_frame(wire::FrameType type, std::vector<std::byte> payload);
OutFrame refusal(Code code, std::string_view text);

class Handshake {
 public:
  static Handshake dial(const Home& home, const InstanceId& wanted, const Id128& connection, uint16_t lane,
                        uint16_t lane_count, const wire::Ticket& ticket = {});
  static Handshake listen(const Home& home);

  /// The dialler's first frame.
  OutFrame opening() const;

  struct Step {
    std::optional<OutFrame> send;  // also on failure: the refusal to send before closing
    std::optional<Error> failed;
    const char* reason = "";  // static, for the failure counter
    bool gone = false;        // the wanted instance is not there any more
  };
  /// Consumes one frame of the peer.
  Step take(const wire::FrameHeader& header, std::span<const std::byte> payload);

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

  explicit Handshake(const Home& home) : home_(&home) {}
  Step on_hello(std::span<const std::byte> payload);
  Step on_challenge(std::span<const std::byte> payload);
  Step on_proof(std::span<const std::byte> payload);
  Step on_ready(std::span<const std::byte> payload);
  Step take_descriptor(std::span<const std::byte> payload);
  static Step fail(const char* reason, Code code, std::string text);

  const Home* home_;
  bool dialled_ = false;
  bool proven_ = false;
  wire::Ticket ticket_{};  // dialler's, of the listener; zero = none
  State state_ = State::hello;
  wire::XferHello hello_;
  wire::XferChallenge challenge_;
  std::shared_ptr<const Descriptor> descriptor_;  // immutable; the engine and its callers keep it
};

}  // namespace mc::xfer

// One framed TCP socket of a connection, from dial or accept to its end (internal): stream, handshake, clocks and the
// events that epoll watches. The transport that owns it says what the frames after the handshake mean, and when the
// clocks end the connection. Not thread-safe: it belongs to the thread that has the loop's turn.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xfer/handshake.h"
#include "xfer/stream.h"

namespace mc::xfer {

/// Why a connection ends: the fields of News::Kind::lost.
struct Loss {
  Code code = Code::peer_lost;
  bool gone = false;  // proof that the wanted instance no longer listens there
  std::string text;
  wire::Mismatch mismatch = wire::Mismatch::none;
  bool no_listener = false;  // the host answers, and no program listens at that address
};

/// A socket whose connect() was started for that dial, or why there is none.
struct PeerDialling {
  Fd fd;
  wire::SealWish seal = wire::SealWish::never;
  std::optional<Loss> refused;
};
PeerDialling dial_peer(const std::string& scheme, const Dial& dial, const Options& options);

class PeerSocket {
 public:
  PeerSocket(Home& home, Fd fd, Handshake with, StreamIo& calls = socket_calls())
      : io(std::move(fd), calls), handshake(std::move(with)), home_(home) {}

  FrameStream io;
  Handshake handshake;
  TimePoint deadline = kNever;  // of the handshake
  TimePoint progress{};         // when bytes last moved, or work began
  Reports* out = nullptr;       // set while frames are handled
  std::optional<Loss> failure;  // why the frame just handled ends the connection, if the stream's error is not enough

  /// Watches the socket. False: the epoll set takes no more.
  bool open(uint8_t owner);
  uint64_t token() const { return token_; }
  bool connecting() const { return connecting_; }
  /// The connect() of a dialled socket has ended: queues the first frame, or returns why there is no connection.
  std::optional<Loss> connected();
  FrameStream::Io receive(FrameConsumer& consumer, size_t budget, Reports& reports);
  /// Queues a control frame. The stall clock starts with work.
  void push(OutFrame frame);
  FrameStream::Io flush(size_t budget, std::vector<FrameStream::Gone>& gone);
  /// Waits for what the socket needs now; `paused`: not for frames of the peer.
  void watch(bool paused);
  /// A frame of the handshake. Not ok: the connection ends.
  Code take_handshake(const wire::FrameHeader& header, std::span<const std::byte> payload, const char*& why);
  /// The peer said goodbye.
  Code take_goodbye(std::span<const std::byte> payload, const char*& why);
  /// The stream ended, or a frame on it ended the connection: counts it and says why. A refusal may have been queued.
  Loss broken();
  void close();

 private:
  Home& home_;
  uint64_t token_ = 0;
  uint32_t armed_ = 0;  // epoll events
  bool connecting_ = false;
};

}  // namespace mc::xfer

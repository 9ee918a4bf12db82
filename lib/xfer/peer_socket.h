// One framed TCP socket of a connection, from dial or accept to its end (internal): the stream, the handshake, the
// time-outs and the events that epoll watches. The transport that owns the socket interprets frames after the handshake
// and decides when a time-out ends the connection. Not thread-safe: only the thread that has the loop's turn calls this
// class.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "xfer/handshake.h"
#include "xfer/stream.h"

namespace mc::xfer {

/// The cause of a connection's end: the fields of EndpointEvent::Kind::lost.
struct Loss {
  Code code = Code::peer_lost;
  bool gone = false;  // proof that the wanted instance no longer listens there
  std::string text;
  wire::Mismatch mismatch = wire::Mismatch::none;
  bool no_listener = false;  // the host answers, and no program listens at that address
};

/// A socket whose connect() was started for a dial, or the reason why there is none.
struct PeerDialling {
  Fd fd;
  wire::SealSetting seal = wire::SealSetting::never;
  std::optional<Loss> refused;
};
PeerDialling dial_peer(const std::string& scheme, const Dial& dial, const Options& options);

class PeerSocket {
 public:
  PeerSocket(Services& services, Fd fd, Handshake with, StreamIo& calls = socket_calls())
      : io(std::move(fd), calls), handshake(std::move(with)), services_(services) {}

  FrameStream io;
  Handshake handshake;
  TimePoint deadline = kNever;  // deadline of the handshake
  TimePoint progress{};         // when bytes last moved, or when work began
  Reports* out = nullptr;       // set while frames are handled
  // Set when the frame that was just handled ends the connection and the stream has no error of its own.
  std::optional<Loss> failure;

  /// Watches the socket. False: the epoll set is full.
  bool open(uint8_t owner);
  uint64_t token() const { return token_; }
  bool connecting() const { return connecting_; }
  /// Called when the connect() of a dialled socket has ended. Queues the first frame, or returns the reason of the
  /// failure.
  std::optional<Loss> connected();
  FrameStream::Io receive(FrameConsumer& consumer, size_t budget, Reports& reports);
  /// Queues a control frame. The stall time-out starts when there is work.
  void push(OutFrame frame);
  FrameStream::Io flush(size_t budget, std::vector<FrameStream::Gone>& gone);
  /// Sets the epoll events that the socket needs now. `paused`: frames of the peer are not read.
  void watch(bool paused);
  /// Handles a frame of the handshake. Not ok: the connection ends.
  Code take_handshake(const wire::FrameHeader& header, std::span<const std::byte> payload, const char*& why);
  /// Handles the peer's goodbye.
  Code take_goodbye(std::span<const std::byte> payload, const char*& why);
  /// The stream ended, or a frame on it ended the connection. Counts the loss and returns its cause. A refusal may have
  /// been queued.
  Loss broken();
  void close();

 private:
  Services& services_;
  uint64_t token_ = 0;
  uint32_t armed_ = 0;  // epoll events
  bool connecting_ = false;
};

}  // namespace mc::xfer

// The ZeroMQ fence: no other file includes zmq.hpp. A Socket is a ROUTER, DEALER or the ZAP replier with fixed options,
// and its monitor. No call blocks or throws. A socket belongs to one thread. It may be handed over once, before the
// other thread starts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace mc::ctl {

using Bytes = std::vector<uint8_t>;

enum class SocketKind : uint8_t { router, dealer, zap };

struct SocketOptions {
  size_t message_bytes_max = 0;  // limit of one frame; a longer one closes the connection
  int high_water = 256;          // messages in each direction of each connection
  bool ipv6 = false;             // else addresses would print as ::ffff:10.0.0.1
  Duration reconnect{};          // first interval; doubles up to 16 times that
  Duration handshake{};          // a connection that has not finished by then is closed
  size_t connections_max = 0;    // router: limit of incoming connections; more are closed at once
  // CURVE, Z85 text; all empty = plain.
  std::string server_public, server_secret;               // router: both
  std::string peer_public, client_public, client_secret;  // dealer: all three
};

struct SocketEvent {
  enum class Kind : uint8_t { listening, handshake_done, handshake_failed, disconnected, retrying };
  Kind kind = Kind::retrying;
  int fd = -1;           // listening and disconnected
  bool refused = false;  // handshake_failed: the other side or the mechanism refused (not a mere hang-up)
  std::string text;      // handshake_failed: text of the cause
  bool by_key = false;   // handshake_failed: the ZAP replier refused the key
  std::string peer;      // disconnected, of a bound router: the other end, see AcceptGate::closed()
};

struct SocketMessage {
  std::vector<Bytes> frames;  // at most kFrameMax; more are counted, not kept
  size_t frame_count = 0;
  int fd = -1;               // connection it came by
  std::string peer_address;  // "127.0.0.1"; "localhost:UID:GID:PID" or "" for ipc
};

class Socket;

/// One for each hub. It must outlive its sockets.
class Context {
 public:
  static Result<Context> open();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  ~Context();

 private:
  friend class Socket;
  struct State;
  explicit Context(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class Socket {
 public:
  static constexpr size_t kFrameMax = 8;

  static Result<Socket> open(Context& context, SocketKind kind, const SocketOptions& options);
  Socket(Socket&&) noexcept;
  Socket& operator=(Socket&&) noexcept;
  ~Socket();

  /// Binds "tcp://127.0.0.1:0", "ipc:///path" or "inproc://x". Code::io with the reason; errno EADDRINUSE is busy.
  Result<void> bind(const std::string& uri);
  /// The address on which the socket listens, with the port that replaced port 0.
  const std::string& bound() const { return bound_; }
  /// Stops listening. Existing connections stay. The address becomes free some time later.
  void unbind();
  Result<void> connect(const std::string& uri);

  /// Connections from peers to this socket, less those whose end next_event() has reported.
  size_t connections() const;
  /// Connections beyond connections_max, since bind().
  uint64_t refused() const;

  /// Makes the socket drop its queued messages when it closes.
  void abandon();

  /// Sends all frames, 1 to kFrameMax, or none: ok, busy (high water, no memory, or a dealer without a connection) or
  /// peer_lost (a router's connection is gone).
  Code send(std::span<const std::span<const uint8_t>> frames);
  std::optional<SocketMessage> receive();
  std::optional<SocketEvent> next_event();

 private:
  friend Result<void> poll_sockets(std::span<struct PollItem>, Duration);
  struct State;
  explicit Socket(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
  std::string bound_;
};

struct PollItem {
  Socket* socket = nullptr;  // or `fd`
  int fd = -1;
  bool want_read = true;  // the monitor is always watched
  bool want_write = false;
  bool readable = false, writable = false, has_event = false;  // out
};

/// Waits until one item is ready or the time is over.
Result<void> poll_sockets(std::span<PollItem> items, Duration timeout);

struct CurvePair {
  std::string public_key, secret_key;  // Z85, 40 characters
};
Result<CurvePair> new_curve_pair();
/// The public key that belongs to a secret one; Code::invalid when it is no key.
Result<std::string> curve_public(const std::string& secret_key);
/// 32 bytes as Z85 text.
std::string z85_text(std::span<const uint8_t> bytes);

}  // namespace mc::ctl

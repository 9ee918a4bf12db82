// The shm transport (internal). Peers of one host map each other's memfd arenas. A read is then one memcpy (or none:
// Engine::map), and a write is a memcpy into a landing arena.
//   transport.cc  ShmTransport: listening, dialling, handling of messages, loss, timers
//   socket.cc     ShmSocket: messages and descriptors over AF_UNIX
//   arenas.cc     ShmArenas: the peer's arenas, and copies
//
// Arenas travel over the socket, which also carries notifies. The end of the socket means that the peer is lost.
//   handshake; then each side sends   share (buffer, length, fd) ...   describe
// An endpoint is up when the peer's first `describe` has arrived, so a descriptor never names an unmapped arena. Later
// registrations send share and describe again.
//
// Before any byte is sent or read, the kernel reports the user at the other end (SO_PEERCRED). A process of this
// process's effective user is trusted, and so is one of root, which could read this memory anyway. A process of another
// user must prove the cluster's secret before it gets a descriptor or an arena. Without a secret it is refused. When
// shm_path names the socket, other users cannot even reach it, because its folder is private.
//
// The kernel enforces the access classes: a read-only arena is sealed against new writable mappings (lib/mem), and no
// arena can shrink under a reader.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "xfer/listener.h"
#include "xfer_shm/arenas.h"
#include "xfer_shm/socket.h"

namespace mc::xfer {

struct ShmEndpoint {
  ShmEndpoint(Fd fd, Handshake shake) : socket(std::move(fd)), handshake(std::move(shake)) {}
  EndpointId id = EndpointId::none;
  ShmSocket socket;
  Handshake handshake;
  uint64_t token = 0;
  uint32_t armed = 0;
  bool accepted = false;
  bool ours = false;  // the peer's process belongs to this user or to root
  bool up = false;
  TimePoint deadline = kNever;
  std::deque<OutFrame> queue;  // notifies and descriptors that the socket has not taken yet
  std::set<uint32_t> shared;   // own buffers that the peer has a descriptor of
  bool publish_again = false;  // the queue was full when the descriptor changed
  bool full = false;           // the socket did not take an immediate, so its slice waits
  ShmArenas arenas;            // arenas of the peer
};

class ShmTransport final : public Transport {
 public:
  ShmTransport(Services& services, uint8_t index) : services_(services), index_(index), listener_(services, index) {}
  ~ShmTransport() override { shutdown(); }

  Result<std::string> listen() override;
  EndpointId connect(const Dial& dial, Reports& out) override;
  int lanes(EndpointId) const override { return 1; }
  size_t post(EndpointId endpoint, int lane, std::span<const Slice> slices, Reports& out) override;
  bool cancel(EndpointId, int, uint64_t) override { return true; }  // post() copies, so no slice is in flight
  Code notify(EndpointId endpoint, std::span<const std::byte> bytes, Reports& out) override;
  void publish(Reports& out) override;
  void close(EndpointId endpoint, Code code, std::string_view why, Reports& out) override;
  void shutdown() override;
  void ready(uint64_t token, uint32_t events, Reports& out) override;
  TimePoint tick(TimePoint at, Reports& out) override;
  void pause_notifies(bool pause) override;

 private:
  void accepted(Fd fd);
  ShmEndpoint* add(Fd fd, Handshake handshake, bool ours, TimePoint deadline);
  ShmFailure receive(ShmEndpoint& endpoint, Reports& out);
  ShmFailure take(ShmEndpoint& endpoint, const ShmMessage& message, Reports& out);
  ShmFailure take_handshake(ShmEndpoint& endpoint, const ShmMessage& message);
  ShmFailure take_descriptor(ShmEndpoint& endpoint, std::span<const std::byte> payload, Reports& out);
  ShmFailure send_arenas(ShmEndpoint& endpoint);
  ShmFailure flush(ShmEndpoint& endpoint);
  bool tell(ShmEndpoint& endpoint, uint32_t immediate, ShmFailure& failure);
  void arm(ShmEndpoint& endpoint);
  void lose(ShmEndpoint& endpoint, const ShmFailure& failure, Reports& out);
  ShmEndpoint* find(EndpointId id);

  Services& services_;
  uint8_t index_;
  Listener listener_;
  std::string path_;  // path to unlink
  std::map<EndpointId, std::unique_ptr<ShmEndpoint>> endpoints_;
  std::unordered_map<uint64_t, ShmEndpoint*> by_token_;  // for look-ups only
  size_t handshakes_ = 0;
  std::vector<std::byte> inbox_ = std::vector<std::byte>(ShmSocket::kMessageMax);
};

}  // namespace mc::xfer

// The shm transport (internal): peers of one host map each other's memfd arenas, so a read is one
// memcpy (or none: Engine::map) and a write is a memcpy into a landing arena.
//   transport.cc  listening, dialling, loss, timers
//   lane.cc       messages, passing of arenas, copying
//
// Arenas travel over an AF_UNIX socket of type SEQPACKET, one frame a message, which also carries
// notifies, and whose end is the death of the peer:
//   handshake; then each side sends   share (buffer, length, fd) ...   describe
// An endpoint is up when the peer's first `describe` is here, so a descriptor never names an arena that
// is not mapped yet. Later registrations repeat share and describe.
//
// Nothing is sent, and nothing of what arrives is read, before the kernel has said who is at the other end
// (SO_PEERCRED). A process of our effective user, or of root, which could read our memory anyway, belongs to us. One of
// another user has to prove the cluster's secret before it gets a descriptor or an arena; without a secret it is
// refused. Where shm_path names the socket, its folder keeps other users from reaching it at all.
//
// The kernel enforces the access classes: an arena that is only read is sealed against new writable
// mappings (lib/mem), and no arena can shrink under a reader.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "mem/mem.h"
#include "xfer/handshake.h"
#include "xfer/transport.h"

namespace mc::xfer {

struct ShmEndpoint {
  ShmEndpoint(Fd socket, Handshake shake) : fd(std::move(socket)), handshake(std::move(shake)) {}
  EndpointId id = EndpointId::none;
  Fd fd;
  Handshake handshake;
  uint64_t token = 0;
  uint32_t armed = 0;
  bool accepted = false;
  bool ours = false;  // a process of our user, or of root
  bool up = false;
  InstanceId wanted{};
  TimePoint deadline = kNever;
  std::deque<OutFrame> queue;  // notifies and descriptors that the socket did not take yet
  std::set<uint32_t> shared;   // own buffers whose descriptor the peer has
  bool publish_again = false;  // the queue was full when the descriptor changed
  bool full = false;           // the socket did not take an immediate: its slice waits
  std::map<uint32_t, std::shared_ptr<mem::SharedBuffer>> arenas;  // the peer's; shared with Views
  std::vector<MappedBuffer> fresh;                                // of those, what the engine has not heard of yet
};

class ShmTransport final : public Transport {
 public:
  ShmTransport(Home& home, uint8_t index) : home_(home), index_(index), inbox_(kMessageMax) {}
  ~ShmTransport() override { shutdown(); }

  Result<std::string> listen() override;
  EndpointId connect(const Dial& dial, Reports& out) override;
  int lanes(EndpointId) const override { return 1; }
  size_t post(EndpointId endpoint, int lane, std::span<const Slice> slices, Reports& out) override;
  bool cancel(EndpointId, int, uint64_t) override { return true; }  // post() copies and is done
  Code notify(EndpointId endpoint, std::span<const std::byte> bytes, Reports& out) override;
  void publish(Reports& out) override;
  void close(EndpointId endpoint, Code code, std::string_view why, Reports& out) override;
  void shutdown() override;
  void ready(uint64_t token, uint32_t events, Reports& out) override;
  TimePoint tick(TimePoint at, Reports& out) override;
  void pause_notifies(bool pause) override;

 private:
  struct Failure {
    Code code = Code::ok;
    const char* reason = "";  // static, for the counter
    std::string text;
    bool gone = false;
  };
  void accept_some();
  ShmEndpoint* add(Fd fd, Handshake handshake, uint32_t events);
  Failure receive(ShmEndpoint& endpoint, Reports& out);
  Failure take(ShmEndpoint& endpoint, const wire::FrameHeader& header, std::span<const std::byte> payload, Fd fd,
               Reports& out);
  Failure take_share(ShmEndpoint& endpoint, const wire::FrameHeader& header, Fd fd);
  Failure take_descriptor(ShmEndpoint& endpoint, std::span<const std::byte> payload, Reports& out);
  Failure send_arenas(ShmEndpoint& endpoint);
  /// False when the socket is full (nothing sent); sets `failure` when it is broken.
  bool send(ShmEndpoint& endpoint, const OutFrame& frame, int fd, Failure& failure);
  Failure flush(ShmEndpoint& endpoint);
  SliceDone copy(ShmEndpoint& endpoint, const Slice& slice);
  bool tell(ShmEndpoint& endpoint, uint32_t immediate, Failure& failure);
  void arm(ShmEndpoint& endpoint);
  void lose(ShmEndpoint& endpoint, const Failure& failure, Reports& out);
  ShmEndpoint* find(EndpointId id);

  static constexpr size_t kMessageMax = wire::kFrameHeaderBytes + wire::kFrameControlMax;

  Home& home_;
  uint8_t index_;
  Fd listener_;
  uint64_t listener_token_ = 0;
  TimePoint accept_again_ = kNever;  // out of descriptors: the listener is not watched until then
  std::string path_;                 // to unlink
  std::map<EndpointId, std::unique_ptr<ShmEndpoint>> endpoints_;
  std::unordered_map<uint64_t, ShmEndpoint*> by_token_;  // looked up only
  size_t handshakes_ = 0;
  std::vector<std::byte> inbox_;
};

}  // namespace mc::xfer

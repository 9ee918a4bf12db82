// The tcp transport (internal): endpoints of one control lane and S data lanes, each a FrameStream.
//   transport.cc  TcpTransport: listening, dialling, lanes into connections, loss, timers
//   transport.cc  TcpTransport: listening, dialling, joining lanes to connections, loss, timers
//   lane.cc       TcpLane: one socket and the handling of its frames
//   service.cc    TcpService: reads and writes of the peer
//   io.cc, ring.cc  the system calls that move the bytes
//
// Lane 0 carries handshake, notifies, descriptors and goodbye, so that they never queue behind bulk bytes. Lanes 1..S
// carry transfers of both directions. An answer comes back on the lane of its request. A peer has at most
// TcpRequests::kPendingMax requests outstanding on a lane. A peer that exceeds TcpService::kServedMax breaks the
// protocol, and its connection is closed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "xfer/listener.h"
#include "xfer/transport.h"
#include "xfer_tcp/io.h"
#include "xfer_tcp/lane.h"

namespace mc::xfer {

struct TcpEndpoint {
  EndpointId id = EndpointId::none;
  bool accepted = false;
  bool up = false;
  InstanceId peer{};
  bool proven = true;       // every lane that has arrived has proven itself
  bool established = true;  // the identity of the peer is established on every lane that has arrived
  Id128 connection{};
  uint32_t told_version = 0;                     // version of the descriptor sent in the handshake
  std::vector<TcpLane*> lanes;                   // index: lane; null until that lane has arrived
  std::shared_ptr<const Descriptor> descriptor;  // immutable; shared with the engine
  std::string name;

  /// The peer's instance when it is established, else zero.
  InstanceId identity() const { return established ? peer : InstanceId{}; }
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(Services& services, uint8_t index)
      : services_(services),
        index_(index),
        io_(choose_tcp_io(services.options->tcp_io, *services.tally)),
        listener_(services, index) {}
  ~TcpTransport() override { shutdown(); }

  Result<std::string> listen() override;
  EndpointId connect(const Dial& dial, Reports& out) override;
  int lanes(EndpointId endpoint) const override;
  size_t post(EndpointId endpoint, int lane, std::span<const Slice> slices, Reports& out) override;
  bool cancel(EndpointId endpoint, int lane, uint64_t slice) override;
  Code notify(EndpointId endpoint, std::span<const std::byte> bytes, Reports& out) override;
  void publish(Reports& out) override;
  void close(EndpointId endpoint, Code code, std::string_view why, Reports& out) override;
  void shutdown() override;
  void ready(uint64_t token, uint32_t events, Reports& out) override;
  TimePoint tick(TimePoint now, Reports& out) override;
  void pause_notifies(bool pause) override;
  std::string remark() const override { return io_.text; }

  StreamIo& io() { return *io_.io; }
  Services& services() { return services_; }
  uint8_t index() const { return index_; }
  /// A lane has finished its handshake. Returns the code of a refusal, else ok.
  Code joined(TcpLane& lane, const char*& why);

 private:
  static constexpr size_t kHandshakesMax = 256;
  static constexpr size_t kControlQueueMax = 1024;    // limit of frames that wait on lane 0
  static constexpr size_t kBudget = size_t{1} << 20;  // bytes that a lane may move in one turn

  void accepted(Fd fd);
  TcpLane* add_lane(Fd fd, Handshake handshake, TimePoint deadline);
  TcpEndpoint* endpoint_of(const wire::XferHello& hello, Reports& out, const char*& why);
  void arm(TcpLane& lane);
  bool paused(const TcpLane& lane) const;  // frames wait until the owner of this process takes events again
  void due(TimePoint at) { due_ = std::min(due_, at); }
  void on_lane(TcpLane& lane, uint32_t events, Reports& out);
  void broken(TcpLane& lane, Reports& out);
  void lose(TcpEndpoint& endpoint, const Loss& why, Reports& out);
  void drop_lane(TcpLane* lane);
  bool take_over(const wire::XferHello& hello, Reports& out);
  void check_up(TcpEndpoint& endpoint, Reports& out);
  TcpEndpoint* find(EndpointId id) const;

  Services& services_;
  uint8_t index_;
  TcpIoChoice io_;  // before the lanes, which use it
  Listener listener_;
  std::unordered_map<uint64_t, std::unique_ptr<TcpLane>> lanes_;  // by token; used for look-ups and timers only
  std::map<EndpointId, std::unique_ptr<TcpEndpoint>> endpoints_;
  std::vector<std::unique_ptr<TcpLane>> dropped_;  // closed lanes, freed when no caller can use them
  size_t handshakes_ = 0;
  TimePoint due_ = kNever;  // no timer of a lane is earlier, which saves a walk over the lanes in every round
};

}  // namespace mc::xfer

// The rdma transport (internal): its connections, from dial or accept to their end. An endpoint is one authenticated
// socket to a peer and several paths. The end of the socket means that the peer is lost. The end of a path does not.
//
//   RdmaTransport  sockets, loss, time-outs; the table's entry
//    RdmaWatch     events of the devices: ports, addresses, devices that fail and come back
//     RdmaFrames   handling of frames: handshake, ports, keys, descriptors
//      RdmaResting connections without queue pairs, because there are too many
//      RdmaPoster  slices onto lanes
//      RdmaSmall   the short way of one small slice
//       RdmaPaths  paths: planned, begun, answered, verified, served, failed, drained
//        RdmaParts state that all of them share; RdmaEndpoint, RdmaRail, RdmaAttempt, RdmaMessages
//
// Each class uses the classes below it and none above. Decisions without a device are in path, gid, choices, plan,
// pool, hold, speed, notify, keyring and topology. Verbs objects are in attempt, lane, probe, mailbox, memory and
// device. Threads are in connector, reaper and revival.
//
// The dialler plans the paths and begins every attempt. The listener answers. Slices that a path cannot finish return
// to the engine when its queue pairs have released their memory, and are posted elsewhere.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "xfer/listener.h"
#include "xfer_rdma/poster.h"
#include "xfer_rdma/small.h"
#include "xfer_rdma/watch.h"

namespace mc::xfer {

class RdmaTransport final : public Transport {
 public:
  RdmaTransport(Services& services, uint8_t index)
      : parts_(services, index),
        listener_(services, index),
        paths_(parts_),
        poster_(parts_, paths_),
        small_(parts_, paths_),
        resting_(parts_, paths_),
        frames_(parts_, paths_, resting_),
        watch_(parts_, paths_, frames_) {}
  ~RdmaTransport() override { shutdown(); }

  Result<std::string> listen() override;
  EndpointId connect(const Dial& dial, Reports& out) override;
  int lanes(EndpointId endpoint) const override;
  size_t post(EndpointId endpoint, int lane, std::span<const Slice> slices, Reports& out) override;
  bool post_alone(EndpointId endpoint, int lane, const Slice& slice, Reports& out) override;
  bool end_alone(uint64_t slice, uint32_t& crc32c, TimePoint& next, Reports& out) override;
  void keep_alone() override { small_.keep(); }
  uint64_t slice_bytes(EndpointId endpoint, int lane) const override;
  size_t immediates_ahead(EndpointId endpoint, int lane) const override;
  bool cancel(EndpointId endpoint, int lane, uint64_t slice) override;
  Code notify(EndpointId endpoint, std::span<const std::byte> bytes, Reports& out) override;
  void publish(Reports& out) override;
  void close(EndpointId endpoint, Code code, std::string_view why, Reports& out) override;
  void shutdown() override;
  void ready(uint64_t token, uint32_t events, Reports& out) override;
  TimePoint tick(TimePoint now, Reports& out) override;
  TimePoint look(Reports& out) override;
  void doze(Reports& out) override;
  void pause_notifies(bool pause) override;
  Result<void> attach(BufferId buffer, std::span<std::byte> memory, AccessClass access) override;
  void detach(BufferId buffer) override;

 private:
  static constexpr size_t kStrangersMax = 256;        // limit of sockets that have not proven themselves
  static constexpr size_t kBudget = size_t{1} << 20;  // bytes of a socket in one turn

  RdmaEndpoint* add(Fd fd, Handshake handshake, TimePoint deadline);
  void accepted(Fd fd);
  void on_socket(RdmaEndpoint& endpoint, uint32_t events, Reports& out);
  void broken(RdmaEndpoint& endpoint);
  void arm(RdmaEndpoint& endpoint);
  void poll(bool arm, TimePoint at, Reports& out);
  void check_clocks(RdmaEndpoint& endpoint, TimePoint at);
  /// Sends queued frames and removes doomed endpoints. Every entry point of the transport ends with it.
  void sweep(Reports& out);
  static EndpointEvent lost(EndpointId id, const Loss& why);
  void lose(RdmaEndpoint& endpoint, Reports& out);
  void part(EndpointId id, TimePoint at, Reports& out);

  RdmaParts parts_;  // before the classes that share it
  Listener listener_;
  RdmaPaths paths_;
  RdmaPoster poster_;
  RdmaSmall small_;
  RdmaResting resting_;
  RdmaFrames frames_;
  RdmaWatch watch_;
  uint64_t connector_token_ = 0;
  std::map<uint64_t, RdmaEndpoint*> by_token_;
  struct Parting {
    TimePoint at{};
    EndpointEvent event;
  };
  std::vector<Parting> partings_;  // delayed `lost` reports, whose WRITEs may still be under way; see RdmaHold
  std::vector<std::unique_ptr<RdmaEndpoint>> dropped_;  // closed endpoints, freed when no caller can use them
};

}  // namespace mc::xfer

// Events of the devices of the rdma transport (internal): completions, ports that go and come, addresses that change,
// devices that fail and are opened again. Paths follow: they end at once when nothing can be sent on them any more, and
// are begun again, with the addresses there are by then. Not thread-safe: it belongs to the thread that has the loop's
// turn.
#pragma once

#include <map>
#include <string>

#include "xfer_rdma/frames.h"
#include "xfer_rdma/revival.h"

namespace mc::xfer {

class RdmaWatch {
 public:
  RdmaWatch(RdmaParts& parts, RdmaPaths& paths, RdmaFrames& frames);

  /// Watches every device of the hardware.
  Result<void> open();
  /// True: the descriptor was a device's, and what it had is handled.
  bool ready(uint64_t token, uint32_t events, Reports& out);
  /// Injects the fault that Options::faults asks for.
  void tick(TimePoint at, Reports& out);
  void close();

 private:
  Result<void> add(RdmaDevice& device);
  void drop_channel(const RdmaDevice& device);
  void on_device_events(RdmaDevice& device, Reports& out);
  void on_port_event(RdmaDevice& device, int port, Reports& out);
  void lose(RdmaDevice& device, const std::string& why, Reports& out);
  void returned(const RdmaRevival::Back& back);

  RdmaParts& parts_;
  RdmaPaths& paths_;
  RdmaFrames& frames_;
  std::map<uint64_t, RdmaDevice*> channels_;  // of completions, by poller token
  std::map<uint64_t, RdmaDevice*> async_;     // of other events
  RdmaRevival revival_;
  uint64_t revival_token_ = 0;
  TimePoint lose_nic_at_ = kNever;
};

}  // namespace mc::xfer

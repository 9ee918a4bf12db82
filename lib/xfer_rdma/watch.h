// Events of the devices of the rdma transport (internal): completions, ports that go down and come up, addresses that
// change, devices that fail and are opened again. Paths end at once when nothing can be sent on them any more. They are
// begun again with the addresses of that time. Not thread-safe: only the thread that has the loop's turn calls this
// class.
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
  /// True: the descriptor belongs to a device, and its events are handled.
  bool ready(uint64_t token, uint32_t events, Reports& out);
  /// Injects the fault of Options::faults.
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
  std::map<uint64_t, RdmaDevice*> channels_;  // completion channels by poller token
  std::map<uint64_t, RdmaDevice*> async_;     // channels of other events
  RdmaRevival revival_;
  uint64_t revival_token_ = 0;
  TimePoint lose_nic_at_ = kNever;
};

}  // namespace mc::xfer

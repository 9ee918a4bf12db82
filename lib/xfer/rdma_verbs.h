// Verbs objects as owned types (internal): a device that is open, its ports, registered memory. The
// only headers with verbs types are this one and those that include it.
#pragma once

#include <infiniband/verbs.h>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "xfer/rdma_device.h"
#include "xfer/rdma_gpu.h"
#include "xfer/rdma_plan.h"
#include "xfer/xfer.h"

namespace mc::xfer {

struct VerbsFree {
  void operator()(ibv_context* object) const;
  void operator()(ibv_pd* object) const;
  void operator()(ibv_comp_channel* object) const;
  void operator()(ibv_mr* object) const;
  void operator()(ibv_cq* object) const;
  void operator()(ibv_qp* object) const;
};
template <class T>
using Verbs = std::unique_ptr<T, VerbsFree>;

/// One device, open: its protection domain and the channel that tells of completions. Both
/// descriptors of it are non-blocking.
class RdmaDevice {
 public:
  static Result<std::unique_ptr<RdmaDevice>> open(ibv_device* device);

  ibv_context* context() const { return context_.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  ibv_comp_channel* channel() const { return channel_.get(); }
  const std::string& name() const { return name_; }
  const ibv_device_attr& limits() const { return limits_; }
  /// Does its driver know dma-bufs at all?
  bool takes_dmabuf() const;
  bool failed = false;  // a fatal event came: not used any more

 private:
  std::string name_;
  Verbs<ibv_context> context_;
  Verbs<ibv_pd> domain_;
  Verbs<ibv_comp_channel> channel_;
  ibv_device_attr limits_{};
};

/// A port of an open device, as last looked at.
struct RdmaPort {
  RdmaDevice* device = nullptr;
  uint8_t number = 1;
  bool active = false;
  bool ethernet = true;
  uint16_t lid = 0;
  uint16_t mtu = 0;            // bytes
  std::vector<GidEntry> gids;  // usable, best first
  std::string name() const { return device->name() + ":" + std::to_string(number); }
  /// Asks the device again.
  void refresh(int only_gid);
  wire::RdmaNic describe() const;
  const GidEntry* find(const wire::Gid& gid) const;
};

/// Devices named by Options::rdma_devices (empty: all), open, and their ports that could be used.
struct RdmaHardware {
  std::vector<std::unique_ptr<RdmaDevice>> devices;
  std::vector<RdmaPort> ports;  // at most wire::kRdmaNicsMax
};
Result<RdmaHardware> open_hardware(const Options& options);

/// The registered memory of one engine on all of its devices. Thread-safe: buffers are registered on
/// their callers' threads, looked up on the engine's. Must go before the devices, after the lanes.
class RdmaMemory {
 public:
  /// Once, before the first add().
  void set_gpu_path(GpuPath path) { gpu_path_ = path; }
  /// Registers with the least access its class needs: in chunks, in parallel. Blocks for as long as
  /// pinning takes.
  Result<void> add(std::span<const std::unique_ptr<RdmaDevice>> devices, uint32_t buffer, std::span<std::byte> memory,
                   AccessClass access);
  /// Peers' accesses fail from now on. No lane may use it any more.
  void remove(uint32_t buffer);
  /// The registration on that device that holds the range. Code::invalid: none.
  Code local(size_t device, std::span<const std::byte> memory, KeyRange& out);
  /// What a peer needs to reach the buffer; `devices` = the device of each nic told to it. False: not
  /// registered (any more).
  bool keys(uint32_t buffer, std::span<const size_t> devices, wire::RdmaKeys& out);

 private:
  struct Entry {
    uint32_t buffer = 0;
    std::span<std::byte> memory;
    uint64_t chunk_bytes = 0;
    std::vector<Verbs<ibv_mr>> regions;        // device-major
    std::vector<std::vector<uint32_t>> lkeys;  // by device
  };
  GpuPath gpu_path_ = GpuPath::none;
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Entry>> entries_;  // by first address; shared: freed outside the lock
};

ibv_mtu to_verbs_mtu(uint16_t bytes);
uint16_t from_verbs_mtu(ibv_mtu mtu);

}  // namespace mc::xfer

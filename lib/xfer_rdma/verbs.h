// Verbs objects as owned types (internal): a device that is open, its ports, registered memory. The
// only headers with verbs types are this one and those that include it.
#pragma once

#include <infiniband/verbs.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "xfer/xfer.h"
#include "xfer_rdma/device.h"
#include "xfer_rdma/gpu.h"
#include "xfer_rdma/plan.h"
#include "xfer_rdma/topology.h"

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
  /// Of that name, now. Code::not_found: there is none.
  static Result<std::unique_ptr<RdmaDevice>> open(const std::string& name);

  ibv_context* context() const { return context_.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  ibv_comp_channel* channel() const { return channel_.get(); }
  const std::string& name() const { return name_; }
  const ibv_device_attr& limits() const { return limits_; }
  /// Does its driver know dma-bufs at all?
  bool takes_dmabuf() const;
  bool failed = false;  // a fatal event came: not used any more, another object takes its place (revival.h)

 private:
  std::string name_;
  Verbs<ibv_context> context_;
  Verbs<ibv_pd> domain_;
  Verbs<ibv_comp_channel> channel_;
  ibv_device_attr limits_{};
};

/// A port of an open device, as last looked at.
struct RdmaPort {
  std::shared_ptr<RdmaDevice> device;  // shared: a failed one lives until its last queue pair is destroyed
  uint8_t number = 1;
  bool active = false;
  bool ethernet = true;
  uint16_t lid = 0;
  uint16_t mtu = 0;            // bytes
  std::vector<GidEntry> gids;  // usable, best first
  DevicePlace place;
  std::string name() const { return device->name() + ":" + std::to_string(number); }
  /// Asks the device again.
  void refresh(int only_gid);
  wire::RdmaNic describe() const;
  const GidEntry* find(const wire::Gid& gid) const;
};

/// Devices named by Options::rdma_devices (empty: all), open, and their ports that could be used.
struct RdmaHardware {
  std::vector<std::shared_ptr<RdmaDevice>> devices;  // shared with ports, paths and registrations
  std::vector<RdmaPort> ports;                       // at most wire::kRdmaNicsMax
};
Result<RdmaHardware> open_hardware(const Options& options);

/// The registered memory of one engine on all of its devices. Thread-safe: buffers are registered on
/// their callers' threads, looked up on the engine's. Must go after the lanes. A device may be lost and come
/// back, as another object, under the same index: what was registered is registered again.
class RdmaMemory {
 public:
  /// Once, before the first add().
  void use(std::span<const std::shared_ptr<RdmaDevice>> devices) { devices_.assign(devices.begin(), devices.end()); }
  /// Once, before the first add().
  void set_gpu_path(GpuPath path) { gpu_path_ = path; }
  /// Registers with the least access its class needs: in chunks, in parallel. Blocks for as long as
  /// pinning takes.
  Result<void> add(uint32_t buffer, std::span<std::byte> memory, AccessClass access);
  /// Peers' accesses fail from now on. No lane may use it any more.
  void remove(uint32_t buffer);
  /// The device has failed: nothing is registered on it any more. May block as long as registering.
  void lose(size_t device);
  /// Puts another object in the place of a lost device, with everything registered on it. Blocks like add().
  Result<void> restore(size_t device, const std::shared_ptr<RdmaDevice>& again);
  /// The registration on that device that holds the range. Code::invalid: none.
  Code local(size_t device, std::span<const std::byte> memory, KeyRange& out);
  /// Where the buffer that holds that memory is, as its first page.
  MemoryPlace place(std::span<const std::byte> memory);
  /// The keys with which a peer reaches the buffer; `devices` = the device of each nic told to it, with keys of 0 for
  /// one that is lost. False: not registered (any more).
  bool keys(uint32_t buffer, std::span<const size_t> devices, wire::RdmaKeys& out);

 private:
  using Devices = std::vector<std::shared_ptr<RdmaDevice>>;  // shared as in RdmaHardware
  struct Registration {
    std::shared_ptr<RdmaDevice> device;  // shared: goes after its regions. Null: lost
    std::vector<Verbs<ibv_mr>> regions;  // by chunk
    std::vector<uint32_t> lkeys;
  };
  struct Entry {
    uint32_t buffer = 0;
    std::span<std::byte> memory;
    AccessClass access{};
    GpuPath gpu = GpuPath::none;
    MemoryPlace place;
    uint64_t chunk_bytes = 0;
    std::vector<Registration> on;  // by device
    bool restoring = false;        // its memory is being registered: remove() waits
    size_t chunks() const { return (memory.size() + chunk_bytes - 1) / chunk_bytes; }
  };
  static Result<void> enroll(const Entry& entry, const Devices& devices, std::vector<Registration>& out);
  std::shared_ptr<Entry> next_to_restore(size_t device, const std::shared_ptr<RdmaDevice>& again);

  GpuPath gpu_path_ = GpuPath::none;
  std::mutex mutex_;
  std::condition_variable restored_;
  Devices devices_;                                     // null: lost
  std::map<uint64_t, std::shared_ptr<Entry>> entries_;  // by first address; shared: freed outside the lock
};

ibv_mtu to_verbs_mtu(uint16_t bytes);
uint16_t from_verbs_mtu(ibv_mtu mtu);

}  // namespace mc::xfer

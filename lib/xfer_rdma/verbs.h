// Owning types for verbs objects (internal): an open device, its ports, registered memory. Only this header and those
// that include it have verbs types.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
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

/// One open device: its protection domain and its completion channel. Both of its descriptors are non-blocking.
class RdmaDevice {
 public:
  static Result<std::unique_ptr<RdmaDevice>> open(ibv_device* device);
  /// Opens the device of that name. Code::not_found: there is none.
  static Result<std::unique_ptr<RdmaDevice>> open(const std::string& name);

  ibv_context* context() const { return context_.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  ibv_comp_channel* channel() const { return channel_.get(); }
  const std::string& name() const { return name_; }
  const ibv_device_attr& limits() const { return limits_; }
  /// Whether its driver supports dma-bufs at all.
  bool takes_dmabuf() const;
  bool failed = false;  // a fatal event came: the object is not used any more, and another one replaces it (revival.h)

 private:
  std::string name_;
  Verbs<ibv_context> context_;
  Verbs<ibv_pd> domain_;
  Verbs<ibv_comp_channel> channel_;
  ibv_device_attr limits_{};
};

/// A port of an open device, in the state of the last query.
struct RdmaPort {
  std::shared_ptr<RdmaDevice> device;  // shared: a failed device lives until its last queue pair is destroyed
  uint8_t number = 1;
  bool active = false;
  bool ethernet = true;
  uint16_t lid = 0;
  uint16_t mtu = 0;
  std::vector<GidEntry> gids;  // usable, best first
  DevicePlace place;
  std::string name() const { return device->name() + ":" + std::to_string(number); }
  /// Queries the device again.
  void refresh(int only_gid);
  wire::RdmaNic describe() const;
  const GidEntry* find(const wire::Gid& gid) const;
};

/// The open devices that Options::rdma_devices names (empty: all), and their usable ports.
struct RdmaHardware {
  std::vector<std::shared_ptr<RdmaDevice>> devices;  // shared with ports, paths and registrations
  std::vector<RdmaPort> ports;                       // at most wire::kRdmaNicsMax
};
Result<RdmaHardware> open_hardware(const Options& options);

/// The registered memory of one engine on all of its devices. Thread-safe: callers register buffers on their threads,
/// and the engine looks them up on its own. It must outlive the lanes. A device may be lost and come back as another
/// object under its index. The buffers are then registered again.
class RdmaMemory {
 public:
  /// Called once, before the first add().
  void use(std::span<const std::shared_ptr<RdmaDevice>> devices) { devices_.assign(devices.begin(), devices.end()); }
  /// Called once, before the first add().
  void set_gpu_path(GpuPath path) { gpu_path_ = path; }
  /// Registers the memory with the least access that its class needs: in chunks, in parallel. Blocks while the memory
  /// is being pinned.
  Result<void> add(uint32_t buffer, std::span<std::byte> memory, AccessClass access);
  /// Accesses of peers fail from now on. No lane may use the buffer any more.
  void remove(uint32_t buffer);
  /// The device has failed: its registrations are dropped. May block as long as registering.
  void lose(size_t device);
  /// Replaces a lost device by another object and registers all buffers on it. Blocks like add().
  Result<void> restore(size_t device, const std::shared_ptr<RdmaDevice>& again);
  /// The registration on that device that contains the range. Code::invalid: none.
  Code local(size_t device, std::span<const std::byte> memory, KeyRange& out);
  /// A registration that was found before. One thread uses it.
  struct Known {
    uint64_t version = 0;
    size_t device = 0;
    KeyRange keys;
  };
  /// The same, without lock and search while `known` contains the range and no registration has changed. Otherwise
  /// `known` becomes what is found.
  Code local(size_t device, std::span<const std::byte> memory, Known& known) {
    const uint64_t offset = reinterpret_cast<uint64_t>(memory.data()) - known.keys.base;
    // acquire: pairs with the changes. The keys are those of this moment, as if the mutex had been held.
    if (known.version == version_.load(std::memory_order_acquire) && known.device == device &&
        memory.size() <= known.keys.length && offset <= known.keys.length - memory.size())
      return Code::ok;
    return find(device, memory, known);
  }
  /// The place of the buffer that contains that memory, by its first page.
  MemoryPlace place(std::span<const std::byte> memory);
  /// The keys by which a peer reaches the buffer. `devices` = the device of each port sent to the peer; a lost device
  /// gives keys of 0. False: the buffer is not registered.
  bool keys(uint32_t buffer, std::span<const size_t> devices, wire::RdmaKeys& out);

 private:
  using Devices = std::vector<std::shared_ptr<RdmaDevice>>;  // shared as in RdmaHardware
  struct Registration {
    std::shared_ptr<RdmaDevice> device;  // shared: destroyed after its regions; null: lost
    std::vector<Verbs<ibv_mr>> regions;  // index: chunk
    std::vector<uint32_t> lkeys;
  };
  struct Entry {
    uint32_t buffer = 0;
    std::span<std::byte> memory;
    AccessClass access{};
    GpuPath gpu = GpuPath::none;
    MemoryPlace place;
    uint64_t chunk_bytes = 0;
    std::vector<Registration> on;  // index: device
    bool restoring = false;        // its memory is being registered, so remove() waits
    size_t chunks() const { return (memory.size() + chunk_bytes - 1) / chunk_bytes; }
  };
  static Result<void> enroll(const Entry& entry, const Devices& devices, std::vector<Registration>& out);
  std::shared_ptr<Entry> next_to_restore(size_t device, const std::shared_ptr<RdmaDevice>& again);

  Code find(size_t device, std::span<const std::byte> memory, Known& known);
  Code local_locked(size_t device, std::span<const std::byte> memory, KeyRange& out) const;

  GpuPath gpu_path_ = GpuPath::none;
  // Number of changes of the registrations, plus one. Changed under the mutex, before the registrations.
  std::atomic<uint64_t> version_{1};
  std::mutex mutex_;
  std::condition_variable restored_;
  Devices devices_;                                     // null: lost
  std::map<uint64_t, std::shared_ptr<Entry>> entries_;  // key: first address; shared: freed outside the lock
};

ibv_mtu to_verbs_mtu(uint16_t bytes);
uint16_t from_verbs_mtu(ibv_mtu mtu);

}  // namespace mc::xfer

// The distance of a NIC from the memory of a slice, and its effect on the choice of a path. A distance that sysfs does
// not give (soft devices, virtual machines) counts as near: -1 and "" are unknown.
//
//   host memory   1 on the NIC's NUMA node, 3 on another
//   GPU memory    1 under the same PCIe switch, 3 on the NIC's NUMA node, 10 beyond
//
// Slices bind late, so a penalty is not a share: a far path takes a slice when the nearer paths are full, or when their
// work would take that many times longer. Only these functions are proven, because no test machine has two NUMA nodes
// with a NIC each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace mc::xfer {

struct DevicePlace {
  int numa_node = -1;
  std::string pci;  // folder below /sys/devices; empty for software devices
  bool operator==(const DevicePlace&) const = default;
};

struct MemoryPlace {
  int numa_node = -1;
  std::string gpu_pci;  // PCI address of the GPU that owns the memory; empty for host memory
};

/// The place of an RDMA device ("mlx5_0"). `sysfs` differs from /sys in tests only.
DevicePlace place_of_rdma_device(const std::string& name, const std::string& sysfs = "/sys");
/// The place of a PCI device by its address ("0000:3b:00.0").
DevicePlace place_of_pci_device(const std::string& address, const std::string& sysfs = "/sys");
/// The place of the page at that address. Asks the kernel or the CUDA driver.
MemoryPlace place_of_memory(const void* address);

/// Number of different components of two PCI paths: 0 = one device, 2 = siblings under one bridge.
size_t pci_distance(const std::string& a, const std::string& b);
unsigned penalty(const DevicePlace& nic, const MemoryPlace& memory);

/// A path as the choice for a slice sees it.
struct PathLoad {
  uint64_t bytes = 0;      // in flight
  double bytes_per_s = 0;  // 0 = unknown
  unsigned penalty = 1;
  bool open = true;  // up and with room
};
/// Whether `mine` should leave a slice of `bytes` to a nearer path.
bool leaves_to_nearer(const PathLoad& mine, std::span<const PathLoad> others, uint64_t bytes);

}  // namespace mc::xfer

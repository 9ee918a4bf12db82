// How far a NIC is from the memory that a slice lies in, and what that means for the choice of a path (RDMA
// notes, A8). What sysfs does not say (soft devices, virtual machines) counts as near: -1 and "" are unknown.
//
//   host memory   1 on the NIC's NUMA node, 3 on another
//   GPU memory    1 under the same PCIe switch, 3 on the NIC's NUMA node, 10 beyond
//
// Slices bind late, so a penalty is not a share: a far path takes a slice when the nearer ones are full, or when
// what they hold would take that many times longer. Proven at the level of these functions only: no machine of
// ours has two NUMA nodes with a NIC each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace mc::xfer {

struct DevicePlace {
  int numa_node = -1;
  std::string pci;  // its folder below /sys/devices; empty for software devices
  bool operator==(const DevicePlace&) const = default;
};

struct MemoryPlace {
  int numa_node = -1;
  std::string gpu_pci;  // of the GPU whose memory it is; empty for host memory
};

/// The place of an RDMA device ("mlx5_0"); `sysfs` is /sys but in tests.
DevicePlace place_of_rdma_device(const std::string& name, const std::string& sysfs = "/sys");
/// The place of a PCI device by its address ("0000:3b:00.0").
DevicePlace place_of_pci_device(const std::string& address, const std::string& sysfs = "/sys");
/// Where the page of that address is; asks the kernel, or the CUDA driver.
MemoryPlace place_of_memory(const void* address);

/// Differing components of two PCI paths: 0 = the same device, 2 = siblings under one bridge.
size_t pci_distance(const std::string& a, const std::string& b);
unsigned penalty(const DevicePlace& nic, const MemoryPlace& memory);

/// A path, as a slice that looks for one sees it.
struct PathLoad {
  uint64_t bytes = 0;      // in flight
  double bytes_per_s = 0;  // 0 = not known
  unsigned penalty = 1;
  bool open = true;  // up, with room
};
/// Should `mine` leave a slice of `bytes` to one of the others, which is nearer?
bool leaves_to_nearer(const PathLoad& mine, std::span<const PathLoad> others, uint64_t bytes);

}  // namespace mc::xfer

#include "xfer_rdma/topology.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "xfer_rdma/gpu.h"

namespace mc::xfer {
namespace {

DevicePlace place_at(const std::string& folder) {
  DevicePlace place;
  std::error_code error;
  const auto target = std::filesystem::canonical(folder, error);  // soft devices have none
  if (error) return place;
  place.pci = target.string();
  std::ifstream file(target / "numa_node");
  if (!(file >> place.numa_node)) place.numa_node = -1;
  return place;
}

double finish_s(const PathLoad& path, uint64_t bytes, double bytes_per_s) {
  return static_cast<double>(path.bytes + bytes) / bytes_per_s * path.penalty;
}

}  // namespace

DevicePlace place_of_rdma_device(const std::string& name, const std::string& sysfs) {
  return place_at(sysfs + "/class/infiniband/" + name + "/device");
}

DevicePlace place_of_pci_device(const std::string& address, const std::string& sysfs) {
  return place_at(sysfs + "/bus/pci/devices/" + address);
}

MemoryPlace place_of_memory(const void* address) {
  MemoryPlace place;
  if (const std::string gpu = gpu_pci_address(address); !gpu.empty()) {
    const DevicePlace device = place_of_pci_device(gpu);
    return {device.numa_node, device.pci};
  }
  constexpr unsigned long kNodeOfAddress = 3;  // MPOL_F_NODE | MPOL_F_ADDR of numaif.h
  int node = -1;
  if (::syscall(SYS_get_mempolicy, &node, nullptr, 0ul, address, kNodeOfAddress) == 0) place.numa_node = node;
  return place;
}

size_t pci_distance(const std::string& a, const std::string& b) {
  const std::filesystem::path left(a), right(b);
  const auto [l, r] = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  return static_cast<size_t>(std::distance(l, left.end()) + std::distance(r, right.end()));
}

unsigned penalty(const DevicePlace& nic, const MemoryPlace& memory) {
  const bool known = nic.numa_node >= 0 && memory.numa_node >= 0;
  if (memory.gpu_pci.empty()) return known && nic.numa_node != memory.numa_node ? 3 : 1;
  // A switch is a bridge over the bridges of its ports: .../switch/port a/NIC and .../switch/port b/GPU.
  constexpr size_t kOneSwitch = 4;
  if (nic.pci.empty() || pci_distance(nic.pci, memory.gpu_pci) <= kOneSwitch) return 1;
  return !known || nic.numa_node == memory.numa_node ? 3 : 10;
}

bool leaves_to_nearer(const PathLoad& mine, std::span<const PathLoad> others, uint64_t bytes) {
  return std::any_of(others.begin(), others.end(), [&](const PathLoad& other) {
    if (!other.open || other.penalty >= mine.penalty) return false;
    const bool measured = mine.bytes_per_s > 0 && other.bytes_per_s > 0;
    return finish_s(other, bytes, measured ? other.bytes_per_s : 1) <=
           finish_s(mine, bytes, measured ? mine.bytes_per_s : 1);
  });
}

}  // namespace mc::xfer

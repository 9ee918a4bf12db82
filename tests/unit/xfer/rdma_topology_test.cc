#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "test.h"
#include "xfer_rdma/topology.h"

using namespace mc;
using namespace mc::xfer;

namespace {

/// A /sys with two NUMA nodes: on node 0 mlx5_0 and a GPU under one switch and mlx5_1 under another root port, on
/// node 1 mlx5_2; rxe0 has no device behind it, and bnxt_re0 a device that names no node.
struct FakeSysfs {
  std::filesystem::path root;
  FakeSysfs() {
    char name[] = "/tmp/mct-sysfs-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    root = name;
    nic("mlx5_0", "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0", "0");
    nic("mlx5_1", "pci0000:3a/0000:3a:02.0/0000:5e:00.0", "0");
    nic("mlx5_2", "pci0000:ae/0000:ae:00.0/0000:af:00.0", "1");
    nic("bnxt_re0", "pci0000:00/0000:00:03.0", "-1");
    std::filesystem::create_directories(root / "class/infiniband/rxe0");
    pci("0000:3e:00.0", "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0/0000:3e:00.0", "0");
    pci("0000:b0:00.0", "pci0000:ae/0000:ae:02.0/0000:b0:00.0", "1");
  }
  ~FakeSysfs() {
    std::error_code error;
    std::filesystem::remove_all(root, error);
  }
  std::filesystem::path device(const std::string& path, const std::string& node) const {
    const auto folder = root / "devices" / path;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "numa_node") << node << "\n";
    return folder;
  }
  void nic(const std::string& name, const std::string& path, const std::string& node) const {
    std::filesystem::create_directories(root / "class/infiniband" / name);
    std::filesystem::create_directory_symlink(device(path, node), root / "class/infiniband" / name / "device");
  }
  void pci(const std::string& address, const std::string& path, const std::string& node) const {
    std::filesystem::create_directories(root / "bus/pci/devices");
    std::filesystem::create_directory_symlink(device(path, node), root / "bus/pci/devices" / address);
  }
  DevicePlace nic_at(const std::string& name) const { return place_of_rdma_device(name, root.string()); }
  MemoryPlace gpu_at(const std::string& address) const {
    const DevicePlace place = place_of_pci_device(address, root.string());
    return {place.numa_node, place.pci};
  }
};

}  // namespace

TEST_CASE("xfer/rdma_topology: places are read from sysfs, and what it does not say is unknown") {
  const FakeSysfs sysfs;
  CHECK(sysfs.nic_at("mlx5_2").numa_node == 1);
  CHECK(sysfs.nic_at("mlx5_2").pci.ends_with("/devices/pci0000:ae/0000:ae:00.0/0000:af:00.0"));
  CHECK(sysfs.nic_at("bnxt_re0").numa_node == -1);
  CHECK(sysfs.nic_at("rxe0") == DevicePlace{});
  CHECK(sysfs.nic_at("gone") == DevicePlace{});
}

TEST_CASE("xfer/rdma_topology: host memory is near the NIC of its node, and near every NIC when a node is unknown") {
  const FakeSysfs sysfs;
  CHECK(penalty(sysfs.nic_at("mlx5_0"), {.numa_node = 0}) == 1);
  CHECK(penalty(sysfs.nic_at("mlx5_1"), {.numa_node = 0}) == 1);
  CHECK(penalty(sysfs.nic_at("mlx5_2"), {.numa_node = 0}) == 3);
  CHECK(penalty(sysfs.nic_at("mlx5_2"), {.numa_node = 1}) == 1);
  for (const char* unknown : {"rxe0", "bnxt_re0"}) CHECK(penalty(sysfs.nic_at(unknown), {.numa_node = 1}) == 1);
  CHECK(penalty(sysfs.nic_at("mlx5_2"), {}) == 1);
}

TEST_CASE("xfer/rdma_topology: GPU memory is nearest under its switch, farther on its node, farthest beyond") {
  const FakeSysfs sysfs;
  const MemoryPlace gpu = sysfs.gpu_at("0000:3e:00.0");
  CHECK(pci_distance(sysfs.nic_at("mlx5_0").pci, gpu.gpu_pci) == 4);
  CHECK(penalty(sysfs.nic_at("mlx5_0"), gpu) == 1);
  CHECK(penalty(sysfs.nic_at("mlx5_1"), gpu) == 3);
  CHECK(penalty(sysfs.nic_at("mlx5_2"), gpu) == 10);
  CHECK(penalty(sysfs.nic_at("rxe0"), gpu) == 1);
  CHECK(pci_distance(gpu.gpu_pci, gpu.gpu_pci) == 0);
}

TEST_CASE("xfer/rdma_topology: a far path takes a slice only when the near ones are full or three times as late") {
  const auto leaves = [](const PathLoad& mine, std::vector<PathLoad> others) {
    return leaves_to_nearer(mine, others, 1000);
  };
  const PathLoad far{.bytes = 0, .penalty = 3};
  CHECK(leaves(far, {{.bytes = 2000, .penalty = 1}}));
  CHECK_FALSE(leaves(far, {{.bytes = 2001, .penalty = 1}}));
  CHECK_FALSE(leaves(far, {{.bytes = 0, .penalty = 1, .open = false}}));
  CHECK_FALSE(leaves(far, {{.bytes = 0, .penalty = 3}}));  // not nearer
  CHECK_FALSE(leaves(far, {}));
  CHECK_FALSE(leaves({.penalty = 1}, {{.bytes = 0, .penalty = 1}}));  // equals never wait for each other
  // a near path at a quarter of the speed holds nothing back
  CHECK_FALSE(leaves({.bytes_per_s = 4e9, .penalty = 3}, {{.bytes_per_s = 1e9, .penalty = 1}}));
  CHECK(leaves({.bytes_per_s = 2e9, .penalty = 3}, {{.bytes_per_s = 1e9, .penalty = 1}}));
}

TEST_CASE("xfer/rdma_topology: memory of this process is on a node, or unknown, never on a GPU") {
  const std::vector<char> memory(4096, 1);
  const MemoryPlace place = place_of_memory(memory.data());
  CHECK(place.gpu_pci.empty());
  CHECK(place.numa_node >= -1);
}

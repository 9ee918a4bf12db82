// The RDMA devices of this machine, as text for people: the ports that could carry transfers, and the reasons why the
// others could not. No verbs types: `mc-bench doctor` prints the report, and the transport logs it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xfer/xfer.h"
#include "xfer_rdma/gid.h"
#include "xfer_rdma/gpu.h"

namespace mc::xfer {

struct RdmaPortReport {
  int port = 1;
  std::string state;  // "active", "down", ...; empty = unknown
  bool active = false;
  bool ethernet = false;  // else InfiniBand
  uint16_t mtu = 0;       // active MTU in bytes
  uint16_t mtu_max = 0;
  uint16_t lid = 0;
  double gbits_per_s = 0;       // nominal speed; 0 = unknown
  std::vector<RankedGid> gids;  // usable ones first, each with its reason
  bool usable = false;
  std::string reason;
};

struct RdmaDeviceReport {
  std::string name;    // "mlx5_0"
  int numa_node = -1;  // -1 = unknown
  std::string pci;     // path below /sys/devices; empty for software devices
  uint64_t mr_bytes_max = 0;
  uint32_t queue_pairs_max = 0;
  uint32_t work_requests_max = 0;  // limit of one queue pair
  uint32_t completions_max = 0;    // limit of one completion queue
  uint32_t gather_max = 0;
  uint32_t read_depth_max = 0;  // limit of outstanding RDMA READs of a queue pair
  std::vector<RdmaPortReport> ports;
  bool usable = false;
  std::string reason;
};

struct RdmaReport {
  std::vector<RdmaDeviceReport> devices;
  uint64_t memlock_bytes = 0;  // RLIMIT_MEMLOCK; UINT64_MAX = unlimited, or this process is exempt
  GpuChoice gpu;               // method by which these devices would reach GPU memory
  bool usable = false;
  std::string reason;  // one line: the usable ports, or what is missing
};

/// Examines every device by opening it for a moment. Follows Options::rdma_devices and rdma_gid_index.
RdmaReport rdma_report(const Options& options);

}  // namespace mc::xfer

// The RDMA devices of this machine as a person asks about them: which ports could carry transfers, and
// why the others could not. No verbs types: `mc-bench doctor` prints this, the transport logs it.
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
  std::string state;  // "active", "down", ...
  std::string link;   // "Ethernet", "InfiniBand"
  uint16_t mtu = 0;   // active, bytes
  uint16_t mtu_max = 0;
  uint16_t lid = 0;
  double gbits_per_s = 0;       // nominal; 0 = unknown
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
  uint32_t work_requests_max = 0;  // of one queue pair
  uint32_t completions_max = 0;    // of one completion queue
  uint32_t gather_max = 0;
  uint32_t read_depth_max = 0;  // RDMA READs a queue pair may have outstanding
  std::vector<RdmaPortReport> ports;
  bool usable = false;
  std::string reason;
};

struct RdmaReport {
  std::vector<RdmaDeviceReport> devices;
  uint64_t memlock_bytes = 0;  // RLIMIT_MEMLOCK; UINT64_MAX = unlimited, or this process is exempt
  GpuChoice gpu;               // how these devices would reach GPU memory
  bool usable = false;
  std::string reason;  // one line: what can be used, or what is missing
};

/// Looks at every device; opens each for a moment. Options::rdma_devices and rdma_gid_index count.
RdmaReport rdma_report(const Options& options);

}  // namespace mc::xfer

// How the NIC reaches GPU memory, decided once per process and logged. Three ways, best first:
//
//   dmabuf   the CUDA driver exports a range as a dma-buf, verbs registers that (open kernel modules)
//   peermem  the nvidia-peermem module lets ibv_reg_mr take device addresses
//   staged   neither: the caller copies through registered host memory
//
// libcuda is opened at run time; without it there is no GPU memory to register. Unproven: no machine we
// test on has both a GPU and an RDMA device, so only the decision and the export are covered by tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace mc::xfer {

enum class GpuPath : uint8_t { none, dmabuf, peermem, staged };
std::string_view to_string(GpuPath path);

struct GpuFacts {
  bool driver = false;  // libcuda is there and starts
  int devices = 0;
  bool exports_dmabuf = false;  // every GPU: CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
  bool peermem = false;         // the module is loaded
  bool verbs_dmabuf = false;    // every RDMA device takes dma-bufs
};

struct GpuChoice {
  GpuPath path = GpuPath::none;
  std::string reason;
};
GpuChoice choose_gpu_path(const GpuFacts& facts);

/// What this machine has. `verbs_dmabuf` is left to the caller, who has the devices.
GpuFacts gpu_facts();

/// True when the address is memory of a GPU. False without libcuda.
bool is_gpu_memory(const void* address);

/// PCI address of the GPU whose memory it is, "0000:3b:00.0"; empty when it is not, or the driver does not say.
std::string gpu_pci_address(const void* address);

/// A dma-buf of the pages around the range; the range begins `offset` bytes into it.
struct GpuExport {
  Fd fd;
  uint64_t offset = 0;
};
Result<GpuExport> export_gpu_memory(std::span<const std::byte> memory);

}  // namespace mc::xfer

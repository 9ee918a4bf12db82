// The method by which the NIC reaches GPU memory, decided once in a process and logged. There are three, best first:
//
//   dmabuf   the CUDA driver exports a range as a dma-buf, verbs registers that (open kernel modules)
//   peermem  the nvidia-peermem module lets ibv_reg_mr take device addresses
//   staged   neither: the caller copies through registered host memory
//
// libcuda is opened at run time. Without it there is no GPU memory to register. Unproven: no test machine has both a
// GPU and an RDMA device, so the tests cover only the decision and the export.
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
  bool driver = false;  // libcuda is present and starts
  int devices = 0;
  bool exports_dmabuf = false;  // every GPU has CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
  bool peermem = false;         // the module is loaded
  bool verbs_dmabuf = false;    // every RDMA device accepts dma-bufs
};

struct GpuChoice {
  GpuPath path = GpuPath::none;
  std::string reason;
};
GpuChoice choose_gpu_path(const GpuFacts& facts);

/// The facts about this machine. The caller, who has the devices, fills in `verbs_dmabuf`.
GpuFacts gpu_facts();

/// True when the address is memory of a GPU. False without libcuda.
bool is_gpu_memory(const void* address);

/// PCI address of the GPU that owns the memory, such as "0000:3b:00.0"; empty when no GPU does or the driver gives
/// none.
std::string gpu_pci_address(const void* address);

/// A dma-buf of the pages around the range. The range begins `offset` bytes into it.
struct GpuExport {
  Fd fd;
  uint64_t offset = 0;
};
Result<GpuExport> export_gpu_memory(std::span<const std::byte> memory);

}  // namespace mc::xfer

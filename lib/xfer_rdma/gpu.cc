#include "xfer_rdma/gpu.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>

namespace mc::xfer {
namespace {

// Values of cuda.h, which is not needed to build this file.
constexpr int kAttributeDmaBuf = 124;      // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
constexpr int kPointerMemoryType = 2;      // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr unsigned kMemoryTypeDevice = 2;  // CU_MEMORYTYPE_DEVICE
constexpr int kPointerDevice = 9;          // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int kHandleDmaBuf = 1;           // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

/// The few functions of libcuda, or nulls. Loaded once, never unloaded.
struct Cuda {
  int (*init)(unsigned) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*device_attribute)(int*, int, int) = nullptr;
  int (*pointer_attribute)(void*, int, uint64_t) = nullptr;
  int (*pci_address)(char*, int, int) = nullptr;
  int (*range_handle)(void*, uint64_t, size_t, int, unsigned long long) = nullptr;
  bool ready = false;

  Cuda() {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
      return function != nullptr;
    };
    ready = load(init, "cuInit") && load(device_count, "cuDeviceGetCount") &&
            load(device_attribute, "cuDeviceGetAttribute") && load(pointer_attribute, "cuPointerGetAttribute") &&
            init(0) == 0;
    (void)load(pci_address, "cuDeviceGetPCIBusId");
    (void)load(range_handle, "cuMemGetHandleForAddressRange");  // CUDA 11.7 and later
  }
};

const Cuda& cuda() {
  static const Cuda library;
  return library;
}

}  // namespace

std::string_view to_string(GpuPath path) {
  switch (path) {
    case GpuPath::none: return "none";
    case GpuPath::dmabuf: return "dmabuf";
    case GpuPath::peermem: return "peermem";
    case GpuPath::staged: return "staged";
  }
  return "unknown";
}

GpuChoice choose_gpu_path(const GpuFacts& facts) {
  if (!facts.driver) return {GpuPath::none, "no CUDA driver"};
  if (facts.devices == 0) return {GpuPath::none, "no GPU"};
  if (facts.exports_dmabuf && facts.verbs_dmabuf)
    return {GpuPath::dmabuf, "the driver exports dma-bufs, the NICs take them"};
  const std::string why_not =
      facts.exports_dmabuf ? "a NIC takes no dma-buf" : "the driver exports no dma-buf (needs the open kernel modules)";
  if (facts.peermem) return {GpuPath::peermem, why_not + "; nvidia-peermem is loaded"};
  return {GpuPath::staged, why_not + " and nvidia-peermem is not loaded: GPU memory goes through host memory"};
}

GpuFacts gpu_facts() {
  GpuFacts facts;
  facts.driver = cuda().ready;
  if (!facts.driver) return facts;
  if (cuda().device_count(&facts.devices) != 0) facts.devices = 0;
  facts.exports_dmabuf = facts.devices > 0 && cuda().range_handle != nullptr;
  for (int device = 0; device < facts.devices; ++device) {
    int supported = 0;
    facts.exports_dmabuf &= cuda().device_attribute(&supported, kAttributeDmaBuf, device) == 0 && supported != 0;
  }
  std::error_code error;
  facts.peermem = std::filesystem::exists("/sys/module/nvidia_peermem", error);
  return facts;
}

bool is_gpu_memory(const void* address) {
  if (!cuda().ready) return false;
  unsigned type = 0;
  return cuda().pointer_attribute(&type, kPointerMemoryType, reinterpret_cast<uint64_t>(address)) == 0 &&
         type == kMemoryTypeDevice;
}

std::string gpu_pci_address(const void* address) {
  if (!is_gpu_memory(address) || cuda().pci_address == nullptr) return {};
  int device = 0;
  char text[32] = "";
  if (cuda().pointer_attribute(&device, kPointerDevice, reinterpret_cast<uint64_t>(address)) != 0 ||
      cuda().pci_address(text, sizeof text, device) != 0)
    return {};
  std::string lower(text);  // sysfs uses lower case
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

Result<GpuExport> export_gpu_memory(std::span<const std::byte> memory) {
  if (!cuda().ready || cuda().range_handle == nullptr)
    return Error{Code::unsupported, "rdma: the CUDA driver cannot export memory"};
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uint64_t>(memory.data());
  const uint64_t first = begin / page * page;
  const uint64_t bytes = (begin + memory.size() - first + page - 1) / page * page;
  int fd = -1;
  const int rc = cuda().range_handle(&fd, first, bytes, kHandleDmaBuf, 0);
  if (rc != 0 || fd < 0)
    return Error{Code::unsupported,
                 "rdma: export " + std::to_string(bytes) + " bytes of GPU memory: CUDA error " + std::to_string(rc)};
  return GpuExport{Fd(fd), begin - first};
}

}  // namespace mc::xfer

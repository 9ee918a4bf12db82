// A GPU through the CUDA driver, which is found when it is asked for: libcuda.so.1 is opened at run time, so that one
// program serves hosts with and without a GPU. The declarations are those of the driver API 13.0 that are used here;
// its functions and numbers are a stable binary interface. This file has not run on a GPU yet.
#include <dlfcn.h>

#include <algorithm>
#include <string>

#include "base/units.h"
#include "gpu/gpu.h"
#include "gpu/kernels/kernels.h"

namespace mc::gpu {
namespace {

using Status = int;
constexpr Status kOk = 0, kOutOfMemory = 2, kNoDevice = 100;
constexpr int kMajor = 75, kMinor = 76, kSharedMax = 97;  // attributes of a device
constexpr int kFunctionShared = 8;                        // attribute of a function: dynamic shared memory
constexpr int kVersionMin = 13000;                        // compiles PTX 9.0
constexpr int kBf16 = 9, kNoInterleave = 0, kSwizzle128 = 3, kPromote256 = 3, kZeroFill = 0;  // of a tensor map
using Handle = void*;

/// The driver's functions, named as in libcuda.so.1.
struct Driver {
  Status (*init)(unsigned);
  Status (*version)(int*);
  Status (*error_text)(Status, const char**);
  Status (*device_get)(int*, int);
  Status (*device_count)(int*);
  Status (*attribute)(int*, int, int);
  Status (*retain)(Handle*, int);
  Status (*release)(int);
  Status (*set_current)(Handle);
  Status (*memory)(size_t*, size_t*);
  Status (*allocate)(uint64_t*, size_t);
  Status (*free)(uint64_t);
  Status (*write)(uint64_t, const void*, size_t, Handle);
  Status (*read)(void*, uint64_t, size_t, Handle);
  Status (*stream_create)(Handle*, unsigned);
  Status (*stream_destroy)(Handle);
  Status (*synchronise)(Handle);
  Status (*load)(Handle*, const void*);
  Status (*unload)(Handle);
  Status (*function)(Handle*, Handle, const char*);
  Status (*function_set)(Handle, int, int);
  Status (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**,
                   void**);
  Status (*encode)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int,
                   int, int, int);
};

Result<const Driver*> open_driver() {
  static Driver driver;
  static const Result<void> opened = []() -> Result<void> {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      Error error{Code::unsupported, "no NVIDIA driver: libcuda.so.1 was not found"};
      error.next = "install the driver (nvidia-smi shows it), or use --device emu";
      return error;
    }
    std::string missing;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) missing = name;
    };
    find(driver.init, "cuInit");
    find(driver.version, "cuDriverGetVersion");
    find(driver.error_text, "cuGetErrorString");
    find(driver.device_get, "cuDeviceGet");
    find(driver.device_count, "cuDeviceGetCount");
    find(driver.attribute, "cuDeviceGetAttribute");
    find(driver.retain, "cuDevicePrimaryCtxRetain");
    find(driver.release, "cuDevicePrimaryCtxRelease_v2");
    find(driver.set_current, "cuCtxSetCurrent");
    find(driver.memory, "cuMemGetInfo_v2");
    find(driver.allocate, "cuMemAlloc_v2");
    find(driver.free, "cuMemFree_v2");
    find(driver.write, "cuMemcpyHtoDAsync_v2");
    find(driver.read, "cuMemcpyDtoHAsync_v2");
    find(driver.stream_create, "cuStreamCreate");
    find(driver.stream_destroy, "cuStreamDestroy_v2");
    find(driver.synchronise, "cuStreamSynchronize");
    find(driver.load, "cuModuleLoadData");
    find(driver.unload, "cuModuleUnload");
    find(driver.function, "cuModuleGetFunction");
    find(driver.function_set, "cuFuncSetAttribute");
    find(driver.launch, "cuLaunchKernel");
    find(driver.encode, "cuTensorMapEncodeTiled");
    if (!missing.empty()) return Error{Code::unsupported, "the NVIDIA driver is too old: it has no " + missing};
    return {};
  }();
  if (!opened) return opened.error();
  return &driver;
}

class Cuda : public Device {
 public:
  Cuda(const Driver& driver, int index) : driver_(driver), index_(index), name_("cuda:" + std::to_string(index)) {}
  ~Cuda() override {
    for (const Loaded& loaded : loaded_) driver_.unload(loaded.module);
    if (stream_ != nullptr) driver_.stream_destroy(stream_);
    if (context_ != nullptr) driver_.release(index_);
  }
  Result<void> open();

  std::string_view name() const override { return name_; }
  int capability() const override { return capability_; }
  Result<uint64_t> allocate(size_t bytes, std::string_view what) override;
  void release(uint64_t address) override { driver_.free(address); }
  Result<void> write(uint64_t address, std::span<const std::byte> from) override;
  Result<void> read(uint64_t address, std::span<std::byte> to) override;
  Result<EncodedMap> encode(const TensorBox& box) override;
  Result<void> launch(std::string_view kernel, const LaunchShape& shape, std::span<const std::byte> params) override;

 private:
  struct Loaded {
    std::string_view text;
    Handle module = nullptr;
  };
  Result<void> check(Status status, std::string_view what) const;
  Result<Handle> find(const std::string& kernel);

  const Driver& driver_;
  int index_;
  std::string name_;
  int capability_ = 0;
  int shared_max_ = 0;
  Handle context_ = nullptr, stream_ = nullptr;
  std::vector<Loaded> loaded_;
};

Result<void> Cuda::check(Status status, std::string_view what) const {
  if (status == kOk) return {};
  const char* text = nullptr;
  if (driver_.error_text(status, &text) != kOk || text == nullptr) text = "unknown error";
  return Error{Code::io,
               name_ + ": " + std::string(what) + ": " + text + " (CUDA error " + std::to_string(status) + ")"};
}

Result<void> Cuda::open() {
  int version = 0, count = 0, device = 0, major = 0, minor = 0;
  const Status started = driver_.init(0);
  if (started != kNoDevice) MC_CHECK(check(started, "start of the driver"));
  MC_CHECK(check(driver_.version(&version), "version of the driver"));
  if (version < kVersionMin) {
    Error error{Code::unsupported, "the NVIDIA driver supports CUDA " + std::to_string(version / 1000) + "." +
                                       std::to_string(version % 1000 / 10) + ", the kernels need 13.0"};
    error.next = "install a driver of branch 580 or later";
    return error;
  }
  if (started == kOk) MC_CHECK(check(driver_.device_count(&count), "count of GPUs"));
  if (index_ >= count) {
    Error error{Code::not_found, "no GPU " + std::to_string(index_) + ": this host has " + std::to_string(count)};
    error.next = count > 0 ? "name one of cuda:0 to cuda:" + std::to_string(count - 1) : "use --device emu";
    return error;
  }
  MC_CHECK(check(driver_.device_get(&device, index_), "the device"));
  MC_CHECK(check(driver_.attribute(&major, kMajor, device), "compute capability"));
  MC_CHECK(check(driver_.attribute(&minor, kMinor, device), "compute capability"));
  MC_CHECK(check(driver_.attribute(&shared_max_, kSharedMax, device), "shared memory"));
  capability_ = 10 * major + minor;
  if (capability_ < 80)
    return Error{Code::unsupported, name_ + " has compute capability " + std::to_string(major) + "." +
                                        std::to_string(minor) + ", the kernels need 8.0"};
  MC_CHECK(check(driver_.retain(&context_, device), "context"));
  MC_CHECK(check(driver_.set_current(context_), "context"));
  return check(driver_.stream_create(&stream_, 1), "stream");
}

Result<uint64_t> Cuda::allocate(size_t bytes, std::string_view what) {
  uint64_t address = 0;
  const Status status = driver_.allocate(&address, bytes);
  if (status != kOutOfMemory) {
    MC_CHECK(check(status, what));
    return address;
  }
  size_t free = 0, total = 0;
  driver_.memory(&free, &total);
  return Error{Code::no_space, name_ + ": " + std::string(what) + " needs " + human_bytes(bytes) + ", free are " +
                                   human_bytes(free) + " of " + human_bytes(total)};
}

Result<void> Cuda::write(uint64_t address, std::span<const std::byte> from) {
  MC_CHECK(check(driver_.write(address, from.data(), from.size(), stream_), "copy to the GPU"));
  return check(driver_.synchronise(stream_), "copy to the GPU");  // `from` is the caller's
}

Result<void> Cuda::read(uint64_t address, std::span<std::byte> to) {
  MC_CHECK(check(driver_.read(to.data(), address, to.size(), stream_), "copy from the GPU"));
  return check(driver_.synchronise(stream_), "copy from the GPU");
}

Result<EncodedMap> Cuda::encode(const TensorBox& box) {
  alignas(64) EncodedMap out;
  const uint32_t steps[4] = {1, 1, 1, 1};
  MC_CHECK(check(driver_.encode(out.bytes, kBf16, 4, reinterpret_cast<void*>(box.base), box.dims, box.strides + 1,
                                box.box, steps, kNoInterleave, kSwizzle128, kPromote256, kZeroFill),
                 "tensor map"));
  return out;
}

/// The driver compiles a text when one of its kernels is launched first. Code for sm_90a runs on 9.0 alone.
Result<Handle> Cuda::find(const std::string& kernel) {
  const std::string entry = ".entry " + kernel + "(";
  for (const KernelText& text : kernel_texts()) {
    if (text.text.find(entry) == std::string_view::npos || (text.target == "sm_90a" && capability_ != 90)) continue;
    auto at = std::find_if(loaded_.begin(), loaded_.end(), [&](const Loaded& l) { return l.text == text.file; });
    if (at == loaded_.end()) {
      Loaded made{text.file};
      MC_CHECK(check(driver_.load(&made.module, std::string(text.text).c_str()), text.file));
      at = loaded_.insert(loaded_.end(), made);
    }
    Handle function = nullptr;
    MC_CHECK(check(driver_.function(&function, at->module, kernel.c_str()), kernel));
    return function;
  }
  return Error{Code::unsupported, "no kernel '" + kernel + "' in this build for " + name_};
}

Result<void> Cuda::launch(std::string_view kernel, const LaunchShape& shape, std::span<const std::byte> params) {
  MC_TRY(function, find(std::string(kernel)));
  if (shape.dynamic_shared > static_cast<uint32_t>(shared_max_))
    return Error{Code::unsupported, std::string(kernel) + " needs " + std::to_string(shape.dynamic_shared) +
                                        " bytes of shared memory, " + name_ + " has " + std::to_string(shared_max_)};
  MC_CHECK(check(driver_.function_set(function, kFunctionShared, static_cast<int>(shape.dynamic_shared)), kernel));
  size_t size = params.size();
  std::vector<std::byte> copy(params.begin(), params.end());
  void* extra[] = {reinterpret_cast<void*>(1), copy.data(), reinterpret_cast<void*>(2), &size, nullptr};
  return check(driver_.launch(function, shape.grid[0], shape.grid[1], shape.grid[2], shape.threads, 1, 1,
                              shape.dynamic_shared, stream_, nullptr, extra),
               kernel);
}

}  // namespace

Result<std::unique_ptr<Device>> open_cuda(int index) {
  MC_TRY(driver, open_driver());
  auto device = std::make_unique<Cuda>(*driver, index);
  MC_CHECK(device->open());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace mc::gpu

// The host's CUDA driver, which is found when a device is opened: libcuda.so.1 is loaded at run time. The declarations
// are those of the driver API 13.0 that are used here; its functions and numbers are a stable binary interface.
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "base/errors.h"
#include "gpu/driver.h"
#include "gpu/kernels/kernels.h"
#include "gpu/libcublaslt.h"
#include "gpu/optional_library.h"

namespace mc::gpu {
namespace {

// Attributes of a device.
constexpr int kAttributeMajor = 75, kAttributeMinor = 76, kAttributeShared = 97, kAttributeProcessors = 16,
              kAttributeClock = 13;
constexpr int kFunctionShared = 8;                      // attribute of a function: dynamic shared memory
constexpr int kJitErrorLog = 5, kJitErrorLogBytes = 6;  // options of the compilation of a text
constexpr int kF32 = 7, kBf16 = 9;  // of a tensor map
constexpr int kNoInterleave = 0, kSwizzle128 = 3, kPromote256 = 3, kZeroFill = 0;
constexpr size_t kMapAlignment = 64;
constexpr unsigned kNonBlocking = 1, kNoTiming = 2, kThreadLocalCapture = 1;

/// CUlaunchAttribute.
struct LaunchAttribute {
  static constexpr int kProgrammatic = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
  int name = 0, reserved = 0;
  int value[16] = {};
};
static_assert(sizeof(LaunchAttribute) == 72);

/// CUlaunchConfig.
struct LaunchConfig {
  uint32_t grid[3] = {1, 1, 1}, threads[3] = {1, 1, 1};
  uint32_t dynamic_shared = 0;
  Handle stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  uint32_t attribute_count = 0;
};
static_assert(sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, attribute_count) == 48);

/// The driver's functions, named as in libcuda.so.1.
struct Functions {
  int (*init)(unsigned);
  int (*version)(int*);
  int (*error_text)(int, const char**);
  int (*device_count)(int*);
  int (*attribute)(int*, int, int);
  int (*retain)(Handle*, int);
  int (*release)(int);
  int (*set_current)(Handle);
  int (*context_finish)();
  int (*memory)(size_t*, size_t*);
  int (*allocate)(uint64_t*, size_t);
  int (*free)(uint64_t);
  int (*host_allocate)(void**, size_t, unsigned);
  int (*host_free)(void*);
  int (*stream_create)(Handle*, unsigned);
  int (*stream_destroy)(Handle);
  int (*stream_finish)(Handle);
  int (*event_create)(Handle*, unsigned);
  int (*event_destroy)(Handle);
  int (*event_record)(Handle, Handle);
  int (*event_finish)(Handle);
  int (*stream_wait)(Handle, Handle, unsigned);
  int (*copy_in)(uint64_t, const void*, size_t, Handle);
  int (*copy_out)(void*, uint64_t, size_t, Handle);
  int (*copy_within)(uint64_t, uint64_t, size_t, Handle);
  int (*fill)(uint64_t, unsigned char, size_t, Handle);
  int (*load)(Handle*, const void*, unsigned, int*, void**);
  int (*unload)(Handle);
  int (*function)(Handle*, Handle, const char*);
  int (*function_set)(Handle, int, int);
  int (*parameter)(Handle, size_t, size_t*, size_t*);
  int (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**);
  int (*launch_by)(const LaunchConfig*, Handle, void**, void**);
  int (*clusters)(int*, Handle, const LaunchConfig*);
  int (*encode)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int,
                int, int, int);
  int (*capture_begin)(Handle, unsigned);
  int (*capture_end)(Handle, Handle*);
  int (*instantiate)(Handle*, Handle, unsigned long long);
  int (*graph_destroy)(Handle);
  int (*graph_launch)(Handle, Handle);
  int (*executable_destroy)(Handle);
};

/// The name of the first function that the library lacks, or null.
const char* resolve(void* library, Functions& f) {
  FunctionFinder find(library);
  find(f.init, "cuInit");
  find(f.version, "cuDriverGetVersion");
  find(f.error_text, "cuGetErrorString");
  find(f.device_count, "cuDeviceGetCount");
  find(f.attribute, "cuDeviceGetAttribute");
  find(f.retain, "cuDevicePrimaryCtxRetain");
  find(f.release, "cuDevicePrimaryCtxRelease_v2");
  find(f.set_current, "cuCtxSetCurrent");
  find(f.context_finish, "cuCtxSynchronize");
  find(f.memory, "cuMemGetInfo_v2");
  find(f.allocate, "cuMemAlloc_v2");
  find(f.free, "cuMemFree_v2");
  find(f.host_allocate, "cuMemHostAlloc");
  find(f.host_free, "cuMemFreeHost");
  find(f.stream_create, "cuStreamCreate");
  find(f.stream_destroy, "cuStreamDestroy_v2");
  find(f.stream_finish, "cuStreamSynchronize");
  find(f.event_create, "cuEventCreate");
  find(f.event_destroy, "cuEventDestroy_v2");
  find(f.event_record, "cuEventRecord");
  find(f.event_finish, "cuEventSynchronize");
  find(f.stream_wait, "cuStreamWaitEvent");
  find(f.copy_in, "cuMemcpyHtoDAsync_v2");
  find(f.copy_out, "cuMemcpyDtoHAsync_v2");
  find(f.copy_within, "cuMemcpyDtoDAsync_v2");
  find(f.fill, "cuMemsetD8Async");
  find(f.load, "cuModuleLoadDataEx");
  find(f.unload, "cuModuleUnload");
  find(f.function, "cuModuleGetFunction");
  find(f.function_set, "cuFuncSetAttribute");
  find(f.parameter, "cuFuncGetParamInfo");
  find(f.launch, "cuLaunchKernel");
  find(f.launch_by, "cuLaunchKernelEx");
  find(f.clusters, "cuOccupancyMaxActiveClusters");
  find(f.encode, "cuTensorMapEncodeTiled");
  find(f.capture_begin, "cuStreamBeginCapture_v2");
  find(f.capture_end, "cuStreamEndCapture");
  find(f.instantiate, "cuGraphInstantiateWithFlags");
  find(f.graph_destroy, "cuGraphDestroy");
  find(f.graph_launch, "cuGraphLaunch");
  find(f.executable_destroy, "cuGraphExecDestroy");
  return find.missing();
}

constexpr Status status_of(int result) {
  return static_cast<Status>(result);
}

/// Code for sm_90a runs on 9.0 alone.
bool runs_on(int capability, const KernelText& text) {
  return text.target != "sm_90a" || capability == 90;
}

/// The dynamic shared memory that functions may have, once they were launched. The limit of a function only grows: a
/// captured graph may replay a launch with what the function once had.
struct SharedLimits {
  std::unordered_map<Handle, uint32_t> bytes;

  Status allow(const Functions& driver, Handle function, uint32_t wanted) {
    const auto at = bytes.find(function);
    if (at != bytes.end() && wanted <= at->second) return Status::ok;
    const Status set = status_of(driver.function_set(function, kFunctionShared, static_cast<int>(wanted)));
    if (set == Status::ok) bytes[function] = wanted;
    return set;
  }
};

/// Where the parameters of functions are in the bytes of a launch: as the members of a structure. The kernel itself
/// finds a tensor map at a multiple of 64 in its constant bank, whose parameters begin elsewhere, so a launch hands
/// over each parameter by its address. The driver knows sizes alone; each is aligned to the power of two that divides
/// its size, to 64 at most.
struct Parameters {
  struct Places {
    std::vector<size_t> begins;  // one a parameter
    size_t bytes = 0;
  };
  std::unordered_map<Handle, Places> places;  // by function

  /// The addresses of the parameters in `params`; invalid_value: the kernel takes others.
  Status find(const Functions& f, Handle function, std::span<std::byte> params, std::vector<void*>& out) {
    const auto [at, is_new] = places.try_emplace(function);
    auto& [begins, bytes] = at->second;
    size_t offset = 0, size = 0;
    for (Status found = Status::ok; is_new;) {
      found = static_cast<Status>(f.parameter(function, begins.size(), &offset, &size));
      if (found == Status::invalid_value) break;  // there are no more
      if (found != Status::ok) return places.erase(at), found;
      begins.push_back(round_up(bytes, std::min(size & -size, kMapAlignment)));
      bytes = begins.back() + size;
    }
    if (bytes != params.size()) return Status::invalid_value;
    for (const size_t begin : begins) out.push_back(params.data() + begin);
    return Status::ok;
  }
};

class LibCuda final : public Driver {
 public:
  Result<void> load() override;
  Status init() override { return status_of(f_.init(0)); }
  Status version(int* out) override { return status_of(f_.version(out)); }
  Status device_count(int* out) override { return status_of(f_.device_count(out)); }
  std::string device_name(int index) const override { return "cuda:" + std::to_string(index); }
  Status describe(int device, DeviceFacts* out) override;
  Status retain(int device) override;
  void release(int device) override;
  Status enter() override { return status_of(f_.set_current(context_)); }
  std::string error_text(Status status) override;
  std::string_view lacking() const override {
    return kernel_texts().empty() ? "this build has no kernels for a GPU, because it found no nvcc" : "";
  }

  Status memory(size_t* free, size_t* total) override { return status_of(f_.memory(free, total)); }
  Status allocate(uint64_t* address, size_t bytes, std::string_view) override {
    return status_of(f_.allocate(address, bytes));
  }
  // cuMemFree may wait for queued work and need not; cuMemFreeHost says nothing of it.
  void free(uint64_t address) override {
    f_.context_finish();
    f_.free(address);
  }
  Status host_allocate(void** at, size_t bytes) override { return status_of(f_.host_allocate(at, bytes, 0)); }
  void host_free(void* at) override {
    f_.context_finish();
    f_.host_free(at);
  }
  Status host_access(const void*, size_t) override { return Status::ok; }

  Status stream_create(Handle* out) override { return status_of(f_.stream_create(out, kNonBlocking)); }
  void stream_destroy(Handle stream) override { f_.stream_destroy(stream); }
  Status stream_finish(Handle stream) override { return status_of(f_.stream_finish(stream)); }
  Status event_create(Handle* out) override { return status_of(f_.event_create(out, kNoTiming)); }
  void event_destroy(Handle event) override { f_.event_destroy(event); }
  Status event_record(Handle event, Handle stream) override { return status_of(f_.event_record(event, stream)); }
  Status event_finish(Handle event) override { return status_of(f_.event_finish(event)); }
  Status stream_wait(Handle stream, Handle event) override { return status_of(f_.stream_wait(stream, event, 0)); }

  Status copy_in(uint64_t to, const void* from, size_t bytes, Handle stream) override {
    return status_of(f_.copy_in(to, from, bytes, stream));
  }
  Status copy_out(void* to, uint64_t from, size_t bytes, Handle stream) override {
    return status_of(f_.copy_out(to, from, bytes, stream));
  }
  Status copy_within(uint64_t to, uint64_t from, size_t bytes, Handle stream) override {
    return status_of(f_.copy_within(to, from, bytes, stream));
  }
  Status fill(uint64_t to, uint8_t value, size_t bytes, Handle stream) override {
    return status_of(f_.fill(to, value, bytes, stream));
  }
  Status load_kernels() override;
  Status find(Handle* function, const std::string& kernel) override;
  Status launch(Handle function, const LaunchShape& shape, std::span<const std::byte> params, Handle stream) override;
  Status clusters_at_once(int* out, Handle function, const LaunchShape& shape) override;
  Status encode(EncodedMap* out, const TensorBox& box) override;

  Status capture_begin(Handle stream) override { return status_of(f_.capture_begin(stream, kThreadLocalCapture)); }
  Status capture_end(Handle stream, Handle* graph) override;
  Status graph_launch(Handle graph, Handle stream) override { return status_of(f_.graph_launch(graph, stream)); }
  void graph_destroy(Handle graph) override { f_.executable_destroy(graph); }

 private:
  struct Loaded {
    std::string_view file;
    Handle module = nullptr;
  };
  Status compile(const KernelText& text, Handle* module);
  Status module_of(const KernelText& text, Handle* module);

  Functions f_{};
  bool resolved_ = false;
  Handle context_ = nullptr;
  int capability_ = 0;
  std::vector<Loaded> loaded_;
  SharedLimits shared_;
  Parameters parameters_;
  std::string refused_;  // what the driver said of the text that it refused last
};

Result<void> LibCuda::load() {
  if (resolved_) return {};
  cublaslt_ = host_cublaslt();
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return user_error(err::kDeviceUnusable, "no NVIDIA driver: libcuda.so.1 was not found", "--device",
                      "install the driver (nvidia-smi shows it), or use --device cpu or emu");
  if (const char* missing = resolve(library, f_); missing != nullptr)
    return user_error(err::kDriverTooOld, "the NVIDIA driver has no function " + std::string(missing));
  resolved_ = true;
  return {};
}

Status LibCuda::describe(int device, DeviceFacts* out) {
  const std::pair<int*, int> attributes[] = {{&out->major, kAttributeMajor},
                                             {&out->minor, kAttributeMinor},
                                             {&out->shared_max, kAttributeShared},
                                             {&out->processors, kAttributeProcessors},
                                             {&out->clock_khz, kAttributeClock}};
  for (const auto& [value, attribute] : attributes)
    if (const Status status = status_of(f_.attribute(value, attribute, device)); status != Status::ok) return status;
  out->kind = DeviceKind::cuda;
  capability_ = 10 * out->major + out->minor;
  return Status::ok;
}

Status LibCuda::retain(int device) {
  const Status status = status_of(f_.retain(&context_, device));
  return status == Status::ok ? enter() : status;
}

void LibCuda::release(int device) {
  for (const Loaded& loaded : loaded_) f_.unload(loaded.module);
  loaded_.clear();
  shared_.bytes.clear();
  parameters_.places.clear();
  f_.release(device);
}

std::string LibCuda::error_text(Status status) {
  const char* text = nullptr;
  if (f_.error_text(static_cast<int>(status), &text) != 0 || text == nullptr) return "unknown error";
  return refused_.empty() ? text : text + (": " + refused_);
}

/// The driver compiles a text; what it says of a text that it refuses is the text of the error.
Status LibCuda::compile(const KernelText& text, Handle* module) {
  constexpr size_t kLogBytes = 2048;
  std::string log(kLogBytes, '\0');
  int options[] = {kJitErrorLog, kJitErrorLogBytes};
  void* values[] = {log.data(), reinterpret_cast<void*>(kLogBytes)};
  const Status status = status_of(f_.load(module, std::string(text.text).c_str(), 2, options, values));
  log.resize(std::strlen(log.c_str()));
  refused_ = status == Status::ok ? "" : std::string(text.file) + ": " + log;
  return status;
}

/// A text is compiled when one of its kernels is launched first.
Status LibCuda::find(Handle* function, const std::string& kernel) {
  const std::string entry = ".entry " + kernel + "(";
  for (const KernelText& text : kernel_texts()) {
    if (!runs_on(capability_, text) || text.text.find(entry) == std::string_view::npos) continue;
    Handle module = nullptr;
    if (const Status status = module_of(text, &module); status != Status::ok) return status;
    return status_of(f_.function(function, module, kernel.c_str()));
  }
  return Status::not_found;
}

Status LibCuda::module_of(const KernelText& text, Handle* module) {
  const auto at = std::find_if(loaded_.begin(), loaded_.end(), [&](const Loaded& l) { return l.file == text.file; });
  if (at != loaded_.end()) {
    *module = at->module;
    return Status::ok;
  }
  const Status status = compile(text, module);
  if (status == Status::ok) loaded_.push_back({text.file, *module});
  return status;
}

Status LibCuda::load_kernels() {
  for (const KernelText& text : kernel_texts()) {
    Handle module = nullptr;
    if (!runs_on(capability_, text) || text.is_trial) continue;
    if (const Status status = module_of(text, &module); status != Status::ok) return status;
  }
  return Status::ok;
}

/// The kernel itself has the size of its clusters (__cluster_dims__), so the configuration names none.
LaunchConfig config_of(const LaunchShape& shape) {
  LaunchConfig config{.dynamic_shared = shape.dynamic_shared};
  std::copy(std::begin(shape.grid), std::end(shape.grid), config.grid);
  config.threads[0] = shape.threads;
  return config;
}

Status LibCuda::clusters_at_once(int* out, Handle function, const LaunchShape& shape) {
  if (const Status set = shared_.allow(f_, function, shape.dynamic_shared); set != Status::ok) return set;
  const LaunchConfig config = config_of(shape);
  return status_of(f_.clusters(out, function, &config));
}

Status LibCuda::launch(Handle function, const LaunchShape& shape, std::span<const std::byte> params, Handle stream) {
  if (const Status set = shared_.allow(f_, function, shape.dynamic_shared); set != Status::ok) return set;
  std::vector<std::byte> copy(params.begin(), params.end());
  std::vector<void*> pointers;
  if (const Status found = parameters_.find(f_, function, copy, pointers); found != Status::ok) return found;
  if (shape.order == LaunchOrder::programmatic) {
    LaunchAttribute programmatic{.name = LaunchAttribute::kProgrammatic, .value = {1}};
    LaunchConfig config = config_of(shape);
    config.stream = stream, config.attributes = &programmatic, config.attribute_count = 1;
    return status_of(f_.launch_by(&config, function, pointers.data(), nullptr));
  }
  return status_of(f_.launch(function, shape.grid[0], shape.grid[1], shape.grid[2], shape.threads, 1, 1,
                             shape.dynamic_shared, stream, pointers.data(), nullptr));
}

Status LibCuda::encode(EncodedMap* out, const TensorBox& box) {
  alignas(64) EncodedMap aligned;
  const uint32_t steps[4] = {1, 1, 1, 1};
  const int type = box.element == TensorElement::f32 ? kF32 : kBf16;
  const int result = f_.encode(aligned.bytes, type, 4, reinterpret_cast<void*>(box.base), box.dims, box.strides + 1,
                               box.box, steps, kNoInterleave, kSwizzle128, kPromote256, kZeroFill);
  *out = aligned;
  return status_of(result);
}

Status LibCuda::capture_end(Handle stream, Handle* graph) {
  Handle made = nullptr;
  const Status ended = status_of(f_.capture_end(stream, &made));
  if (ended != Status::ok) return ended;
  const Status status = status_of(f_.instantiate(graph, made, 0));
  f_.graph_destroy(made);
  return status;
}

}  // namespace

std::shared_ptr<Driver> host_driver() {
  return std::make_shared<LibCuda>();
}

}  // namespace mc::gpu

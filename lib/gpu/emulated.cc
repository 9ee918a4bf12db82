// The driver calls of the emulated host.
#include "gpu/emulated.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "gpu/emu/tensor_map.h"
#include "gpu/kernels/kernels.h"

namespace mc::gpu {
namespace {

constexpr int kHopperShared = 232448;  // of a CTA of compute capability 9.0
constexpr int kProcessors = 132;       // of an H100 or H200

/// The first of the statuses that is not ok.
Status first_refusal(std::initializer_list<Status> statuses) {
  for (const Status status : statuses)
    if (status != Status::ok) return status;
  return Status::ok;
}

/// The limits of cuLaunchKernel, and of cuFuncSetAttribute for the dynamic shared memory that a kernel opts in to.
bool can_launch(const LaunchShape& shape) {
  constexpr uint32_t kThreadsMax = 1024, kGridMax = 0x7fffffff, kGridMaxYZ = 65535;
  if (shape.threads == 0 || shape.threads > kThreadsMax) return false;
  if (shape.dynamic_shared > static_cast<uint32_t>(kHopperShared)) return false;
  for (int d = 0; d < 3; ++d)
    if (shape.grid[d] == 0 || shape.grid[d] > (d == 0 ? kGridMax : kGridMaxYZ)) return false;
  return true;
}

/// CTAs that a multiprocessor of compute capability 9.0 runs side by side, by all but their registers.
int ctas_of_processor(const LaunchShape& shape) {
  constexpr uint32_t kShared = 233472, kSharedOfDriver = 1024, kThreadsMost = 2048, kCtasMost = 32;
  return static_cast<int>(
      std::min({kShared / (shape.dynamic_shared + kSharedOfDriver), kThreadsMost / shape.threads, kCtasMost}));
}

/// The rule of cuTensorMapEncodeTiled (CUDA driver API 13.0, tensor maps) that a box breaks; empty: none.
std::string refusal_of(const TensorBox& box) {
  if (box.base % 16 != 0) return "the base is not aligned to 16 bytes";
  if (box.box[0] * box.element_bytes() != 128) return "a row of the box is not 128 bytes";
  for (int d = 0; d < 4; ++d) {
    if (box.dims[d] == 0 || box.dims[d] > uint64_t{1} << 32) return "an extent is not 1 to 2^32";
    if (box.box[d] == 0 || box.box[d] > 256) return "an extent of the box is not 1 to 256";
    if (d > 0 && (box.strides[d] % 16 != 0 || box.strides[d] >= uint64_t{1} << 40))
      return "a stride of " + std::to_string(box.strides[d]) + " bytes is no multiple of 16 below 2^40";
  }
  return "";
}

}  // namespace

EmulatedGpu::EmulatedGpu() : queues_(memory_) {
  queues_.set_run_kernel([this](const emu::KernelLaunch& launch) { return run(launch); });
}

void EmulatedGpu::set_options(const emu::Options& options) {
  options_ = options;
  mutated_ran_ = false;
  queues_.reset(options);
}

/// A sound kernel before the mutated one runs in order and without the rules of Options::checks: it does the same in
/// every mutant, and runs without a mutation check it under every policy. Its accesses to global memory stay checked
/// and recorded, because the mutated kernel is checked by those records. The kernels behind the mutated one read what
/// that kernel wrote, so they have all checks.
void EmulatedGpu::trust(emu::Options& options) const {
  if (options_.mutation == nullptr && options_.fault == 0) return;
  options.policy = emu::Policy::in_order;
  options.global_checks = options.checks;
  options.checks = false;
}

emu::Options EmulatedGpu::next_options(std::string_view kernel) {
  emu::Options options = options_;
  if (!mutated_.empty() && mutated_ != kernel) {
    options.mutation = nullptr, options.sites = nullptr, options.fault = 0;
    if (!mutated_ran_) trust(options);
  } else {
    mutated_ran_ = true;
  }
  return options;
}

std::optional<emu::Failure> EmulatedGpu::run(const emu::KernelLaunch& launch) {
  emu::Launch full = launch.launch;
  full.params = launch.params;
  const emu::Report report = emu::run(*launch.kernel, memory_, full, next_options(launch.kernel->name));
  counters_.add(report.counters);
  return report.failure;
}

EmulatedDriver::EmulatedDriver(const EmulatedHost& host) : host_(host) {
  cublaslt_ = std::make_unique<EmulatedCublasLt>(*this);
  MC_ASSERT(host.fault_within > 0);
  fault_at_ = host.fault_after + Rng(host.fault_seed).fork("fault").below(host.fault_within);
}

// ---- the host and its device ----

Result<void> EmulatedDriver::load() {
  if (host_.has_driver) return {};
  return user_error(err::kDeviceUnusable, "no NVIDIA driver: the emulated host has none", "--device",
                    "install the driver (nvidia-smi shows it), or use --device cpu or emu");
}

Status EmulatedDriver::version(int* out) {
  *out = host_.version;
  return Status::ok;
}

Status EmulatedDriver::device_count(int* out) {
  *out = host_.devices;
  return Status::ok;
}

Status EmulatedDriver::describe(int device, DeviceFacts* out) {
  MC_ASSERT(device >= 0 && device < host_.devices);
  *out = {.kind = DeviceKind::emu,
          .major = host_.capability / 10,
          .minor = host_.capability % 10,
          .shared_max = kHopperShared,
          .processors = kProcessors};
  return Status::ok;
}

std::string EmulatedDriver::error_text(Status status) {
  switch (status) {
    case Status::ok: return "no error";
    case Status::rule_broken: return gpu_.queues_.failure() ? gpu_.queues_.failure()->text : "no broken rule";
    case Status::invalid_value: return refused_map_.empty() ? "invalid argument" : refused_map_;
    case Status::out_of_memory: return "out of memory";
    case Status::no_device: return "no CUDA-capable device is detected";
    case Status::invalid_context: return "invalid device context";
    case Status::invalid_handle: return "invalid resource handle";
    case Status::ecc_uncorrectable: return "uncorrectable ECC error encountered";
    case Status::nvlink_uncorrectable: return "uncorrectable NVLink error detected during the execution";
    case Status::not_found: return "named symbol not found";
    case Status::illegal_address: return "an illegal memory access was encountered";
    case Status::launch_timeout: return "the launch timed out and was terminated";
    case Status::hardware_stack_error: return "hardware stack error";
    case Status::illegal_instruction: return "an illegal instruction was encountered";
    case Status::misaligned_address: return "misaligned address";
    case Status::launch_failed: return "unspecified launch failure";
    case Status::capture_unsupported: return "operation not permitted when stream is capturing";
    case Status::capture_invalidated: return "operation failed due to a previous error during capture";
    default: return "unknown error";  // the emulator gives no other
  }
}

Status EmulatedDriver::retain(int) {
  context_.retain();
  return context_.enter();
}

Status EmulatedDriver::state() {
  if (host_.fault != Status::ok && gpu_.queues_.begun() > fault_at_) dead_ = true;
  if (dead_) return host_.fault;
  return gpu_.queues_.failure() ? Status::rule_broken : Status::ok;
}

// ---- memory ----

Status EmulatedDriver::memory(size_t* free, size_t* total) {
  MC_ASSERT_LE(used_, host_.memory_bytes);
  if (context_.current() != Status::ok) return Status::invalid_context;
  *total = host_.memory_bytes;
  *free = host_.memory_bytes - used_;
  (void)state();
  return dead_ ? host_.fault : Status::ok;
}

Status EmulatedDriver::allocate(uint64_t* address, size_t bytes, std::string_view what) {
  if (dead_) return host_.fault;
  const Status refused = first_refusal({context_.current(), handles_.refuse_in_capture()});
  if (refused != Status::ok) return refused;
  if (bytes > host_.memory_bytes - used_) return Status::out_of_memory;
  *address = gpu_.memory_.allocate(bytes, std::string(what));
  allocated_.emplace(*address, bytes);
  used_ += bytes;
  return Status::ok;
}

void EmulatedDriver::free(uint64_t address) {
  if (context_.current() != Status::ok || handles_.refuse_in_capture() != Status::ok) return;
  gpu_.queues_.finish_all();
  const auto found = allocated_.find(address);
  MC_ASSERT(found != allocated_.end());
  used_ -= found->second;
  allocated_.erase(found);
  gpu_.memory_.release(address);
}

Status EmulatedDriver::host_allocate(void** at, size_t bytes) {
  if (dead_) return host_.fault;
  const Status refused = first_refusal({context_.current(), handles_.refuse_in_capture()});
  if (refused != Status::ok) return refused;
  if (bytes > host_.host_bytes - pinned_bytes_) return Status::out_of_memory;
  std::vector<std::byte> storage(bytes);
  *at = storage.data();
  pinned_.emplace(storage.data(), std::move(storage));
  pinned_bytes_ += bytes;
  return Status::ok;
}

void EmulatedDriver::host_free(void* at) {
  if (context_.current() != Status::ok || handles_.refuse_in_capture() != Status::ok) return;
  gpu_.queues_.finish_all();
  const auto found = pinned_.find(static_cast<const std::byte*>(at));
  MC_ASSERT(found != pinned_.end());
  pinned_bytes_ -= found->second.size();
  pinned_.erase(found);
}

Status EmulatedDriver::host_access(const void* at, size_t bytes) {
  gpu_.queues_.touch_host(static_cast<const std::byte*>(at), bytes);
  return state();
}

// ---- streams and events ----

Status EmulatedDriver::stream_create(Handle* out) {
  if (context_.current() != Status::ok) return Status::invalid_context;
  *out = handles_.add_stream(gpu_.queues_.make_stream());
  return Status::ok;
}

void EmulatedDriver::stream_destroy(Handle stream) {
  uint32_t queue = 0;
  if (handles_.stream(stream, &queue) == Status::ok) gpu_.queues_.finish(queue);
  handles_.remove(stream);
}

Status EmulatedDriver::stream_finish(Handle stream) {
  uint32_t queue = 0;
  const Status refused = first_refusal({context_.current(), handles_.stream(stream, &queue)});
  if (refused != Status::ok) return refused;
  if (handles_.captures(stream)) return handles_.refuse_in_capture();
  gpu_.queues_.finish(queue);
  return state();
}

Status EmulatedDriver::event_create(Handle* out) {
  if (context_.current() != Status::ok) return Status::invalid_context;
  *out = handles_.add_event(gpu_.queues_.make_event());
  return Status::ok;
}

Status EmulatedDriver::event_record(Handle event, Handle stream) {
  uint32_t queue = 0, number = 0;
  const Status refused =
      first_refusal({context_.current(), handles_.stream(stream, &queue), handles_.event(event, &number)});
  if (refused != Status::ok) return refused;
  if (handles_.captures(stream)) return Status::capture_unsupported;
  gpu_.queues_.record(queue, number);
  return state();
}

Status EmulatedDriver::event_finish(Handle event) {
  uint32_t number = 0;
  const Status refused = first_refusal({context_.current(), handles_.event(event, &number)});
  if (refused != Status::ok) return refused;
  gpu_.queues_.finish_event(number);
  return state();
}

Status EmulatedDriver::stream_wait(Handle stream, Handle event) {
  uint32_t queue = 0, number = 0;
  const Status refused =
      first_refusal({context_.current(), handles_.stream(stream, &queue), handles_.event(event, &number)});
  if (refused != Status::ok) return refused;
  if (handles_.captures(stream)) return Status::capture_unsupported;
  gpu_.queues_.wait(queue, number);
  return state();
}

// ---- work ----

Status EmulatedDriver::submit(Handle stream, emu::StreamWork work) {
  uint32_t queue = 0;
  const Status refused = first_refusal({context_.current(), handles_.stream(stream, &queue), state()});
  if (refused != Status::ok) return refused;
  refused_map_.clear();
  if (handles_.captures(stream)) return handles_.note(stream, std::move(work));
  gpu_.queues_.submit(queue, std::move(work));
  return state();
}

Status EmulatedDriver::copy_in(uint64_t to, const void* from, size_t bytes, Handle stream) {
  if (gpu_.memory_.find(to, bytes) == nullptr) return Status::invalid_value;
  if (gpu_.copies_left_ && (*gpu_.copies_left_)-- == 0) {
    gpu_.copies_left_.reset();
    return Status::invalid_value;
  }
  return submit(stream, emu::CopyIn{to, static_cast<const std::byte*>(from), bytes});
}

Status EmulatedDriver::copy_out(void* to, uint64_t from, size_t bytes, Handle stream) {
  if (gpu_.memory_.find(from, bytes) == nullptr) return Status::invalid_value;
  return submit(stream, emu::CopyOut{static_cast<std::byte*>(to), from, bytes});
}

Status EmulatedDriver::copy_within(uint64_t to, uint64_t from, size_t bytes, Handle stream) {
  if (gpu_.memory_.find(to, bytes) == nullptr || gpu_.memory_.find(from, bytes) == nullptr)
    return Status::invalid_value;
  return submit(stream, emu::CopyWithin{to, from, bytes});
}

Status EmulatedDriver::fill(uint64_t to, uint8_t value, size_t bytes, Handle stream) {
  if (gpu_.memory_.find(to, bytes) == nullptr) return Status::invalid_value;
  return submit(stream, emu::FillBytes{to, std::byte{value}, bytes});
}

Status EmulatedDriver::find(Handle* function, const std::string& kernel) {
  const std::span<const emu::Kernel> all = emulated_kernels();
  const auto found = std::find_if(all.begin(), all.end(), [&](const emu::Kernel& k) { return k.name == kernel; });
  if (found == all.end()) return Status::not_found;
  *function = const_cast<emu::Kernel*>(&*found);
  return Status::ok;
}

Status EmulatedDriver::launch(Handle function, const LaunchShape& shape, std::span<const std::byte> params,
                              Handle stream) {
  const std::span<const emu::Kernel> all = emulated_kernels();
  const auto kernel = std::find_if(all.begin(), all.end(), [&](const emu::Kernel& k) { return &k == function; });
  if (kernel == all.end()) return Status::invalid_handle;
  refused_map_.clear();
  if (!can_launch(shape)) return Status::invalid_value;
  emu::KernelLaunch work{.kernel = &*kernel, .params = {params.begin(), params.end()}};
  work.launch.block = shape.threads;
  work.launch.dynamic_shared = shape.dynamic_shared;
  work.launch.cluster = kernel->cluster;
  work.launch.programmatic = shape.order == LaunchOrder::programmatic;
  std::copy(std::begin(shape.grid), std::end(shape.grid), work.launch.grid);
  return submit(stream, std::move(work));
}

Status EmulatedDriver::clusters_at_once(int* out, Handle function, const LaunchShape& shape) {
  const std::span<const emu::Kernel> all = emulated_kernels();
  const auto kernel = std::find_if(all.begin(), all.end(), [&](const emu::Kernel& k) { return &k == function; });
  if (kernel == all.end()) return Status::invalid_handle;
  if (!can_launch(shape)) return Status::invalid_value;
  const auto ctas = static_cast<int>(kernel->cluster), each = ctas_of_processor(shape);
  if (ctas > host_.partition) return Status::invalid_cluster_size;
  *out = kProcessors / host_.partition * (host_.partition * each / ctas) + kProcessors % host_.partition * each / ctas;
  return Status::ok;
}

Status EmulatedDriver::encode(EncodedMap* out, const TensorBox& box) {
  refused_map_ = refusal_of(box);
  if (!refused_map_.empty()) return Status::invalid_value;
  emu::TensorMapBytes map{.base = box.base, .rank = 4, .swizzled = 1};
  map.is_f32 = box.element == TensorElement::f32 ? 1 : 0;
  for (int d = 0; d < 4; ++d) {
    map.dims[d] = box.dims[d];
    map.strides[d] = d == 0 ? box.element_bytes() : box.strides[d];
    map.box[d] = box.box[d];
  }
  std::memcpy(out->bytes, &map, sizeof map);
  return Status::ok;
}

// ---- graphs ----

Status EmulatedDriver::capture_begin(Handle stream) {
  uint32_t queue = 0;
  const Status refused = first_refusal({context_.current(), handles_.stream(stream, &queue), state()});
  return refused == Status::ok ? handles_.capture_begin(stream) : refused;
}

Status EmulatedDriver::capture_end(Handle stream, Handle* graph) {
  uint32_t queue = 0;
  const Status refused = first_refusal({context_.current(), handles_.stream(stream, &queue)});
  if (refused != Status::ok) return refused;
  const Status ended = handles_.capture_end(stream, graph);
  if (ended != Status::ok || handles_.graphs() <= host_.graphs_max) return ended;
  handles_.remove(std::exchange(*graph, nullptr));
  return Status::out_of_memory;
}

Status EmulatedDriver::graph_launch(Handle graph, Handle stream) {
  const EmulatedHandles::Works* works = handles_.graph(graph);
  if (works == nullptr) return Status::invalid_value;
  for (const emu::StreamWork& work : *works)
    if (const Status status = submit(stream, work); status != Status::ok) return status;
  return state();
}

}  // namespace mc::gpu

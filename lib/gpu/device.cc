// The runtime: Device, its memory, streams, events and graphs, on the calls of gpu/driver.h. A status of the driver
// becomes an error here and nowhere else.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/units.h"
#include "gpu/failure.h"
#include "gpu/gpu.h"
#include "gpu/matmul.h"
#include "gpu/post_ring.h"

namespace mc::gpu {
namespace {

constexpr int kVersionMin = 13000;            // the first driver that compiles PTX 9.0
constexpr int kCapabilityMin = 80;            // mma.sync of bf16, cp.async
constexpr size_t kAllocationStep = 2 * kMiB;  // the driver hands out memory in pages of this size

/// The device does not work on after these: every later call of the process fails likewise. The driver adds numbers of
/// such errors from release to release, so those that concern one call are named and all others count as final.
constexpr bool is_final(Status status) {
  constexpr int kCaptureFirst = 900, kCaptureLast = 908;
  const int number = static_cast<int>(status);
  if (number >= kCaptureFirst && number <= kCaptureLast) return false;
  switch (status) {
    case Status::ok:
    case Status::invalid_value:
    case Status::out_of_memory:
    case Status::no_device:
    case Status::invalid_image:
    case Status::no_binary:
    case Status::invalid_ptx:
    case Status::no_jit_compiler:
    case Status::unsupported_ptx:
    case Status::not_found:
    case Status::not_ready:
    case Status::launch_resources: return false;
    default: return true;
  }
}

std::string number_of(Status status) {
  return " (CUDA error " + std::to_string(static_cast<int>(status)) + ")";
}

/// Whether a copy is inside a pinned buffer of `whole` bytes. `way`: "from" or "to".
Result<void> check_range(size_t whole, size_t offset, size_t bytes, std::string_view way) {
  if (bytes <= whole && offset <= whole - bytes) return {};
  return Error{Code::invalid, "a copy of " + std::to_string(bytes) + " bytes " + std::string(way) + " byte " +
                                  std::to_string(offset) + " of a pinned buffer of " + std::to_string(whole)};
}

Error no_such_device(const Driver& driver, int index, int count) {
  return user_error(err::kDeviceUnusable,
                    "no GPU " + std::to_string(index) + ": this host has " + std::to_string(count), "--device",
                    count > 0 ? "name one of " + driver.device_name(0) + " to " + driver.device_name(count - 1)
                              : "use --device cpu or emu");
}

}  // namespace

Device::Device(std::shared_ptr<Driver> driver, int index, std::string name)
    : driver_(std::move(driver)), index_(index), name_(std::move(name)), posts_(std::make_unique<PostRing>(*this)) {}

Result<std::unique_ptr<Device>> Device::open(std::shared_ptr<Driver> driver, int index) {
  MC_ASSERT(driver != nullptr && index >= 0);
  MC_CHECK(driver->load());
  auto device = std::unique_ptr<Device>(new Device(driver, index, driver->device_name(index)));
  int version = 0, count = 0;
  DeviceFacts facts;
  const Status started = driver->init();
  if (started != Status::ok && started != Status::no_device)
    return user_error(
        err::kDeviceUnusable,
        device->name_ + ": the driver does not start: " + driver->error_text(started) + number_of(started), "--device",
        "see what nvidia-smi says, or use --device cpu");
  MC_CHECK(device->check(driver->version(&version), "version of the driver"));
  if (version < kVersionMin)
    return user_error(err::kDriverTooOld, "the NVIDIA driver supports CUDA " + std::to_string(version / 1000) + "." +
                                              std::to_string(version % 1000 / 10) + ", the kernels need 13.0");
  if (started == Status::ok) MC_CHECK(device->check(driver->device_count(&count), "count of GPUs"));
  if (index >= count) return no_such_device(*driver, index, count);
  MC_CHECK(device->check(driver->describe(index, &facts), "properties"));
  device->facts_ = facts;
  if (device->capability() < kCapabilityMin)
    return user_error(err::kDeviceUnusable, device->name_ + " has compute capability " + std::to_string(facts.major) +
                                                "." + std::to_string(facts.minor) + ", the kernels need 8.0");
  if (!driver->lacking().empty())
    return user_error(err::kDeviceUnusable, device->name_ + ": " + std::string(driver->lacking()), "--device",
                      "build with the CUDA toolkit 13 (MC_CUDA=on), or use --device cpu");
  MC_CHECK(device->check(driver->retain(index), "context"));
  device->retained_ = true;
  MC_CHECK(device->check(device->driver().stream_create(&device->stream_), "stream"));
  return device;
}

Device::~Device() {
  if (!retained_) return;
  posts_.reset();  // while there is a context
  matmul_.reset();
  if (stream_ != nullptr) driver().stream_destroy(stream_);
  driver_->release(index_);
}

Driver& Device::driver() {
  entered_ = driver_->enter();
  return *driver_;
}

Result<void> Device::check(Status status, std::string_view what) {
  if (entered_ != Status::ok) status = entered_;  // the call went to another context, whatever it said
  if (status == Status::ok) return {};
  const std::string text = driver_->error_text(status);
  if (status == Status::rule_broken) {  // a report: the rule, then lines with the place and the seed
    const size_t line = std::min(text.find('\n'), text.size());
    Error error{Code::corrupt, text.substr(0, line)};
    if (line < text.size()) error.where = text.substr(text.find_first_not_of(" \n", line));
    if (!failure_) failure_ = error;
    return error;
  }
  const std::string full = name_ + ": " + std::string(what) + ": " + text + number_of(status);
  if (is_final(status)) {
    const Error failed = user_error(err::kDeviceFailed, full, name_, step_after_failure(kind(), status));
    if (!failure_) failure_ = failed;
    return failed;
  }
  if (status == Status::not_found) return Error{Code::unsupported, full};
  if (status == Status::out_of_memory) return Error{Code::no_space, full};
  if (status == Status::invalid_value || status == Status::capture_unsupported || status == Status::capture_invalidated)
    return Error{Code::invalid, full};
  return Error{Code::io, full};
}

Result<void> Device::load_kernels() {
  return check(driver().load_kernels(), "kernels");
}

Result<Device::Memory> Device::memory() {
  Memory out;
  MC_CHECK(check(driver().memory(&out.free, &out.total), "free memory"));
  MC_ASSERT_LE(out.free, out.total);
  return out;
}

Result<uint64_t> Device::allocate(size_t bytes, std::string_view what) {
  MC_ASSERT(bytes > 0);
  if (captures_ > 0)
    return Error{Code::invalid, name_ + ": " + std::string(what) + " is allocated while a stream captures a graph"};
  uint64_t address = 0;
  const Status status = driver().allocate(&address, bytes, what);
  if (status != Status::out_of_memory) {
    MC_CHECK(check(status, what));
    MC_ASSERT_EQ(address % 256, uint64_t{0});
    return address;
  }
  MC_TRY(now, memory());
  return user_error(err::kDeviceMemory,
                    name_ + ": " + std::string(what) + " needs " + human_bytes(bytes) + ", free are " +
                        human_bytes(now.free) + " of " + human_bytes(now.total) + "; at most " +
                        human_bytes(now.free / kAllocationStep * kAllocationStep) + " fit",
                    std::string(what));
}

void Device::release(uint64_t address) {
  if (captures_ > 0) return later_.push_back(address);
  driver().free(address);
}

void Device::release_host(void* at) {
  if (captures_ > 0) return host_later_.push_back(at);
  driver().host_free(at);
}

void Device::leave_capture() {
  MC_ASSERT_LT(0, captures_);
  if (--captures_ > 0) return;
  for (const uint64_t address : std::exchange(later_, {})) release(address);
  for (void* at : std::exchange(host_later_, {})) release_host(at);
}

Result<void> Device::write(uint64_t address, std::span<const std::byte> from) {
  if (from.empty()) return {};
  MC_CHECK(check(driver().copy_in(address, from.data(), from.size(), stream_), "copy to the GPU"));
  return finish();  // `from` is the caller's
}

Result<void> Device::read(uint64_t address, std::span<std::byte> to) {
  if (to.empty()) return {};
  MC_CHECK(check(driver().copy_out(to.data(), address, to.size(), stream_), "copy from the GPU"));
  return finish();
}

Result<void> Device::post(uint64_t address, std::span<const std::byte> from) {
  return posts_->post(address, from);
}

Result<void> Device::copy_in(uint64_t to, const PinnedBuffer& from, size_t offset, size_t bytes) {
  MC_CHECK(check_range(from.bytes_, offset, bytes, "from"));
  return check(driver().copy_in(to, from.at_ + offset, bytes, stream_), "copy to the GPU");
}

Result<void> Device::fill(uint64_t to, uint8_t value, size_t bytes) {
  return check(driver().fill(to, value, bytes, stream_), "fill on the GPU");
}

Result<void> Device::finish() {
  return check(driver().stream_finish(stream_), "work on the GPU");
}

Result<void> Device::record(Event& event) {
  MC_ASSERT(event.device_ == this);
  return check(driver().event_record(event.event_, stream_), "event");
}

Result<void> Device::wait(const Event& event) {
  MC_ASSERT(event.device_ == this);
  return check(driver().stream_wait(stream_, event.event_), "event");
}

Result<EncodedMap> Device::encode(const TensorBox& box) {
  EncodedMap out;
  MC_CHECK(check(driver().encode(&out, box), "tensor map"));
  return out;
}

Result<void> Device::launch(std::string_view kernel, const LaunchShape& shape, std::span<const std::byte> params) {
  return launch_on(stream_, kernel, shape, params);
}

Result<Handle> Device::function_of(std::string_view kernel) {
  if (const auto found = functions_.find(kernel); found != functions_.end()) return found->second;
  Handle function = nullptr;
  const Status status = driver().find(&function, std::string(kernel));
  if (status == Status::not_found)
    return Error{Code::unsupported, "no kernel '" + std::string(kernel) + "' in this build for " + name_};
  MC_CHECK(check(status, kernel));
  MC_ASSERT(function != nullptr);
  functions_.emplace(std::string(kernel), function);
  return function;
}

Result<int> Device::clusters_at_once(std::string_view kernel, const LaunchShape& shape) {
  if (shape.dynamic_shared > static_cast<uint32_t>(facts_.shared_max)) return 0;
  MC_TRY(function, function_of(kernel));
  const std::tuple key(function, shape.threads, shape.dynamic_shared);
  if (const auto found = clusters_.find(key); found != clusters_.end()) return found->second;
  int count = 0;
  const Status status = driver().clusters_at_once(&count, function, shape);
  if (status == Status::invalid_cluster_size) count = 0;
  if (status != Status::invalid_cluster_size) MC_CHECK(check(status, kernel));
  MC_ASSERT_LE(0, count);
  clusters_.emplace(key, count);
  return count;
}

Result<void> Device::launch_on(Handle stream, std::string_view kernel, const LaunchShape& shape,
                               std::span<const std::byte> params) {
  if (shape.dynamic_shared > static_cast<uint32_t>(facts_.shared_max))
    return Error{Code::unsupported, std::string(kernel) + " needs " + std::to_string(shape.dynamic_shared) +
                                        " bytes of shared memory, " + name_ + " has " +
                                        std::to_string(facts_.shared_max)};
  MC_TRY(function, function_of(kernel));
  if (notes_ != nullptr && stream == stream_) return notes_->add(function, shape, params), Result<void>{};
  return check(driver().launch(function, shape, params, stream), kernel);
}

// ---- noted kernels ----

namespace {

struct NotedLaunch {
  Handle function = nullptr;
  LaunchShape shape;
  uint64_t bytes = 0;  // of the parameters, which follow
};
static_assert(std::has_unique_object_representations_v<NotedLaunch>);

}  // namespace

void Device::Launches::add(Handle function, const LaunchShape& shape, std::span<const std::byte> params) {
  const NotedLaunch noted{function, shape, params.size()};
  bytes_.append(reinterpret_cast<const char*>(&noted), sizeof noted);
  bytes_.append(reinterpret_cast<const char*>(params.data()), params.size());
}

Result<void> Device::launch_noted(const Launches& launches) {
  for (std::string_view left = launches.bytes(); !left.empty();) {
    NotedLaunch noted;
    std::memcpy(&noted, left.data(), sizeof noted);
    left.remove_prefix(sizeof noted);
    const auto params = std::as_bytes(std::span(left.data(), noted.bytes));
    if (noted.function == nullptr) {
      LtCall call;
      MC_ASSERT_EQ(params.size(), sizeof call);
      std::memcpy(&call, params.data(), sizeof call);
      MC_CHECK(multiply_now(call));
    } else {
      MC_CHECK(check(driver().launch(noted.function, noted.shape, params, stream_), "kernel of a step"));
    }
    left.remove_prefix(noted.bytes);
  }
  return {};
}

Result<Graph> Device::capture(const Launches& launches) {
  MC_CHECK(check(driver().capture_begin(stream_), "graph"));
  ++captures_;
  const auto launched = launch_noted(launches);
  Graph out;
  const Status ended = driver().capture_end(stream_, &out.graph_);
  if (ended == Status::ok) out.device_ = this;
  leave_capture();
  MC_CHECK(launched);
  MC_CHECK(check(ended, "graph"));
  return out;
}

Result<void> Device::replay(const Graph& graph) {
  MC_ASSERT(graph.device_ == this);
  return check(driver().graph_launch(graph.graph_, stream_), "graph");
}

// ---- products ----

Result<void> Device::choose_matmul(MatmulChoice choice) {
  matmul_.reset();
  matmul_reason_ = "--kernels own";
  if (choice == MatmulChoice::own) return {};
  if (choice == MatmulChoice::automatic && !driver_->cublaslt().is_default()) {
    matmul_reason_ = "the default of the emulator";
    return {};
  }
  auto opened = Matmul::open(*this, choice == MatmulChoice::tuned);
  if (opened) {
    matmul_ = std::make_unique<Matmul>(*std::move(opened));
    matmul_reason_.clear();
    return {};
  }
  if (opened.error().code != Code::unsupported) return std::move(opened).error();
  matmul_reason_ = opened.error().what;
  if (choice == MatmulChoice::automatic) return {};
  return user_error(err::kKernelsUnusable, name_ + ": " + matmul_reason_, "--kernels",
                    "install cuBLASLt of the CUDA toolkit 12.9 or later, or use --kernels own");
}

/// A failed execution is an error of the device, which the driver names.
Result<void> Device::check_cublaslt(LtStatus status, std::string_view what) {
  MC_CHECK(check(status == LtStatus::rule_broken ? Status::rule_broken : Status::ok, what));
  if (status == LtStatus::ok) return {};
  if (status == LtStatus::execution_failed) MC_CHECK(check(driver().stream_finish(stream_), what));
  const std::string text = name_ + ": " + std::string(what) + ": " + std::string(name_of(status)) + " (" +
                           std::to_string(static_cast<int>(status)) + ")";
  if (status == LtStatus::alloc_failed) return Error{Code::no_space, text};
  if (status == LtStatus::invalid_value) return Error{Code::invalid, text};
  if (status == LtStatus::not_supported || status == LtStatus::arch_mismatch) return Error{Code::unsupported, text};
  return Error{Code::io, text};
}

Result<void> Device::multiply_now(const LtCall& call) {
  return check_cublaslt(driver().cublaslt().multiply(call, stream_), "cublasLtMatmul");
}

Result<void> Device::multiply(const LtCall& call) {
  if (notes_ == nullptr) return multiply_now(call);
  notes_->add(nullptr, {}, bytes_of(call));
  return {};
}

// ---- memory ----

Result<DeviceBuffer> DeviceBuffer::make(Device& device, size_t bytes, std::string_view what) {
  MC_TRY(address, device.allocate(bytes, what));
  DeviceBuffer out;
  out.device_ = &device;
  out.address_ = address;
  out.bytes_ = bytes;
  return out;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (device_ != nullptr) device_->release(address_);
}

Result<PinnedBuffer> PinnedBuffer::make(Device& device, size_t bytes, std::string_view what) {
  MC_ASSERT(bytes > 0);
  if (device.captures_ > 0)
    return Error{Code::invalid, std::string(what) + " is allocated while a stream captures a graph"};
  void* at = nullptr;
  const Status status = device.driver().host_allocate(&at, bytes);
  if (status == Status::out_of_memory)
    return Error{Code::no_space, std::string(what) + " needs " + human_bytes(bytes) +
                                     " of page-locked host memory, which the system does not have free"};
  MC_CHECK(device.check(status, what));
  PinnedBuffer out;
  out.device_ = &device;
  out.at_ = static_cast<std::byte*>(at);
  out.bytes_ = bytes;
  return out;
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(at_, other.at_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  if (device_ != nullptr) device_->release_host(at_);
}

Result<std::span<std::byte>> PinnedBuffer::view(size_t offset, size_t bytes) const {
  MC_ASSERT(device_ != nullptr && bytes <= bytes_ && offset <= bytes_ - bytes);
  MC_CHECK(device_->check(device_->driver().host_access(at_ + offset, bytes), "host memory"));
  return std::span(at_ + offset, bytes);
}

// ---- events and graphs ----

Result<Event> Event::make(Device& device) {
  Event out;
  MC_CHECK(device.check(device.driver().event_create(&out.event_), "event"));
  out.device_ = &device;
  return out;
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(event_, other.event_);
  return *this;
}

Event::~Event() {
  if (device_ != nullptr) device_->driver().event_destroy(event_);
}

Result<void> Event::finish() const {
  MC_ASSERT(device_ != nullptr);
  return device_->check(device_->driver().event_finish(event_), "event");
}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(graph_, other.graph_);
  return *this;
}

Graph::~Graph() {
  if (device_ != nullptr) device_->driver().graph_destroy(graph_);
}

// ---- streams ----

Result<Stream> Stream::make(Device& device) {
  Stream out;
  MC_CHECK(device.check(device.driver().stream_create(&out.stream_), "stream"));
  out.device_ = &device;
  return out;
}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(stream_, other.stream_);
  std::swap(captures_, other.captures_);
  return *this;
}

Stream::~Stream() {
  if (device_ == nullptr) return;
  device_->driver().stream_destroy(stream_);
  if (captures_) device_->leave_capture();
}

Result<void> Stream::copy_in(uint64_t to, const PinnedBuffer& from, size_t offset, size_t bytes) {
  MC_CHECK(check_range(from.bytes_, offset, bytes, "from"));
  return device_->check(device_->driver().copy_in(to, from.at_ + offset, bytes, stream_), "copy to the GPU");
}

Result<void> Stream::copy_out(PinnedBuffer& to, size_t offset, uint64_t from, size_t bytes) {
  MC_CHECK(check_range(to.bytes_, offset, bytes, "to"));
  return device_->check(device_->driver().copy_out(to.at_ + offset, from, bytes, stream_), "copy from the GPU");
}

Result<void> Stream::copy_within(uint64_t to, uint64_t from, size_t bytes) {
  return device_->check(device_->driver().copy_within(to, from, bytes, stream_), "copy on the GPU");
}

Result<void> Stream::fill(uint64_t to, uint8_t value, size_t bytes) {
  return device_->check(device_->driver().fill(to, value, bytes, stream_), "fill on the GPU");
}

Result<void> Stream::launch(std::string_view kernel, const LaunchShape& shape, std::span<const std::byte> params) {
  return device_->launch_on(stream_, kernel, shape, params);
}

Result<void> Stream::check_recording(std::string_view what) const {
  if (!captures_) return {};
  return Error{Code::invalid, std::string(what) + " while the stream captures a graph"};
}

Result<void> Stream::record(Event& event) {
  MC_ASSERT(event.device_ == device_);
  MC_CHECK(check_recording("an event is recorded"));
  return device_->check(device_->driver().event_record(event.event_, stream_), "event");
}

Result<void> Stream::wait(const Event& event) {
  MC_ASSERT(event.device_ == device_);
  MC_CHECK(check_recording("the stream waits for an event"));
  return device_->check(device_->driver().stream_wait(stream_, event.event_), "event");
}

Result<void> Stream::replay(const Graph& graph) {
  MC_ASSERT(graph.device_ == device_);
  MC_CHECK(check_recording("a graph is replayed"));
  return device_->check(device_->driver().graph_launch(graph.graph_, stream_), "graph");
}

Result<void> Stream::finish() {
  MC_CHECK(check_recording("the host waits"));
  return device_->check(device_->driver().stream_finish(stream_), "work on the GPU");
}

Result<void> Stream::begin_capture() {
  MC_CHECK(check_recording("a capture begins"));
  MC_CHECK(device_->check(device_->driver().capture_begin(stream_), "graph"));
  captures_ = true;
  ++device_->captures_;
  return {};
}

Result<Graph> Stream::end_capture() {
  if (!captures_) return Error{Code::invalid, "a capture ends that did not begin"};
  captures_ = false;
  Graph out;
  const Status ended = device_->driver().capture_end(stream_, &out.graph_);
  device_->leave_capture();
  MC_CHECK(device_->check(ended, "graph"));
  out.device_ = device_;
  return out;
}

}  // namespace mc::gpu

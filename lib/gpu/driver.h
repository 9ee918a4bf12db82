// The calls of the CUDA driver API that this toolkit makes, with the names, arguments and numbers of that API (CUDA
// driver API 13.0). Two drivers implement them: libcuda.so.1 of the host, and the emulator (gpu/emulated.h). Device and
// its streams (gpu/gpu.h) are written once on this interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gpu/cublaslt.h"

namespace mc::gpu {

/// A CUresult. The values are the driver API's, except rule_broken.
enum class Status : int {
  ok = 0,
  invalid_value = 1,
  out_of_memory = 2,
  no_device = 100,
  invalid_image = 200,
  invalid_context = 201,
  no_binary = 209,
  ecc_uncorrectable = 214,
  invalid_ptx = 218,
  nvlink_uncorrectable = 220,
  no_jit_compiler = 221,
  unsupported_ptx = 222,
  invalid_handle = 400,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  launch_resources = 701,
  launch_timeout = 702,
  hardware_stack_error = 714,
  illegal_instruction = 715,
  misaligned_address = 716,
  launch_failed = 719,
  capture_unsupported = 900,
  capture_invalidated = 901,
  invalid_cluster_size = 912,
  unknown = 999,
  rule_broken = 10000,  // the emulator's own: a kernel or a stream broke one of its rules
};

/// A stream, event, function or graph of the driver.
using Handle = void*;

/// When a grid of a stream may start.
enum class LaunchOrder : uint32_t {
  serial,        // when the work before it has ended
  programmatic,  // when the grid before it says so (griddepcontrol.launch_dependents), or has ended
};

struct LaunchShape {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t threads = 128;
  uint32_t dynamic_shared = 0;  // bytes of a CTA
  LaunchOrder order = LaunchOrder::serial;
};

enum class TensorElement : uint8_t { bf16, f32 };
/// A tensor in device memory, and the box of it that one bulk copy moves; dimension 0 is contiguous. Rows of the box
/// are swizzled by 128 bytes in shared memory. A chip's cuTensorMapEncodeTiled takes the same fields.
struct TensorBox {
  uint64_t base = 0;
  uint64_t dims[4] = {};     // elements
  uint64_t strides[4] = {};  // bytes; [0] is an element's
  uint32_t box[4] = {};      // elements; box[0] are 128 bytes
  TensorElement element = TensorElement::bf16;
  uint32_t element_bytes() const { return element == TensorElement::f32 ? 4 : 2; }
};
struct EncodedMap {
  std::byte bytes[128] = {};  // a kernel parameter aligned to 64
};

/// The processor that computes: the CPU, a GPU of the host through the NVIDIA driver, or a GPU of the emulator.
enum class DeviceKind : uint8_t { cpu, cuda, emu };

/// Properties of a device.
struct DeviceFacts {
  DeviceKind kind = DeviceKind::cuda;  // decisions go by it, and not by the device's name, which is for people
  int major = 0, minor = 0;  // compute capability
  int shared_max = 0;        // dynamic shared memory of a CTA at most, bytes
  int processors = 0;        // multiprocessors
  int clock_khz = 0;         // peak clock; 0: the device has none
};

/// One host's GPUs. Calls after retain() are about that device, on the thread that called enter() last.
class Driver {
 public:
  virtual ~Driver() = default;

  /// Code::unsupported with MC7002 when the host has no driver, or one that lacks a function.
  virtual Result<void> load() = 0;
  virtual Status init() = 0;
  virtual Status version(int* out) = 0;
  virtual Status device_count(int* out) = 0;
  /// The name of device `index` in --device.
  virtual std::string device_name(int index) const = 0;
  virtual Status describe(int device, DeviceFacts* out) = 0;
  virtual Status retain(int device) = 0;
  virtual void release(int device) = 0;
  /// The calling thread uses the retained device from now on.
  virtual Status enter() = 0;
  /// The driver's text of a status.
  virtual std::string error_text(Status status) = 0;
  /// The reason that this build's kernels cannot run on this driver at all; empty: they can.
  virtual std::string_view lacking() const { return ""; }

  virtual Status memory(size_t* free, size_t* total) = 0;
  virtual Status allocate(uint64_t* address, size_t bytes, std::string_view what) = 0;
  /// Waits for all work of the device.
  virtual void free(uint64_t address) = 0;
  virtual Status host_allocate(void** at, size_t bytes) = 0;
  virtual void host_free(void* at) = 0;
  /// Whether the host may touch pinned bytes now. A chip cannot tell; the emulator refuses while a copy owns them.
  virtual Status host_access(const void* at, size_t bytes) = 0;

  virtual Status stream_create(Handle* out) = 0;
  virtual void stream_destroy(Handle stream) = 0;
  virtual Status stream_finish(Handle stream) = 0;
  virtual Status event_create(Handle* out) = 0;
  virtual void event_destroy(Handle event) = 0;
  virtual Status event_record(Handle event, Handle stream) = 0;
  virtual Status event_finish(Handle event) = 0;
  virtual Status stream_wait(Handle stream, Handle event) = 0;

  virtual Status copy_in(uint64_t to, const void* from, size_t bytes, Handle stream) = 0;
  virtual Status copy_out(void* to, uint64_t from, size_t bytes, Handle stream) = 0;
  virtual Status copy_within(uint64_t to, uint64_t from, size_t bytes, Handle stream) = 0;
  virtual Status fill(uint64_t to, uint8_t value, size_t bytes, Handle stream) = 0;
  /// Compiles all kernels that the device can run. Without this call a kernel's first launch waits for it.
  virtual Status load_kernels() { return Status::ok; }
  /// Status::not_found when the build has no such kernel for the device.
  virtual Status find(Handle* function, const std::string& kernel) = 0;
  virtual Status launch(Handle function, const LaunchShape& shape, std::span<const std::byte> params,
                        Handle stream) = 0;
  /// How many clusters of a function whose CTAs form clusters the device runs at the same time. The shape has the
  /// threads and shared memory of a CTA. Status::invalid_cluster_size: its multiprocessors form none so large.
  virtual Status clusters_at_once(int* out, Handle function, const LaunchShape& shape) = 0;
  virtual Status encode(EncodedMap* out, const TensorBox& box) = 0;

  virtual Status capture_begin(Handle stream) = 0;
  virtual Status capture_end(Handle stream, Handle* graph) = 0;
  virtual Status graph_launch(Handle graph, Handle stream) = 0;
  virtual void graph_destroy(Handle graph) = 0;

  /// The library of matrix products beside this driver, after load(). The library itself need not be there.
  CublasLt& cublaslt() { return *cublaslt_; }

 protected:
  std::unique_ptr<CublasLt> cublaslt_;
};

/// The driver of this host, libcuda.so.1. It is loaded when a device is opened, so one program serves hosts with and
/// without a GPU.
std::shared_ptr<Driver> host_driver();

}  // namespace mc::gpu

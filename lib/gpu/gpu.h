// Devices that run this toolkit's kernels: `emu`, the emulator of lib/gpu/emu, and `cuda:N` through the CUDA driver.
// One runtime serves both: memory, streams, events and graphs are written once on gpu/driver.h. Errors are values. A
// buffer, stream, event or graph frees what it holds and must not outlive its device.
//
//   MC_TRY(device, open_device(*parse_device("emu")));             // gpu/devices.h
//   MC_TRY(x, DeviceBuffer::make(*device, bytes, "x"));
//   MC_TRY(staging, PinnedBuffer::make(*device, bytes, "staging"));
//   MC_TRY(load, Stream::make(*device));
//   MC_TRY(loaded, Event::make(*device));
//   load.copy_in(x.address(), staging, 0, bytes);
//   load.record(loaded);
//   compute.wait(loaded);                                           // without it the emulator stops the run
//   compute.launch("rms_norm", shape, bytes_of(args));
//   compute.finish();                                               // errors of queued work show here
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "gpu/driver.h"

namespace mc::gpu {

class DeviceGroup;
class Event;
class Graph;
class Matmul;
class PinnedBuffer;
class PostRing;
enum class MatmulChoice : uint8_t;

/// One device, used by one thread at a time.
class Device {
 public:
  /// Device number `index` of a driver. MC7002: no driver, no such device, or kernels that it cannot run; MC7004: the
  /// driver is too old.
  static Result<std::unique_ptr<Device>> open(std::shared_ptr<Driver> driver, int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// "emu", "cuda:0"
  std::string_view name() const { return name_; }
  DeviceKind kind() const { return facts_.kind; }
  /// Compute capability times 10; code for sm_90a runs on 90 alone.
  int capability() const { return 10 * facts_.major + facts_.minor; }
  const DeviceFacts& facts() const { return facts_; }
  /// The error after which the device does not work on: every later call fails likewise. Empty while it works.
  const std::optional<Error>& failure() const { return failure_; }
  /// Compiles all kernels now, so that no request waits for it and no later allocation competes with it.
  Result<void> load_kernels();
  struct Memory {
    size_t free = 0, total = 0;
  };
  Result<Memory> memory();

  /// MC7005 names `what`, the bytes that are needed and free, and the largest size that fits.
  Result<uint64_t> allocate(size_t bytes, std::string_view what);
  /// Waits for all work of the device. While a stream captures, the memory is freed at the end of the capture.
  void release(uint64_t address);
  /// Copies on the device's own stream, and waits for the end of the copy.
  Result<void> write(uint64_t address, std::span<const std::byte> from);
  Result<void> read(uint64_t address, std::span<std::byte> to);
  // The calls from here to replay() queue work on the device's own stream and return, as the calls of Stream do.
  /// Copies bytes, which the caller may change when the call returns.
  Result<void> post(uint64_t address, std::span<const std::byte> from);
  Result<void> copy_in(uint64_t to, const PinnedBuffer& from, size_t offset, size_t bytes);
  Result<void> fill(uint64_t to, uint8_t value, size_t bytes);
  /// Queues a kernel on the device's own stream. `params` are the bytes of its parameters.
  Result<void> launch(std::string_view kernel, const LaunchShape& shape, std::span<const std::byte> params);
  /// How many clusters of a kernel whose CTAs form clusters the device runs at the same time; 0: it has no room for
  /// one. The shape has the threads and shared memory of a CTA.
  Result<int> clusters_at_once(std::string_view kernel, const LaunchShape& shape);
  /// Kernels and products that were noted instead of queued, in their order.
  class Launches {
   public:
    void clear() { bytes_.clear(); }
    /// Equal bytes: equal kernels, grids and parameters.
    const std::string& bytes() const { return bytes_; }

   private:
    friend class Device;
    /// Without a function the parameters are those of a product of cuBLASLt.
    void add(Handle function, const LaunchShape& shape, std::span<const std::byte> params);
    std::string bytes_;
  };
  /// From here on launch() adds kernels to `to`. Null: it queues them again.
  void note_launches(Launches* to) { notes_ = to; }
  Launches* notes() const { return notes_; }
  /// Queues noted kernels.
  Result<void> launch_noted(const Launches& launches);
  /// Makes a graph of noted kernels. Code::no_space: the device has no memory for it.
  Result<Graph> capture(const Launches& launches);
  Result<void> replay(const Graph& graph);
  /// Decides what computes matrix products (gpu/matmul.h); until then it is the own kernels. MC7003 with the reason
  /// when cuBLASLt is asked for by name and cannot be used.
  Result<void> choose_matmul(MatmulChoice choice);
  /// Null: the own kernels compute products.
  Matmul* matmul() const { return matmul_.get(); }
  /// Why they do: "no cuBLASLt was found: ..."
  const std::string& matmul_reason() const { return matmul_reason_; }
  /// Waits for what was queued on the device's own stream.
  Result<void> finish();
  /// As Stream::record() and Stream::wait(), of the device's own stream.
  Result<void> record(Event& event);
  Result<void> wait(const Event& event);
  /// The kernel parameter that describes a tensor. Code::invalid names the rule that the driver would refuse.
  Result<EncodedMap> encode(const TensorBox& box);

 private:
  friend class DeviceBuffer;
  friend class DeviceGroup;
  friend class PinnedBuffer;
  friend class Stream;
  friend class Event;
  friend class Graph;
  friend class Matmul;
  Device(std::shared_ptr<Driver> driver, int index, std::string name);
  Result<void> check(Status status, std::string_view what);
  /// The driver, with the device current on this thread. Each call makes it so: another library of the process may
  /// have left its own context current since the last one, and a new thread may have an old thread's number.
  Driver& driver();
  void release_host(void* at);
  /// One capture less: what was to be freed meanwhile is freed when none is left.
  void leave_capture();
  Result<Handle> function_of(std::string_view kernel);
  Result<void> check_cublaslt(LtStatus status, std::string_view what);
  /// Queues a product of cuBLASLt, or notes it as launch() does.
  Result<void> multiply(const LtCall& call);
  Result<void> multiply_now(const LtCall& call);
  Result<void> launch_on(Handle stream, std::string_view kernel, const LaunchShape& shape,
                         std::span<const std::byte> params);

  std::shared_ptr<Driver> driver_;
  int index_;
  std::string name_;
  DeviceFacts facts_;
  bool retained_ = false;
  Handle stream_ = nullptr;
  std::optional<Error> failure_;
  Status entered_ = Status::ok;  // of the last call that made the device current
  int captures_ = 0;             // streams of the device that capture
  std::vector<uint64_t> later_;  // memory to free after the captures
  std::vector<void*> host_later_;
  std::map<std::string, Handle, std::less<>> functions_;
  std::map<std::tuple<Handle, uint32_t, uint32_t>, int> clusters_;  // at once, by function, threads and shared memory
  std::unique_ptr<PostRing> posts_;
  Launches* notes_ = nullptr;
  std::unique_ptr<Matmul> matmul_;
  std::string matmul_reason_ = "no other choice was made";
};

/// Device memory that frees itself.
class DeviceBuffer {
 public:
  static Result<DeviceBuffer> make(Device& device, size_t bytes, std::string_view what);
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();
  uint64_t address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  uint64_t address_ = 0;
  size_t bytes_ = 0;
};

/// Page-locked host memory, the host's side of asynchronous copies.
class PinnedBuffer {
 public:
  /// Code::no_space names `what` and the size.
  static Result<PinnedBuffer> make(Device& device, size_t bytes, std::string_view what);
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();
  size_t bytes() const { return bytes_; }
  /// The bytes, for the host to read and write until the next copy is queued on them. The emulator stops the run when
  /// an unfinished copy owns some of them.
  Result<std::span<std::byte>> view() const { return view(0, bytes_); }
  Result<std::span<std::byte>> view(size_t offset, size_t bytes) const;

 private:
  friend class Device;
  friend class Stream;
  Device* device_ = nullptr;
  std::byte* at_ = nullptr;
  size_t bytes_ = 0;
};

/// A point in a stream that other streams and the host wait for.
class Event {
 public:
  static Result<Event> make(Device& device);
  Event() = default;
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept;
  ~Event();
  /// The host waits for the point that was recorded last; at once when none was.
  Result<void> finish() const;

 private:
  friend class Device;
  friend class Stream;
  Device* device_ = nullptr;
  Handle event_ = nullptr;
};

/// Launches and copies that are queued as one.
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& other) noexcept { *this = std::move(other); }
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

 private:
  friend class Device;
  friend class Stream;
  Device* device_ = nullptr;
  Handle graph_ = nullptr;
};

/// Work that runs in the order in which it was queued. Different streams have no order but that of events.
class Stream {
 public:
  static Result<Stream> make(Device& device);
  Stream() = default;
  Stream(Stream&& other) noexcept { *this = std::move(other); }
  Stream& operator=(Stream&& other) noexcept;
  /// Work that is still queued runs to its end.
  ~Stream();

  // Each call queues and returns; an error of the device may be of earlier work. Ranges outside a pinned buffer are
  // Code::invalid.
  Result<void> copy_in(uint64_t to, const PinnedBuffer& from, size_t offset, size_t bytes);
  Result<void> copy_out(PinnedBuffer& to, size_t offset, uint64_t from, size_t bytes);
  Result<void> copy_within(uint64_t to, uint64_t from, size_t bytes);
  Result<void> fill(uint64_t to, uint8_t value, size_t bytes);
  Result<void> launch(std::string_view kernel, const LaunchShape& shape, std::span<const std::byte> params);
  Result<void> record(Event& event);
  /// Later work of this stream starts when the point that `event` recorded last is reached.
  Result<void> wait(const Event& event);
  Result<void> replay(const Graph& graph);
  /// The host waits for all work of this stream.
  Result<void> finish();

  /// From here to end_capture() copies, fills and launches are noted and not queued. Other calls are Code::invalid
  /// meanwhile. For tests: decode steps are captured on the device's own stream (gpu/launch_graphs.h).
  Result<void> begin_capture();
  /// The graph of what was noted. For tests, likewise.
  Result<Graph> end_capture();

 private:
  Result<void> check_recording(std::string_view what) const;

  Device* device_ = nullptr;
  Handle stream_ = nullptr;
  bool captures_ = false;
};

/// An address of the device as a kernel takes it. It is never followed on the host.
template <class T>
T* device_pointer(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

/// The bytes of a kernel's parameter, as long as this object lives. Bytes between members are zero where the compiler
/// can make them so: equal parameters then have equal bytes, by which LaunchGraphs knows them again.
template <class T>
class ParamBytes {
 public:
  explicit ParamBytes(const T& value) : value_(value) {
#if defined(__GNUC__) && !defined(__clang__)
    __builtin_clear_padding(&value_);
#endif
  }
  operator std::span<const std::byte>() const {
    return std::as_bytes(std::span(&value_, 1));
  }
  std::span<const std::byte> first(size_t count) const {
    return std::as_bytes(std::span(&value_, 1)).first(count);
  }

 private:
  T value_;
};
template <class T>
ParamBytes<T> bytes_of(const T& value) {
  return ParamBytes<T>(value);
}

}  // namespace mc::gpu

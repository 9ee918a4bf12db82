// Devices that run this toolkit's kernels: `emu`, the emulator of lib/gpu/emu, and `cuda:N` through the CUDA driver.
// Errors are values; a Buffer frees its memory and must not outlive its device.
//
//   Emulator device({.seed = 7});
//   auto q = Buffer::make(device, bytes, "q");
//   device.write(q->address(), host_bytes);
//   device.launch("attention_decode_d128", {.grid = {splits, kv_heads, 1}}, bytes_of(args));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/emu/emu.h"

namespace mc::gpu {

struct LaunchShape {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t threads = 128;
  uint32_t dynamic_shared = 0;
};

/// A tensor of 2-byte elements in device memory, and the box of it that one bulk copy fetches; dimension 0 is
/// contiguous. Rows of the box are swizzled by 128 bytes in shared memory. A chip's cuTensorMapEncodeTiled takes the
/// same fields.
struct TensorBox {
  uint64_t base = 0;
  uint64_t dims[4] = {};     // elements
  uint64_t strides[4] = {};  // bytes; [0] is 2
  uint32_t box[4] = {};      // elements; box[0] is 64
};
struct EncodedMap {
  std::byte bytes[128] = {};  // a kernel parameter aligned to 64
};

/// One device, used by one thread.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;  // "emu"
  /// Compute capability times 10; code for sm_90a runs on 90 alone.
  virtual int capability() const = 0;
  virtual Result<uint64_t> allocate(size_t bytes, std::string_view what) = 0;
  virtual void release(uint64_t address) = 0;
  virtual Result<void> write(uint64_t address, std::span<const std::byte> from) = 0;
  virtual Result<void> read(uint64_t address, std::span<std::byte> to) = 0;
  /// The kernel parameter that describes a tensor. Code::invalid names the rule that the driver would refuse.
  virtual Result<EncodedMap> encode(const TensorBox& box) = 0;
  /// Runs a kernel after what was launched before. `params` are the bytes of its parameters.
  virtual Result<void> launch(std::string_view kernel, const LaunchShape& shape, std::span<const std::byte> params) = 0;
};

/// Device memory that frees itself.
class Buffer {
 public:
  static Result<Buffer> make(Device& device, size_t bytes, std::string_view what);
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  uint64_t address() const { return address_; }

 private:
  Device* device_ = nullptr;
  uint64_t address_ = 0;
};

/// The emulator with all kernels of this build.
class Emulator : public Device {
 public:
  explicit Emulator(const emu::Options& options) : options_(options) {}

  std::string_view name() const override { return "emu"; }
  int capability() const override { return 90; }
  Result<uint64_t> allocate(size_t bytes, std::string_view what) override;
  void release(uint64_t address) override;
  Result<void> write(uint64_t address, std::span<const std::byte> from) override;
  Result<void> read(uint64_t address, std::span<std::byte> to) override;
  Result<EncodedMap> encode(const TensorBox& box) override;
  /// Code::corrupt when a rule is broken: the text is the emulator's report.
  Result<void> launch(std::string_view kernel, const LaunchShape& shape, std::span<const std::byte> params) override;

  void set_options(const emu::Options& options) { options_ = options; }
  /// The kernel that a mutation or a fault of the options is for; the others run without. Empty: all have it.
  void set_mutated(std::string_view kernel) { mutated_ = kernel; }
  const emu::Counters& counters() const { return counters_; }
  /// The rule that the last failed launch broke.
  const std::string& broken_rule() const { return broken_rule_; }

 private:
  emu::Options options_;
  std::string mutated_;
  emu::DeviceMemory memory_;
  emu::Counters counters_;
  std::string broken_rule_;
};

/// GPU number `index` of this host. Code::unsupported without a driver, or with one that is too old; Code::not_found
/// for a wrong index. Launches queue; an error of the device shows at the next read.
Result<std::unique_ptr<Device>> open_cuda(int index);

/// The bytes of a kernel's parameter.
template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace mc::gpu

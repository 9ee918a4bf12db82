// The emulated device: the table of kernels, and the memory and options of their runs.
#include <algorithm>
#include <cstring>

#include "gpu/emu/tensor_map.h"
#include "gpu/gpu.h"
#include "gpu/kernels/kernels.h"

namespace mc::gpu {
namespace {

constexpr size_t kMemoryMax = size_t{4} << 30;  // of one allocation

}  // namespace

Result<Buffer> Buffer::make(Device& device, size_t bytes, std::string_view what) {
  MC_TRY(address, device.allocate(bytes, what));
  Buffer out;
  out.device_ = &device;
  out.address_ = address;
  return out;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  return *this;
}

Buffer::~Buffer() {
  if (device_ != nullptr) device_->release(address_);
}

Result<uint64_t> Emulator::allocate(size_t bytes, std::string_view what) {
  if (bytes > kMemoryMax) return Error{Code::no_space, std::string(what) + " needs more than 4 GiB of the emulator"};
  return memory_.allocate(bytes, std::string(what));
}

void Emulator::release(uint64_t address) {
  memory_.release(address);
}

Result<void> Emulator::write(uint64_t address, std::span<const std::byte> from) {
  if (memory_.find(address, from.size()) == nullptr) return Error{Code::invalid, "a write outside device memory"};
  memory_.write(address, from);
  return {};
}

Result<void> Emulator::read(uint64_t address, std::span<std::byte> to) {
  if (memory_.find(address, to.size()) == nullptr) return Error{Code::invalid, "a read outside device memory"};
  memory_.read(address, to);
  return {};
}

/// The rules are those of cuTensorMapEncodeTiled (CUDA driver API 13.0, tensor maps).
Result<EncodedMap> Emulator::encode(const TensorBox& box) {
  emu::TensorMapBytes map{.base = box.base, .rank = 4, .swizzled = 1};
  const auto refuse = [](std::string text) { return Error{Code::invalid, "tensor map: " + std::move(text)}; };
  if (box.base % 16 != 0) return refuse("the base is not aligned to 16 bytes");
  if (box.box[0] * 2 != 128) return refuse("a row of the box is not 128 bytes");
  for (int d = 0; d < 4; ++d) {
    if (box.dims[d] == 0 || box.dims[d] > uint64_t{1} << 32) return refuse("an extent is not 1 to 2^32");
    if (box.box[d] == 0 || box.box[d] > 256) return refuse("an extent of the box is not 1 to 256");
    if (d > 0 && (box.strides[d] % 16 != 0 || box.strides[d] >= uint64_t{1} << 40))
      return refuse("a stride of " + std::to_string(box.strides[d]) + " bytes is no multiple of 16 below 2^40");
    map.dims[d] = box.dims[d];
    map.strides[d] = d == 0 ? 2 : box.strides[d];
    map.box[d] = box.box[d];
  }
  EncodedMap out;
  std::memcpy(out.bytes, &map, sizeof map);
  return out;
}

Result<void> Emulator::launch(std::string_view kernel, const LaunchShape& shape, std::span<const std::byte> params) {
  const std::span<const emu::Kernel> all = emulated_kernels();
  const auto found = std::find_if(all.begin(), all.end(), [&](const emu::Kernel& k) { return k.name == kernel; });
  if (found == all.end()) return Error{Code::not_found, "no kernel '" + std::string(kernel) + "' in this build"};
  emu::Launch launch{.block = shape.threads, .dynamic_shared = shape.dynamic_shared, .params = params};
  std::copy(std::begin(shape.grid), std::end(shape.grid), launch.grid);
  emu::Options options = options_;
  if (!mutated_.empty() && mutated_ != kernel) options.mutation = nullptr, options.sites = nullptr, options.fault = 0;
  const emu::Report report = emu::run(*found, memory_, launch, options);
  counters_.add(report.counters);
  if (!report.failure) return {};
  broken_rule_ = report.failure->rule;
  const std::string& text = report.failure->text;
  const size_t line = std::min(text.find('\n'), text.size());
  Error error{Code::corrupt, text.substr(0, line)};
  if (line < text.size()) error.where = text.substr(line + 3);
  return error;
}

}  // namespace mc::gpu

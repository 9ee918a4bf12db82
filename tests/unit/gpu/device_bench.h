// A device on the emulator, and what a test puts into its memory.
#pragma once

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/rng.h"
#include "gpu/emulated.h"
#include "gpu/gpu.h"
#include "test.h"

namespace mc::gpu::tested {

struct Bench {
  std::shared_ptr<EmulatedDriver> driver = std::make_shared<EmulatedDriver>();
  std::unique_ptr<Device> device;
  std::vector<DeviceBuffer> buffers;

  explicit Bench(const emu::Options& options = {}) {
    driver->gpu().set_options(options);
    auto opened = Device::open(driver, 0);
    REQUIRE_OK(opened);
    device = std::move(*opened);
  }
  template <class T>
  T* put(const std::vector<T>& values) {
    auto buffer = DeviceBuffer::make(*device, values.size() * sizeof(T), "test");
    REQUIRE_OK(buffer);
    REQUIRE_OK(device->write(buffer->address(), std::as_bytes(std::span(values))));
    buffers.push_back(std::move(*buffer));
    return reinterpret_cast<T*>(buffers.back().address());
  }
  template <class T>
  std::vector<T> get(const T* at, size_t count) {
    std::vector<T> out(count);
    REQUIRE_OK(device->read(reinterpret_cast<uint64_t>(at), std::as_writable_bytes(std::span(out))));
    return out;
  }
  template <class Args>
  void launch(std::string_view kernel, const LaunchShape& shape, const Args& args) {
    REQUIRE_OK(device->launch(kernel, shape, bytes_of(args)));
  }
};

inline std::vector<float> normal(Rng& rng, size_t count) {
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(rng.normal());
  return out;
}
inline std::vector<uint16_t> rounded(const std::vector<float>& values) {
  std::vector<uint16_t> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), f32_to_bf16);
  return out;
}

}  // namespace mc::gpu::tested

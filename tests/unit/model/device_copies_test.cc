// Layer-wise copies beside the kernels of an emulated device, under every policy: each layer's kernel sees what was
// loaded for it, each store what the kernel wrote, and a missing wait stops the run.
#include "model/device_copies.h"

#include <algorithm>

#include "gpu/emulated.h"
#include "gpu/kernels/layer.h"
#include "test.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
namespace device_copies_test {

using namespace mc;
using namespace mc::model;

namespace {

constexpr uint32_t kLayers = 5;
constexpr size_t kFloats = 64, kBytes = kFloats * 4;
constexpr gpu::emu::Policy kAll[] = {gpu::emu::Policy::in_order, gpu::emu::Policy::random, gpu::emu::Policy::sticky};

/// One array a layer on the host and on the device. The kernel of a layer adds 1 to 64 to the layer's array.
struct Program {
  std::shared_ptr<gpu::EmulatedDriver> driver = std::make_shared<gpu::EmulatedDriver>();
  std::unique_ptr<gpu::Device> device;
  gpu::DeviceBuffer steps, arrays;
  std::vector<float> host = std::vector<float>(kLayers * kFloats), out = host;

  Program(gpu::emu::Policy policy, uint64_t seed) {
    driver->gpu().set_options({.seed = seed, .policy = policy});
    device = std::move(*gpu::Device::open(driver, 0));
    steps = std::move(*gpu::DeviceBuffer::make(*device, kBytes, "steps"));
    arrays = std::move(*gpu::DeviceBuffer::make(*device, kLayers * kBytes, "arrays"));
    REQUIRE_OK(device->write(arrays.address(), std::as_bytes(std::span(host))));  // zeros
    std::vector<float> values(kFloats);
    for (size_t i = 0; i < kFloats; ++i) values[i] = static_cast<float>(i + 1);
    REQUIRE_OK(device->write(steps.address(), std::as_bytes(std::span(values))));
  }
  uint64_t array(uint32_t layer) const { return arrays.address() + layer * kBytes; }

  Result<void> load(DeviceCopies& copies, uint32_t layer) {
    if (layer == kLayers) return {};
    const DeviceCopies::Load half[] = {
        {reinterpret_cast<std::byte*>(&host[layer * kFloats]), array(layer), kBytes / 2},
        {reinterpret_cast<std::byte*>(&host[layer * kFloats + kFloats / 2]), array(layer) + kBytes / 2, kBytes / 2}};
    return copies.load(layer, half);
  }
  Result<void> compute(uint32_t layer) {
    const gpu::AddArgs add{.x = gpu::device_pointer<const float>(steps.address()),
                           .y = gpu::device_pointer<float>(array(layer)),
                           .columns = kFloats};
    return device->launch("add_to_rows", {}, gpu::bytes_of(add));
  }
  /// A pass over layers 0 to `end` - 1, whose stores are finished a layer later. `unawaited`: its load is not waited
  /// for.
  Result<void> pass(DeviceCopies& copies, uint32_t end = kLayers, uint32_t unawaited = kLayers) {
    MC_CHECK(copies.begin());
    MC_CHECK(load(copies, 0));
    for (uint32_t layer = 0; layer < end; ++layer) {
      if (layer != unawaited) MC_CHECK(copies.await_load(layer));
      MC_CHECK(compute(layer));
      MC_CHECK(load(copies, layer + 1));
      MC_CHECK(copies.store(layer, {{array(layer), reinterpret_cast<std::byte*>(&out[layer * kFloats]), kBytes}}));
      if (layer > 0) MC_CHECK(copies.finish_store(layer - 1));
    }
    return end < kLayers ? Result<void>{} : copies.finish_store(end - 1);
  }
  void fill(float first) {
    for (size_t i = 0; i < host.size(); ++i) host[i] = first + static_cast<float>(i);
  }
  void check_out() const {
    for (size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == host[i] + static_cast<float>(i % kFloats + 1));
  }
};

}  // namespace

TEST_CASE("model/device_copies: a layer's kernel runs on what was loaded, and its result reaches the host") {
  CAPTURE(test::seed());
  for (const gpu::emu::Policy policy : kAll)
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Program program(policy, test::seed() + seed);
      DeviceCopies copies(*program.device);
      REQUIRE_OK(copies.prepare());
      for (const float first : {100.f, 7000.f}) {
        program.fill(first);
        REQUIRE_OK(program.pass(copies));
        program.check_out();
      }
    }
}

TEST_CASE("model/device_copies: a pass that stops half-way leaves nothing behind for the next one") {
  CAPTURE(test::seed());
  for (const gpu::emu::Policy policy : kAll)
    for (const uint32_t end : {1u, 2u, 4u}) {
      Program program(policy, test::seed() + end);
      DeviceCopies copies(*program.device);
      REQUIRE_OK(copies.prepare());
      program.fill(5);
      REQUIRE_OK(program.pass(copies, end));
      program.fill(3000);
      REQUIRE_OK(program.pass(copies));
      program.check_out();
    }
}

TEST_CASE("model/device_copies: a kernel that does not wait for its load stops the run") {
  CAPTURE(test::seed());
  for (const gpu::emu::Policy policy : {gpu::emu::Policy::random, gpu::emu::Policy::sticky})
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      Program program(policy, test::seed() + layer);
      DeviceCopies copies(*program.device);
      REQUIRE_OK(copies.prepare());
      const auto done = program.pass(copies, kLayers, layer);
      REQUIRE_FALSE(done.has_value());
      CHECK_MESSAGE(done.error().what.find("stream order") != std::string::npos, done.error().what);
    }
}

}  // namespace device_copies_test
#endif

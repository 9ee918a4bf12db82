// A model on an emulated GPU beside the CPU, and the logits of a prompt and of the greedy tokens behind it.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "device_pair.h"
#include "golden.h"
#include "gpu/device_group.h"
#include "gpu/emulated.h"
#include "gpu/emulated_nccl.h"
#include "gpu/gpu.h"
#include "gpu/matmul.h"
#include "model/runner.h"

namespace mc::test {

inline constexpr double kShareMax = 0.03;  // bf16 has 8 bits, and roundings add up over the layers
inline const model::RunnerOptions kDeviceOptions{.max_chunk_tokens = 128, .max_batch = 4};

/// A model on an emulated GPU, beside the CPU.
struct OnDevice {
  std::unique_ptr<Loaded> cpu;
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<model::Runner> gpu;

  OnDevice(const std::string& directory, const std::string& weights, const gpu::EmulatedHost& host = {},
           gpu::MatmulChoice matmul = gpu::MatmulChoice::own, bool graphs = true)
      : cpu(Loaded::open(directory, "bf16", 2, kDeviceOptions, weights)) {
    auto opened = gpu::Device::open(std::make_shared<gpu::EmulatedDriver>(host), 0);
    REQUIRE_OK(opened);
    device = std::move(*opened);
    REQUIRE_OK(device->choose_matmul(matmul));
    model::RunnerOptions options = kDeviceOptions;
    options.graphs = graphs;
    auto runner = model::Runner::open(cpu->model, cpu->parallel, options, device.get());
    REQUIRE_OK(runner);
    gpu = std::make_unique<model::Runner>(std::move(*runner));
  }
};

/// A model split over emulated devices, beside the CPU.
struct OnDevices {
  std::unique_ptr<Loaded> cpu;
  std::unique_ptr<gpu::DeviceGroup> group;
  std::unique_ptr<model::Runner> gpu;

  OnDevices(const std::string& directory, const std::string& weights, size_t count,
            gpu::MatmulChoice matmul = gpu::MatmulChoice::own, model::ModelOptions options = {})
      : group(emulated_group(count, matmul)) {
    options.dtype = "bf16";
    options.weight_dtype = weights;
    cpu = Loaded::open(directory, options, 2, kDeviceOptions);
    auto runner = model::Runner::open(cpu->model, cpu->parallel, kDeviceOptions, group.get());
    REQUIRE_OK(runner);
    gpu = std::make_unique<model::Runner>(std::move(*runner));
  }
  static std::unique_ptr<gpu::DeviceGroup> emulated_group(size_t count, gpu::MatmulChoice matmul) {
    std::vector<std::shared_ptr<gpu::EmulatedDriver>> drivers;
    std::vector<std::unique_ptr<gpu::Device>> devices;
    for (size_t rank = 0; rank < count; ++rank) {
      drivers.push_back(std::make_shared<gpu::EmulatedDriver>(gpu::EmulatedHost{.devices = static_cast<int>(count)}));
      devices.push_back(gpu::Device::open(drivers.back(), static_cast<int>(rank)).value());
      REQUIRE_OK(devices.back()->choose_matmul(matmul));
    }
    return gpu::DeviceGroup::open("emu", std::move(devices), std::make_unique<gpu::EmulatedNccl>(drivers)).value();
  }
};

inline std::vector<uint32_t> prompt_of(size_t count) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < count; ++i) out.push_back(static_cast<uint32_t>(2 + i * 37 % 250));
  return out;
}

/// The logits of a prompt's last token, and of the greedy tokens behind it.
inline std::vector<std::vector<float>> logits_of(model::Runner& runner, size_t prompt, size_t steps = 0) {
  constexpr uint64_t kSequence = 3;  // whose pages stay on the device, so that steps are graphs
  const auto tokens = prompt_of(prompt);
  const attn::Plan plan{{}, 0, static_cast<int32_t>(runner.model().config().layers)};
  auto pages = model::LocalPages::allocate(runner.layout(), static_cast<int64_t>(prompt + steps));
  REQUIRE_OK(pages);
  std::vector<std::vector<float>> out(1, std::vector<float>(runner.model().config().vocab));
  REQUIRE_OK(runner.prefill({.tokens = tokens, .pages = pages->pages(), .plan = &plan, .logits = out[0]}));
  for (size_t step = 0; step < steps; ++step) {
    const auto best = std::max_element(out.back().begin(), out.back().end()) - out.back().begin();
    const auto position = static_cast<int64_t>(prompt + step);
    const model::DecodeRow row{static_cast<uint32_t>(best), position, pages->pages(), &plan, nullptr, kSequence};
    out.emplace_back(out[0].size());
    REQUIRE_OK(runner.decode({&row, 1}, out.back()));
  }
  if (steps > 0) runner.forget(kSequence);
  return out;
}
inline std::vector<size_t> greedy_of(const std::vector<std::vector<float>>& logits) {
  std::vector<size_t> out;
  for (const auto& row : logits)
    out.push_back(static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin()));
  return out;
}

}  // namespace mc::test

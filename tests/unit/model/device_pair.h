// A model on the CPU and on an emulated GPU, and short ways to compare what the two compute.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/rng.h"
#include "golden.h"
#include "gpu/emulated.h"
#include "gpu/gpu.h"
#include "model/runner.h"
#include "shallow_model.h"

namespace mc::test {

/// A shallow model on the CPU and on an emulated GPU. One thread loads and computes.
struct DevicePair {
  std::unique_ptr<Loaded> cpu;
  std::shared_ptr<gpu::EmulatedDriver> driver;
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<model::Runner> gpu;

  explicit DevicePair(const gpu::EmulatedHost& host = {}, bool graphs = true, const std::string& kv_dtype = "auto")
      : driver(std::make_shared<gpu::EmulatedDriver>(host)) {
    const model::RunnerOptions options{.max_chunk_tokens = 128, .max_batch = 4, .graphs = graphs};
    cpu = Loaded::open(shallow_model(), model::ModelOptions{.dtype = "bf16", .kv_dtype = kv_dtype}, 1, options);
    auto opened = gpu::Device::open(driver, 0);
    REQUIRE_OK(opened);
    device = std::move(*opened);
    auto runner = model::Runner::open(cpu->model, cpu->parallel, options, device.get());
    REQUIRE_OK(runner);
    gpu = std::make_unique<model::Runner>(std::move(*runner));
  }
  const model::ModelConfig& config() const { return cpu->model.config(); }
  model::LocalPages pages(int64_t tokens) const {
    auto pages = model::LocalPages::allocate(cpu->runner.layout(), tokens);
    REQUIRE_OK(pages);
    return std::move(*pages);
  }
};

inline std::vector<uint32_t> some_tokens(size_t count, uint64_t seed = 7) {
  Rng rng(seed);
  std::vector<uint32_t> out(count);
  for (uint32_t& token : out) token = static_cast<uint32_t>(20 + rng.below(1000));
  return out;
}

inline Result<std::vector<float>> prefill(model::Runner& runner, model::LocalPages& pages,
                                          std::span<const uint32_t> tokens, const attn::Plan& plan, size_t start = 0) {
  std::vector<float> logits(runner.model().config().vocab);
  model::PrefillChunk chunk;
  chunk.tokens = tokens;
  chunk.start = static_cast<int64_t>(start);
  chunk.pages = pages.pages();
  chunk.plan = &plan;
  chunk.logits = logits;
  MC_CHECK(runner.prefill(chunk));
  return logits;
}

/// The largest difference as a share of the range of `want`.
inline double share(const std::vector<float>& got, const std::vector<float>& want) {
  const auto [low, high] = std::minmax_element(want.begin(), want.end());
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(double{got[i]} - want[i]));
  return worst / (*high - *low);
}

}  // namespace mc::test

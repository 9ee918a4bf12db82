// Models with mixtures of experts on the emulated device beside the CPU: logits, greedy text, the independence of rows,
// and what the device refuses. tests/cli/gpu_kernels_test.py runs the kernels alone.

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "count.h"
#include "golden.h"
#include "gpu/emulated.h"
#include "gpu/gpu.h"
#include "mixture_model.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
using namespace mc;
using namespace mc::model;

namespace {

const RunnerOptions kMixtureOptions{.max_chunk_tokens = 128, .max_batch = 4};

/// A model on the CPU and on an emulated GPU.
struct MixturePair {
  std::unique_ptr<test::Loaded> cpu;
  std::shared_ptr<gpu::EmulatedDriver> driver = std::make_shared<gpu::EmulatedDriver>();
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<Runner> gpu;

  explicit MixturePair(const test::MixtureModel& model, const std::string& weights = "auto")
      : cpu(test::Loaded::open(model.directory(), "bf16", 1, kMixtureOptions, weights)) {
    auto opened = gpu::Device::open(driver, 0);
    REQUIRE_OK(opened);
    device = std::move(*opened);
    auto runner = Runner::open(cpu->model, cpu->parallel, kMixtureOptions, device.get());
    REQUIRE_OK(runner);
    gpu = std::make_unique<Runner>(std::move(*runner));
  }
  size_t vocab() const { return cpu->model.config().vocab; }
  attn::Plan plan() const { return test::full_plan(cpu->model); }
};

std::vector<uint32_t> mixture_tokens(size_t count) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < count; ++i) out.push_back(static_cast<uint32_t>(2 + i * 37 % 125));
  return out;
}

/// A sequence: its pages, and the logits of its last token.
struct MixturePrefilled {
  LocalPages pages;
  std::vector<float> logits;
};
MixturePrefilled mixture_prefill(Runner& runner, std::span<const uint32_t> tokens, const attn::Plan& plan,
                                 size_t cut = 0) {
  auto pages = LocalPages::allocate(runner.layout(), static_cast<int64_t>(tokens.size()) + 16);
  REQUIRE_OK(pages);
  MixturePrefilled out{std::move(*pages), std::vector<float>(runner.model().config().vocab)};
  for (const auto& [first, count] : {std::pair{size_t{0}, cut}, std::pair{cut, tokens.size() - cut}}) {
    if (count == 0) continue;
    PrefillChunk chunk;
    chunk.tokens = tokens.subspan(first, count);
    chunk.start = static_cast<int64_t>(first);
    chunk.pages = out.pages.pages();
    chunk.plan = &plan;
    if (first + count == tokens.size()) chunk.logits = out.logits;
    REQUIRE_OK(runner.prefill(chunk));
  }
  return out;
}

/// The largest difference as a share of the range of `want`.
double mixture_share(std::span<const float> got, std::span<const float> want) {
  const auto [low, high] = std::minmax_element(want.begin(), want.end());
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(double{got[i]} - want[i]));
  return worst / (*high - *low);
}

constexpr double kMixtureShareMax = 0.03;  // bf16 has 8 bits, and roundings add up over the layers

std::vector<uint32_t> mixture_greedy(Runner& runner, std::span<const uint32_t> prompt, const attn::Plan& plan,
                                     int count) {
  MixturePrefilled one = mixture_prefill(runner, prompt, plan);
  std::vector<uint32_t> out;
  for (auto position = static_cast<int64_t>(prompt.size());; ++position) {
    const auto best = std::max_element(one.logits.begin(), one.logits.end());
    out.push_back(static_cast<uint32_t>(best - one.logits.begin()));
    if (static_cast<int>(out.size()) == count) break;
    const DecodeRow row{out.back(), position, one.pages.pages(), &plan, nullptr, 3};
    REQUIRE_OK(runner.decode({&row, 1}, one.logits));
  }
  runner.forget(3);
  return out;
}

}  // namespace

TEST_CASE("model/device: a mixture on emu has the CPU's logits and greedy text, with and without a shared expert") {
  for (const bool shared : {false, true}) {
    CAPTURE(shared);
    const test::MixtureModel model({.has_shared_expert = shared});
    MixturePair pair(model);
    const attn::Plan plan = pair.plan();
    const auto tokens = mixture_tokens(9);
    CHECK(mixture_share(mixture_prefill(*pair.gpu, tokens, plan).logits,
                        mixture_prefill(pair.cpu->runner, tokens, plan).logits) < kMixtureShareMax);
    const int count = test::count(4, 12);
    CHECK(mixture_greedy(*pair.gpu, tokens, plan, count) == mixture_greedy(pair.cpu->runner, tokens, plan, count));
  }
}

TEST_CASE("model/device: as many experts a token as there are, and one, agree with the CPU") {
  for (const int per_token : {1, 3}) {
    CAPTURE(per_token);
    const test::MixtureModel model({.experts = 3, .per_token = per_token, .inner = 8, .layers = 1});
    MixturePair pair(model);
    const auto tokens = mixture_tokens(1);
    const auto got = mixture_prefill(*pair.gpu, tokens, pair.plan()),
               want = mixture_prefill(pair.cpu->runner, tokens, pair.plan());
    CHECK(mixture_share(got.logits, want.logits) < kMixtureShareMax);
  }
}

TEST_CASE("model/device: a row of a mixture has equal bits in every chunk and in every batch") {
  const test::MixtureModel model({.has_shared_expert = true});
  MixturePair pair(model);
  pair.driver->gpu().set_options({.seed = test::seed(), .policy = gpu::emu::Policy::random});
  const attn::Plan plan = pair.plan();
  const auto tokens = mixture_tokens(80);  // both chunks are long enough for one kernel of attention
  const MixturePrefilled whole = mixture_prefill(*pair.gpu, tokens, plan),
                         cut = mixture_prefill(*pair.gpu, tokens, plan, 64);
  CHECK(whole.logits == cut.logits);
  for (size_t page = 0; page < 2; ++page) CHECK(std::ranges::equal(whole.pages.page(page), cut.pages.page(page)));

  const size_t vocab = pair.vocab();
  const MixturePrefilled other = mixture_prefill(*pair.gpu, std::span(tokens).first(5), plan);
  std::vector<float> together(3 * vocab), alone(vocab);
  const DecodeRow rows[] = {
      {7, 5, other.pages.pages(), &plan}, {9, 80, whole.pages.pages(), &plan}, {9, 80, cut.pages.pages(), &plan}};
  REQUIRE_OK(pair.gpu->decode(rows, together));
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE_OK(pair.gpu->decode({&rows[i], 1}, alone));
    CHECK(std::ranges::equal(alone, std::span(together).subspan(i * vocab, vocab)));
  }
  CHECK(std::ranges::equal(std::span(together).subspan(vocab, vocab), std::span(together).subspan(2 * vocab, vocab)));
}

TEST_CASE("model/device: the planned memory of a mixture is what the device lends") {
  const test::MixtureModel model({.has_shared_expert = true});
  MixturePair pair(model);
  const auto memory = pair.device->memory();
  REQUIRE_OK(memory);
  const auto plan = plan_model(model.directory(), {.dtype = "bf16"});
  REQUIRE_OK(plan);
  const size_t workspace = Runner::device_workspace_bytes(pair.cpu->model.config(), kMixtureOptions);
  const auto lent = static_cast<double>(memory->total - memory->free);
  CHECK(lent > 0.9 * static_cast<double>(plan->weight_bytes + workspace));
  CHECK(lent < 1.1 * static_cast<double>(plan->weight_bytes + workspace));
}

TEST_CASE("model/device: experts beyond the kernels are refused by name") {
  const test::MixtureModel model({.experts = 513, .inner = 8, .layers = 1});
  auto loaded = test::Loaded::open(model.directory(), "bf16", 1);
  auto device = gpu::Device::open(std::make_shared<gpu::EmulatedDriver>(), 0);
  REQUIRE_OK(device);
  const auto runner = Runner::open(loaded->model, loaded->parallel, {}, device->get());
  REQUIRE_FALSE(runner.has_value());
  CHECK(runner.error().mc == err::kDeviceUnusable);
  CHECK(runner.error().what == "emu does not serve a mixture of 513 experts yet, but up to 512");
}

TEST_CASE("model/device: a mixture in whole numbers of 8 bits on emu agrees with the CPU") {
  const test::MixtureModel model({.has_shared_expert = true});
  MixturePair pair(model, "int8");
  const auto tokens = mixture_tokens(9);
  CHECK(mixture_share(mixture_prefill(*pair.gpu, tokens, pair.plan()).logits,
                      mixture_prefill(pair.cpu->runner, tokens, pair.plan()).logits) < kMixtureShareMax);
}
#endif

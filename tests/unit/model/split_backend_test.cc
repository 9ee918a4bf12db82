// A model split over several emulated devices beside one device and the CPU: logits, the bytes of whole pages,
// mixtures, what cannot be split, and a device that fails.
#include "model/split_backend.h"

#include <algorithm>

#include "base/errors.h"
#include "base/hash.h"
#include "count.h"
#include "device_pair.h"
#include "gpu/device_group.h"
#include "gpu/devices.h"
#include "gpu/emulated_nccl.h"
#include "gpu/matmul.h"
#include "mixture_model.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
namespace split_backend_test {

using namespace mc;
using namespace mc::model;
using test::prefill;
using test::share;
using test::some_tokens;

namespace {

constexpr double kShareMax = 0.03;  // bf16 has 8 bits, and roundings add up over the layers
const RunnerOptions kOptions{.max_chunk_tokens = 128, .max_batch = 4};

/// A model on the CPU, on one emulated device, and split over several.
struct Split {
  std::unique_ptr<test::Loaded> cpu;
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<Runner> one;
  std::vector<std::shared_ptr<gpu::EmulatedDriver>> drivers;
  std::unique_ptr<gpu::DeviceGroup> group;
  std::unique_ptr<Runner> split;

  explicit Split(size_t count = 2, const std::string& directory = test::shallow_model(),
                 const std::string& kv_dtype = "auto", gpu::MatmulChoice matmul = gpu::MatmulChoice::own)
      : cpu(test::Loaded::open(directory, ModelOptions{.dtype = "bf16", .kv_dtype = kv_dtype}, 1, kOptions)) {
    device = std::move(*gpu::Device::open(std::make_shared<gpu::EmulatedDriver>(), 0));
    RunnerOptions without_graphs = kOptions;
    without_graphs.graphs = false;
    one = std::make_unique<Runner>(Runner::open(cpu->model, cpu->parallel, without_graphs, device.get()).value());
    std::vector<std::unique_ptr<gpu::Device>> devices;
    for (size_t rank = 0; rank < count; ++rank) {
      drivers.push_back(std::make_shared<gpu::EmulatedDriver>(gpu::EmulatedHost{.devices = static_cast<int>(count)}));
      devices.push_back(std::move(*gpu::Device::open(drivers.back(), static_cast<int>(rank))));
      REQUIRE_OK(devices.back()->choose_matmul(matmul));
    }
    group = gpu::DeviceGroup::open("emu", std::move(devices), std::make_unique<gpu::EmulatedNccl>(drivers)).value();
    auto opened = Runner::open(cpu->model, cpu->parallel, kOptions, group.get());
    REQUIRE_OK(opened);
    split = std::make_unique<Runner>(std::move(*opened));
  }
  void set_schedule(gpu::emu::Policy policy, uint64_t seed) {
    for (size_t rank = 0; rank < drivers.size(); ++rank)
      drivers[rank]->gpu().set_options({.seed = seed + rank, .policy = policy});
  }
  const ModelConfig& config() const { return cpu->model.config(); }
  LocalPages pages(int64_t tokens) const {
    auto pages = LocalPages::allocate(cpu->runner.layout(), tokens);
    REQUIRE_OK(pages);
    return std::move(*pages);
  }
  attn::Plan full() const { return test::full_plan(cpu->model); }
  attn::Plan moba() const { return test::moba_plan(cpu->model, 64, 1, 1); }
  /// The tokens that follow a prompt.
  std::vector<uint32_t> greedy(Runner& runner, std::span<const uint32_t> prompt, const attn::Plan& plan,
                               int count) const {
    LocalPages own = pages(static_cast<int64_t>(prompt.size()) + count);
    std::vector<float> logits = prefill(runner, own, prompt, plan).value();
    std::vector<uint32_t> out;
    for (auto position = static_cast<int64_t>(prompt.size());; ++position) {
      out.push_back(static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      if (static_cast<int>(out.size()) == count) break;
      const DecodeRow row{out.back(), position, own.pages(), &plan, nullptr, 3};
      REQUIRE_OK(runner.decode({&row, 1}, logits));
    }
    runner.forget(3);
    return out;
  }
};

std::span<const std::byte> extent(const LocalPages& pages, const ExtentLayout& layout, size_t page, uint32_t layer) {
  return pages.page(page).subspan(layout.layer_offset(layer), layout.layer_bytes());
}

}  // namespace

TEST_CASE("model/split: a chunk over pages of the CPU and decode steps on two devices agree with the CPU's logits") {
  Split split;
  const auto tokens = some_tokens(70);
  for (const attn::Plan& plan : {split.full(), split.moba()}) {
    LocalPages cpu_pages = split.pages(80), own_pages = split.pages(80);
    for (LocalPages* pages : {&cpu_pages, &own_pages})
      REQUIRE_OK(prefill(split.cpu->runner, *pages, std::span(tokens).first(64), plan));
    const auto cpu = prefill(split.cpu->runner, cpu_pages, std::span(tokens).subspan(64), plan, 64);
    const auto own = prefill(*split.split, own_pages, std::span(tokens).subspan(64), plan, 64);
    REQUIRE_OK(cpu);
    REQUIRE_OK(own);
    CHECK(share(*own, *cpu) < kShareMax);
    std::vector<float> cpu_logits(split.config().vocab), own_logits(split.config().vocab);
    for (int64_t position = 70; position < 72; ++position) {
      const DecodeRow on_cpu{100, position, cpu_pages.pages(), &plan, nullptr};
      const DecodeRow on_gpu{100, position, own_pages.pages(), &plan, nullptr};
      REQUIRE_OK(split.cpu->runner.decode({&on_cpu, 1}, cpu_logits));
      REQUIRE_OK(split.split->decode({&on_gpu, 1}, own_logits));
      CHECK(share(own_logits, cpu_logits) < kShareMax);
    }
  }
}

TEST_CASE(
    "model/split: the pages of layer 0 have the bytes that one device writes, and each page is sealed as a whole") {
  for (const char* kv_dtype : {"auto", "fp8_e4m3"}) {
    CAPTURE(kv_dtype);
    Split split(2, test::shallow_model(), kv_dtype);
    const auto tokens = some_tokens(70);
    const attn::Plan plan = split.full();
    LocalPages one = split.pages(80), own = split.pages(80);
    const ExtentLayout layout = split.cpu->runner.layout();
    // In the quick tier the CPU writes the first page of fp8. The second one shows the codes that two devices write.
    const size_t start = *kv_dtype == 'f' && !test::is_full() ? 64 : 0;
    for (LocalPages* pages : {&one, &own})
      if (start > 0) REQUIRE_OK(prefill(split.cpu->runner, *pages, std::span(tokens).first(start), plan));
    REQUIRE_OK(prefill(*split.one, one, std::span(tokens).subspan(start), plan, start));
    REQUIRE_OK(prefill(*split.split, own, std::span(tokens).subspan(start), plan, start));
    for (size_t page = 0; page < 2; ++page)
      CHECK(std::ranges::equal(extent(own, layout, page, 0), extent(one, layout, page, 0)));
    for (uint32_t layer = 0; layer < layout.layers; ++layer) {
      const auto stored = extent(own, layout, 1, layer);
      std::vector<std::byte> sealed(stored.begin(), stored.end());
      attn::seal(layout, sealed.data(), 6);
      CHECK(std::ranges::equal(sealed, stored));
    }
    // Rows of a step, as codes too, in a page that was there.
    std::vector<float> one_logits(split.config().vocab), own_logits(split.config().vocab);
    const DecodeRow on_one{100, 70, one.pages(), &plan, nullptr}, on_own{100, 70, own.pages(), &plan, nullptr};
    REQUIRE_OK(split.one->decode({&on_one, 1}, one_logits));
    REQUIRE_OK(split.split->decode({&on_own, 1}, own_logits));
    CHECK(std::ranges::equal(extent(own, layout, 1, 0), extent(one, layout, 1, 0)));
  }
}

TEST_CASE("model/split: checksums are those of the whole extents, of chunks and of pages that a step fills") {
  Split split;
  const auto tokens = some_tokens(70);
  const attn::Plan plan = split.full();
  LocalPages pages = split.pages(128), other = split.pages(128);
  const ExtentLayout layout = split.cpu->runner.layout();
  uint32_t announced = 0;
  PrefillChunk chunk;
  chunk.tokens = tokens;
  chunk.pages = pages.pages();
  chunk.plan = &plan;
  chunk.on_layer = [&](uint32_t layer) {
    const auto made = split.split->checksums(layer);
    REQUIRE(made.size() == 2);  // a whole page and a tail
    for (size_t page = 0; page < 2; ++page) CHECK(made[page] == crc32c(extent(pages, layout, page, layer)));
    ++announced;
    return true;
  };
  REQUIRE_OK(split.split->prefill(chunk));
  CHECK(announced == layout.layers);
  REQUIRE_OK(prefill(split.cpu->runner, other, std::span(tokens).first(63), plan));
  // The first row leaves its page unfinished, the second fills its page.
  std::vector<float> logits(2 * split.config().vocab);
  const DecodeRow rows[] = {{100, 70, pages.pages(), &plan, nullptr}, {100, 63, other.pages(), &plan, nullptr}};
  REQUIRE_OK(split.split->decode(rows, logits));
  for (uint32_t layer = 0; layer < layout.layers; ++layer) {
    REQUIRE(split.split->checksums(layer).size() == 2);
    CHECK(split.split->checksums(layer)[1] == crc32c(extent(other, layout, 0, layer)));
  }
}

TEST_CASE("model/split: chunks and schedules change no bit of pages and logits") {
  Split split;
  const auto tokens = some_tokens(67);
  const attn::Plan plan = split.moba();
  const ExtentLayout layout = split.cpu->runner.layout();
  LocalPages whole = split.pages(80);
  const auto want = prefill(*split.split, whole, tokens, plan);
  REQUIRE_OK(want);
  for (const auto policy : {gpu::emu::Policy::random, gpu::emu::Policy::sticky}) {  // `want` is of warps in order
    split.set_schedule(policy, test::seed());
    LocalPages pages = split.pages(80);
    REQUIRE_OK(prefill(*split.split, pages, std::span(tokens).first(64), plan));
    const auto logits = prefill(*split.split, pages, std::span(tokens).subspan(64), plan, 64);
    REQUIRE_OK(logits);
    CHECK(*logits == *want);
    for (size_t page = 0; page < 2; ++page)
      for (uint32_t layer = 0; layer < layout.layers; ++layer)
        CHECK(std::ranges::equal(extent(pages, layout, page, layer), extent(whole, layout, page, layer)));
  }
}

TEST_CASE("model/split: a chunk and a step in one pass have the bits of passes of their own") {
  Split split;
  const auto tokens = some_tokens(30), prompt = some_tokens(20, 11);
  const attn::Plan plan = split.full();
  const size_t vocab = split.config().vocab;
  struct Got {
    std::vector<float> chunk, hidden, step;
    bool operator==(const Got&) const = default;
  } apart, together;
  for (const bool is_mixed : {false, true}) {
    Got& got = is_mixed ? together : apart;
    got = {std::vector<float>(vocab), std::vector<float>(split.config().hidden), std::vector<float>(vocab)};
    LocalPages pages = split.pages(64), other = split.pages(64);
    REQUIRE_OK(prefill(*split.split, other, prompt, plan));
    PrefillChunk chunk;
    chunk.tokens = tokens;
    chunk.pages = pages.pages();
    chunk.plan = &plan;
    chunk.logits = got.chunk;
    chunk.hidden = got.hidden;
    const DecodeRow row{100, 20, other.pages(), &plan, nullptr};
    if (!is_mixed) {
      REQUIRE_OK(split.split->prefill(chunk));
      REQUIRE_OK(split.split->decode({&row, 1}, got.step));
      continue;
    }
    const PrefillChunk* const chunks[] = {&chunk};
    REQUIRE(split.split->shares_pass(chunks, 1));
    const auto ends = split.split->mixed({.chunks = chunks, .rows = {&row, 1}, .logits = got.step});
    REQUIRE_OK(ends.step);
    REQUIRE_OK(ends.chunks[0]);
  }
  CHECK(apart == together);
}

TEST_CASE("model/split: logits and greedy text of two and four devices are the CPU's, of mixtures and of biases") {
  struct Case {
    size_t devices;
    test::MixtureModelShape shape;
  };
  const Case cases[] = {{2, {.has_shared_expert = true, .heads = 2, .kv_heads = 2}},
                        {2, {.heads = 4, .kv_heads = 2}},
                        {4, {.heads = 4, .kv_heads = 4}}};
  for (const Case& one : cases) {
    CAPTURE(one.devices);
    CAPTURE(one.shape.has_shared_expert);
    const test::MixtureModel model(one.shape);
    const Split split(one.devices, model.directory());
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < 9; ++i) tokens.push_back(2 + i * 37 % 125);
    const int count = test::count(4, 12);
    LocalPages cpu_pages = split.pages(16), own_pages = split.pages(16);
    const auto cpu = prefill(split.cpu->runner, cpu_pages, tokens, split.full());
    const auto own = prefill(*split.split, own_pages, tokens, split.full());
    REQUIRE_OK(cpu);
    REQUIRE_OK(own);
    CHECK(share(*own, *cpu) < kShareMax);
    CHECK(split.greedy(*split.split, tokens, split.full(), count) ==
          split.greedy(split.cpu->runner, tokens, split.full(), count));
  }
}

TEST_CASE("model/split: the own kernels multiply a router, whose bits are equal on all ranks, beside cuBLASLt") {
  const test::MixtureModel model({.heads = 4, .kv_heads = 2});
  const Split split(2, model.directory(), "auto", gpu::MatmulChoice::cublaslt);
  LocalPages pages = split.pages(16);
  const std::vector<uint32_t> tokens = {2, 39, 76, 113};
  REQUIRE_OK(prefill(*split.split, pages, tokens, split.full()));
  // The two products of attention in each layer; the first rank has the head as well.
  const uint64_t layers = split.config().layers;
  CHECK(split.group->device(0).matmul()->report().queued == 2 * layers + 1);
  CHECK(split.group->device(1).matmul()->report().queued == 2 * layers);
}

TEST_CASE("model/split: the planned memory of each device holds its weights and workspace, and half of the heads") {
  const Split split;
  const ModelConfig& whole = split.config();
  const auto lent = [&](const gpu::Device& device) {
    const auto memory = const_cast<gpu::Device&>(device).memory();
    REQUIRE_OK(memory);
    return memory->total - memory->free;
  };
  const size_t one = lent(*split.device);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const TensorPart part{rank, 2};
    RunnerOptions options = kOptions;
    options.graphs = false;
    const size_t planned = part_weight_bytes(whole, split.cpu->model.weight_bytes(), part) +
                           Runner::device_workspace_bytes(config_of(whole, part), options) + (size_t{64} << 10);
    const size_t own = lent(split.group->device(rank));
    CHECK(own <= planned);
    CHECK(planned < own + own / 4);
    CHECK(own < one);
  }
}

TEST_CASE("model/split: stages of a pipeline on two devices each have the bits of the whole model on two devices") {
  Split split;
  const auto tokens = some_tokens(70);
  const attn::Plan plan = split.full();
  LocalPages whole = split.pages(80);
  const auto want = prefill(*split.split, whole, tokens, plan);
  REQUIRE_OK(want);
  std::vector<float> stream, logits(split.config().vocab);
  for (uint32_t stage = 0; stage < 2; ++stage) {
    const auto loaded = test::Loaded::open(test::shallow_model(),
                                           ModelOptions{.dtype = "bf16", .stage = stage, .stages = 2}, 1, kOptions);
    const gpu::DeviceChoice two[] = {{.kind = gpu::DeviceKind::emu}, {.kind = gpu::DeviceKind::emu}};
    const auto group = gpu::open_devices(two);
    REQUIRE_OK(group);
    auto runner = Runner::open(loaded->model, loaded->parallel, kOptions, group->get());
    REQUIRE_OK(runner);
    auto pages = LocalPages::allocate(runner->layout(), 80);
    REQUIRE_OK(pages);
    const LayerRange held = loaded->model.held();
    PrefillChunk chunk;
    chunk.tokens = tokens;
    chunk.pages = pages->pages();
    chunk.plan = &plan;
    chunk.first_layer = held.first;
    chunk.end_layer = held.end;
    const std::vector<float> before = stream;
    chunk.activations_in = before;
    if (stage == 0) stream.resize(tokens.size() * split.config().hidden);
    if (stage == 0) chunk.activations_out = stream;
    if (stage == 1) chunk.logits = logits;
    REQUIRE_OK(runner->prefill(chunk));
    for (uint32_t layer = held.first; layer < held.end; ++layer)
      CHECK(std::ranges::equal(extent(*pages, runner->layout(), 0, layer),
                               extent(whole, split.cpu->runner.layout(), 0, layer)));
  }
  CHECK(logits == *want);
}

// ---- bad input ----

TEST_CASE("model/split: a model whose widths cannot be divided is refused with the width and what divides") {
  const test::MixtureModel model({.inner = 36, .heads = 12, .kv_heads = 4});
  const auto loaded = test::Loaded::open(model.directory(), "bf16");
  const struct {
    uint32_t devices;
    const char *says, *next;
  } cases[] = {
      {3, "emu: the model's 4 KV heads cannot be split over 3 devices", "a number that divides: 2, 4"},
      {5, "emu: the model's 12 attention heads cannot be split over 5 devices", "a number that divides: 2, 4"},
  };
  for (const auto& one : cases) {
    const auto refused = check_split(loaded->model.config(), one.devices, "emu");
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().mc == err::kDeviceUnusable);
    CHECK(refused.error().what == one.says);
    CHECK_MESSAGE(refused.error().next.find(one.next) != std::string::npos, refused.error().next);
  }
  ModelConfig odd = loaded->model.config();
  odd.mixture.intermediate = 37;
  const auto refused = check_split(odd, 2, "emu");
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().what ==
        "emu: the model's 37 elements of an expert's inner width cannot be split over 2 devices");
  CHECK_MESSAGE(refused.error().next.find("name one device") != std::string::npos, refused.error().next);
}

TEST_CASE("model/split: a tier of pages that the caller numbers is refused beside several devices") {
  const auto loaded = test::Loaded::open(test::shallow_model(), "bf16");
  const gpu::DeviceChoice two[] = {{.kind = gpu::DeviceKind::emu}, {.kind = gpu::DeviceKind::emu}};
  const auto group = gpu::open_devices(two);
  REQUIRE_OK(group);
  const auto refused = Runner::open(loaded->model, loaded->parallel, {.device_pages = 8}, group->get());
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().what == "emu,emu: several devices have no tier of KV blocks yet");
}

TEST_CASE("model/split: a pass for which one device has no memory fails alone, and the group serves on") {
  Split sound;
  const auto tokens = some_tokens(5);
  const attn::Plan plan = sound.full();
  LocalPages pages = sound.pages(512);
  const auto want = prefill(*sound.split, pages, tokens, plan);
  REQUIRE_OK(want);
  const size_t page_bytes = sound.cpu->runner.layout().page_bytes();
  for (const size_t small : {0u, 1u}) {
    const auto memory = sound.group->device(small).memory();
    REQUIRE_OK(memory);
    std::vector<std::shared_ptr<gpu::EmulatedDriver>> drivers;
    std::vector<std::unique_ptr<gpu::Device>> devices;
    for (size_t rank = 0; rank < 2; ++rank) {
      gpu::EmulatedHost host{.devices = 2};
      if (rank == small) host.memory_bytes = memory->total - memory->free + page_bytes;
      drivers.push_back(std::make_shared<gpu::EmulatedDriver>(host));
      devices.push_back(std::move(*gpu::Device::open(drivers.back(), static_cast<int>(rank))));
    }
    const auto group =
        gpu::DeviceGroup::open("emu", std::move(devices), std::make_unique<gpu::EmulatedNccl>(drivers)).value();
    auto runner = Runner::open(sound.cpu->model, sound.cpu->parallel, kOptions, group.get());
    REQUIRE_OK(runner);
    for (int turn = 0; turn < 2; ++turn) {
      const auto refused = prefill(*runner, pages, some_tokens(64), plan, 448);  // behind seven pages
      REQUIRE_FALSE(refused.has_value());
      CHECK(refused.error().mc == err::kDeviceMemory);
      CHECK_FALSE(group->failure().has_value());
      const auto got = prefill(*runner, pages, tokens, plan);
      REQUIRE_OK(got);
      CHECK(*got == *want);
    }
  }
}

TEST_CASE(
    "model/split: the failure of either device fails the chunk with its reason, and the other one waits for nobody") {
  for (const size_t failed : {0u, 1u})
    for (const uint64_t behind : {1u, 9u, 25u}) {
      CAPTURE(failed);
      CAPTURE(behind);
      const uint64_t loading = Split().drivers[failed]->gpu().operations();
      std::vector<gpu::DeviceChoice> choices(2, {.kind = gpu::DeviceKind::emu});
      choices[failed].fault_at = loading + behind;
      const auto loaded = test::Loaded::open(test::shallow_model(), ModelOptions{.dtype = "bf16"}, 1, kOptions);
      auto group = gpu::open_devices(choices);
      REQUIRE_OK(group);
      auto runner = Runner::open(loaded->model, loaded->parallel, kOptions, group->get());
      REQUIRE_OK(runner);
      auto pages = LocalPages::allocate(loaded->runner.layout(), 64);
      REQUIRE_OK(pages);
      const attn::Plan plan = test::full_plan(loaded->model);
      for (int turn = 0; turn < 2; ++turn) {
        const auto done = prefill(*runner, *pages, some_tokens(5), plan);
        REQUIRE_FALSE(done.has_value());
        CHECK(done.error().mc == err::kDeviceFailed);
        CHECK_MESSAGE(done.error().what.find("uncorrectable ECC error") != std::string::npos, done.error().what);
      }
      const auto reason = (*group)->failure();
      REQUIRE(reason.has_value());
      CHECK(reason->what.find("emu[" + std::to_string(failed) + "]") != std::string::npos);
      CHECK((*group)->device(1 - failed).finish());
    }
}

}  // namespace split_backend_test
#endif

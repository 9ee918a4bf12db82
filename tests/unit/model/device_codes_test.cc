// fp8 checkpoints whose codes an emulated GPU multiplies by cuBLASLt: logits beside the widened weights, independence
// of rows, graphs of steps, memory, and the matrices that are widened all the same.
#include <algorithm>

#include "device_text.h"
#include "fp8_model.h"
#include "gpu/device_group.h"
#include "gpu/emulated_nccl.h"
#include "model/device_forms.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
namespace device_codes_test {

using namespace mc;
using namespace mc::model;
using test::Fp8Kind;
using test::Fp8Model;
using test::logits_of;
using test::OnDevice;
using test::share;

namespace {

constexpr auto kLt = gpu::MatmulChoice::cublaslt;

/// An input in E4M3 is off by at most 2^-4 of itself, by 2.6 % in the mean square, and so is a sum of many. Eight such
/// products of two layers lie before a logit: 7 % of the deviation of logits. The worst of 256 errors is four times
/// that, and the range of 256 logits is five to six deviations: 0.055. The bound is twice as wide.
constexpr double kCodedShareMax = 0.11;

size_t lent(gpu::Device& device) {
  const auto memory = device.memory();
  REQUIRE_OK(memory);
  return memory->total - memory->free;
}

DeviceForms forms_of(const OnDevice& on, const std::string& weights = "auto") {
  const auto plan = plan_model(on.cpu->model.directory(), {.dtype = "bf16", .weight_dtype = weights});
  REQUIRE_OK(plan);
  return device_forms(*plan, *on.device, {});
}

}  // namespace

TEST_CASE(
    "model/device: products of a checkpoint's fp8 codes give the widened weights' logits but for rounded inputs") {
  for (const Fp8Kind kind : {Fp8Kind::blocks, Fp8Kind::rows, Fp8Kind::matrix}) {
    CAPTURE(static_cast<int>(kind));
    const Fp8Model model({.kind = kind, .has_biases = kind == Fp8Kind::rows});
    const OnDevice coded(model.directory(), "auto", 90, kLt), full(model.directory(), "full", 90, kLt);
    CHECK(forms_of(coded).coded == 8);  // four of each layer
    const auto got = logits_of(*coded.gpu, 67), want = logits_of(full.cpu->runner, 67);
    CHECK(share(got[0], want[0]) < kCodedShareMax);
    CHECK(got != logits_of(*full.gpu, 67));  // the codes were used
  }
}

TEST_CASE("model/device: a row of products of codes has equal bits in every chunk and batch, and in a graph") {
  for (const Fp8Kind kind : {Fp8Kind::blocks, Fp8Kind::rows}) {
    const Fp8Model model({.kind = kind});
    const OnDevice graphs(model.directory(), "auto", 90, kLt), plain(model.directory(), "auto", 90, kLt, false);
    constexpr size_t kSteps = 8;  // a graph is replayed from its third step on, and results have two places
    CHECK(logits_of(*graphs.gpu, 5, kSteps) == logits_of(*plain.gpu, 5, kSteps));
    CHECK(graphs.gpu->replayed_steps() > 0);
    CHECK(plain.gpu->replayed_steps() == 0);

    const attn::Plan plan{{}, 0, static_cast<int32_t>(plain.gpu->model().config().layers)};
    const size_t vocab = plain.gpu->model().config().vocab;
    const auto tokens = test::prompt_of(80);
    auto pages = LocalPages::allocate(plain.gpu->layout(), 96).value();
    std::vector<float> cut(vocab);
    REQUIRE_OK(plain.gpu->prefill({.tokens = std::span(tokens).first(64), .pages = pages.pages(), .plan = &plan}));
    REQUIRE_OK(plain.gpu->prefill(
        {.tokens = std::span(tokens).subspan(64), .start = 64, .pages = pages.pages(), .plan = &plan, .logits = cut}));
    CHECK(cut == logits_of(*plain.gpu, 80)[0]);

    auto other = LocalPages::allocate(plain.gpu->layout(), 96).value();
    REQUIRE_OK(plain.gpu->prefill({.tokens = std::span(tokens).first(7), .pages = other.pages(), .plan = &plan}));
    const DecodeRow rows[] = {{9, 80, pages.pages(), &plan}, {7, 7, other.pages(), &plan}};
    std::vector<float> together(2 * vocab), alone(vocab);
    REQUIRE_OK(plain.gpu->decode(rows, together));
    for (size_t i = 0; i < 2; ++i) {
      REQUIRE_OK(plain.gpu->decode({&rows[i], 1}, alone));
      CHECK(std::ranges::equal(alone, std::span(together).subspan(i * vocab, vocab)));
    }
  }
}

TEST_CASE("model/device: fp8 weights take half of bf16's bytes on the device, as planned") {
  const Fp8Model model({});
  const OnDevice coded(model.directory(), "auto", 90, kLt), full(model.directory(), "full", 90, kLt);
  const DeviceForms forms = forms_of(coded);
  CHECK(forms.coded_text() == "weights kept in fp8: 8 of 9 matrices, 960 KiB");
  CHECK(forms.widened_text() == "");
  const ModelConfig& config = coded.cpu->model.config();
  const size_t fp8 = Runner::device_fp8_bytes(config, test::kDeviceOptions), rounding = 64 << 10;
  const size_t without_weights = lent(*full.device) - forms_of(full, "full").bytes;
  const size_t planned = forms.bytes + fp8 + without_weights, own = lent(*coded.device);
  CHECK(own <= planned + rounding);
  CHECK(planned <= own + rounding);
  CHECK(forms_of(full, "full").bytes - forms.bytes > forms.coded_bytes * 99 / 100);
}

TEST_CASE("model/device: codes without a product of their scales are widened, and the plan says why") {
  struct Row {
    test::Fp8ModelShape shape;
    int capability;
    gpu::MatmulChoice matmul;
    size_t coded;
    const char* why;
  };
  const char* layout = "scales are neither of rows nor of blocks of 128 x 128 that begin with a matrix";
  const Row cases[] = {
      {{}, 90, gpu::MatmulChoice::own, 0, "products of fp8 need cuBLASLt"},
      {{}, 89, kLt, 0, "compute capability 8.9 has no products of fp8 with such scales"},
      {{.kv_heads = 1}, 90, kLt, 6, layout},  // k has 64 rows, so v begins in the middle of a block
      {{.kind = Fp8Kind::rows, .inner = 136}, 90, kLt, 6, layout},  // rows of 136 elements, no multiple of 16
  };
  for (const Row& one : cases) {
    CAPTURE(one.why);
    const Fp8Model model(one.shape);
    const OnDevice on(model.directory(), "auto", one.capability, one.matmul);
    const DeviceForms forms = forms_of(on);
    CHECK(forms.coded == one.coded);
    CHECK(forms.widened == 8 - one.coded);
    CHECK(forms.why == one.why);
    const auto full = test::Loaded::open(model.directory(), "bf16", 1, test::kDeviceOptions, "full");
    const double bound = one.coded > 0 ? kCodedShareMax : test::kShareMax;
    CHECK(share(logits_of(*on.gpu, 9)[0], logits_of(full->runner, 9)[0]) < bound);
    CHECK(keeps_codes(on.cpu->model, *on.device, {}) == (one.coded > 0));
  }
  const Fp8Model model({});
  CHECK(forms_of(OnDevice(model.directory(), "full", 90, kLt), "full").coded == 0);
}

TEST_CASE("model/split: two devices multiply their parts of fp8 codes, and widen those that cut a block") {
  for (const auto& [kind, coded] : {std::pair{Fp8Kind::rows, 8}, std::pair{Fp8Kind::blocks, 6}}) {
    const Fp8Model model({.kind = kind, .inner = 512});
    auto cpu = test::Loaded::open(model.directory(), "bf16", 1, test::kDeviceOptions, "auto");
    std::vector<std::shared_ptr<gpu::EmulatedDriver>> drivers;
    std::vector<std::unique_ptr<gpu::Device>> devices;
    for (int rank = 0; rank < 2; ++rank) {
      drivers.push_back(std::make_shared<gpu::EmulatedDriver>(gpu::EmulatedHost{.devices = 2}));
      devices.push_back(gpu::Device::open(drivers.back(), rank).value());
      REQUIRE_OK(devices.back()->choose_matmul(kLt));
    }
    auto group =
        gpu::DeviceGroup::open("emu", std::move(devices), std::make_unique<gpu::EmulatedNccl>(drivers)).value();
    const auto plan = plan_model(model.directory(), {.dtype = "bf16"});
    REQUIRE_OK(plan);
    CHECK(device_forms(*plan, group->device(0), {0, 2}).coded == static_cast<size_t>(coded));
    auto runner = Runner::open(cpu->model, cpu->parallel, test::kDeviceOptions, group.get());
    REQUIRE_OK(runner);
    const auto full = test::Loaded::open(model.directory(), "bf16", 1, test::kDeviceOptions, "full");
    CHECK(share(logits_of(*runner, 9)[0], logits_of(full->runner, 9)[0]) < kCodedShareMax);
  }
}

TEST_CASE("model/device: KV that was made from inputs in fp8 has a namespace of its own") {
  const Fp8Model model({});
  auto one = test::Loaded::open(model.directory(), "bf16");
  const attn::Plan plan = test::full_plan(one->model);
  const auto before = one->model.kv_namespace(plan, 64);
  CHECK(before.weight_dtype == "fp8_e4m3");
  one->model.round_inputs();
  CHECK(one->model.kv_namespace(plan, 64).weight_dtype == "fp8_e4m3 inputs fp8_e4m3");
}

}  // namespace device_codes_test
#endif

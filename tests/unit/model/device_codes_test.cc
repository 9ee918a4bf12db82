// fp8 checkpoints whose codes an emulated GPU multiplies by cuBLASLt: logits beside the widened weights, independence
// of rows, graphs of steps, memory, and the matrices that are widened all the same.
#include <algorithm>

#include "count.h"
#include "device_text.h"
#include "fp8_model.h"
#include "model/device_forms.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
namespace device_codes_test {

using namespace mc;
using namespace mc::model;
using test::Fp8Kind;
using test::Fp8Model;
using test::logits_of;
using test::OnDevice;
using test::OnDevices;
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
  auto forms = device_forms(*plan, *on.device, {});
  REQUIRE_OK(forms);
  return *forms;
}

/// The text of the namespace about the inputs of fp8 weights, on so many GPUs.
std::string rounded_of(const std::string& directory, size_t devices, const ModelOptions& options = {}) {
  const OnDevices on(directory, "auto", devices, kLt, options);
  auto text = rounded_text(on.cpu->model, *on.group);
  REQUIRE_OK(text);
  return *text;
}

}  // namespace

TEST_CASE(
    "model/device: products of a checkpoint's fp8 codes give the widened weights' logits but for rounded inputs") {
  for (const Fp8Kind kind : {Fp8Kind::blocks, Fp8Kind::rows, Fp8Kind::matrix}) {
    CAPTURE(static_cast<int>(kind));
    const Fp8Model model({.kind = kind, .has_biases = kind == Fp8Kind::rows});
    const OnDevice coded(model.directory(), "auto", {}, kLt), full(model.directory(), "full", {}, kLt);
    CHECK(forms_of(coded).coded == 8);  // four of each layer
    const size_t prompt = kind == Fp8Kind::blocks || test::is_full() ? 67 : 9;  // two pages, or less than a tile
    const auto got = logits_of(*coded.gpu, prompt), want = logits_of(full.cpu->runner, prompt);
    CHECK(share(got[0], want[0]) < kCodedShareMax);
    CHECK(got != logits_of(*full.gpu, prompt));  // the codes were used
  }
}

TEST_CASE("model/device: a row of products of codes has equal bits in every chunk and batch, and in a graph") {
  for (const Fp8Kind kind : {Fp8Kind::blocks, Fp8Kind::rows}) {
    const Fp8Model model({.kind = kind});
    const OnDevice graphs(model.directory(), "auto", {}, kLt), plain(model.directory(), "auto", {}, kLt, false);
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
  const OnDevice coded(model.directory(), "auto", {}, kLt), full(model.directory(), "full", {}, kLt);
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
    gpu::EmulatedHost host;
    gpu::MatmulChoice matmul;
    size_t coded;
    const char* why;
  };
  const char* layout = "scales are neither of rows nor of blocks of 128 x 128 that begin with a matrix";
  const Row cases[] = {
      {{}, {}, gpu::MatmulChoice::own, 0, "products of fp8 need cuBLASLt"},
      {{}, {.cublaslt_proposes = false}, kLt, 0, "cuBLASLt refuses products of fp8 of such shapes"},
      {{}, {.cublaslt_rows_max = 256}, kLt, 0, "cuBLASLt refuses products of fp8 of such shapes"},
      {{}, {.capability = 89}, kLt, 0, "compute capability 8.9 has no products of fp8 with such scales"},
      {{.kv_heads = 1}, {}, kLt, 6, layout},  // k has 64 rows, so v begins in the middle of a block
      {{.kind = Fp8Kind::rows, .inner = 136}, {}, kLt, 6, layout},  // rows of 136 elements, no multiple of 16
  };
  for (const Row& one : cases) {
    CAPTURE(one.why);
    const Fp8Model model(one.shape);
    const OnDevice on(model.directory(), "auto", one.host, one.matmul);
    const DeviceForms forms = forms_of(on);
    CHECK(forms.coded == one.coded);
    CHECK(forms.widened == 8 - one.coded);
    CHECK(forms.why == one.why);
    // The plan counts the bytes of what was loaded.
    const OnDevice widened(model.directory(), "full", one.host, one.matmul);
    const size_t own = lent(*on.device);
    const size_t fp8 =
        one.coded > 0 ? Runner::device_fp8_bytes(on.cpu->model.config(), test::kDeviceOptions) : size_t{0};
    const size_t planned = lent(*widened.device) - forms_of(widened, "full").bytes + forms.bytes + fp8;
    constexpr size_t kRounding = 64 << 10;
    CHECK(own <= planned + kRounding);
    CHECK(planned <= own + kRounding);
    const auto full = test::Loaded::open(model.directory(), "bf16", 1, test::kDeviceOptions, "full");
    const double bound = one.coded > 0 ? kCodedShareMax : test::kShareMax;
    CHECK(share(logits_of(*on.gpu, 9)[0], logits_of(full->runner, 9)[0]) < bound);
  }
  const Fp8Model model({});
  CHECK(forms_of(OnDevice(model.directory(), "full", {}, kLt), "full").coded == 0);
}

TEST_CASE("model/split: two devices multiply their parts of fp8 codes, and widen those that cut a block") {
  for (const auto& [kind, coded] : {std::pair{Fp8Kind::rows, 8}, std::pair{Fp8Kind::blocks, 6}}) {
    const Fp8Model model({.kind = kind, .inner = 512});
    const OnDevices on(model.directory(), "auto", 2, kLt);
    const auto plan = plan_model(model.directory(), {.dtype = "bf16"});
    REQUIRE_OK(plan);
    for (uint32_t rank = 0; rank < 2; ++rank)
      CHECK(device_forms(*plan, on.group->device(rank), {rank, 2})->coded == static_cast<size_t>(coded));
    const auto full = test::Loaded::open(model.directory(), "bf16", 1, test::kDeviceOptions, "full");
    CHECK(share(logits_of(*on.gpu, 9)[0], logits_of(full->runner, 9)[0]) < kCodedShareMax);
  }
}

TEST_CASE("model/split: a matrix that one rank cannot keep in fp8 is widened on all ranks") {
  const Fp8Model model({.inner = 384});  // the cut of down begins at 192 on the second rank
  const OnDevices on(model.directory(), "auto", 2, kLt);
  const auto plan = plan_model(model.directory(), {.dtype = "bf16"});
  REQUIRE_OK(plan);
  for (uint32_t rank = 0; rank < 2; ++rank)
    CHECK(device_forms(*plan, on.group->device(rank), {rank, 2})->coded == 2);  // the outputs of attention
  CHECK(lent(on.group->device(0)) == lent(on.group->device(1)));
}

TEST_CASE("model/split: biases of all matrices of a Llama are added once, beside bf16 and fp8 weights") {
  const Fp8Model model({.kind = Fp8Kind::rows, .has_all_biases = true});
  const auto full = test::Loaded::open(model.directory(), "bf16", 1, test::kDeviceOptions, "full");
  CHECK(full->model.config().bias.mlp);
  const auto want = logits_of(full->runner, 9, 2);
  for (const auto& [weights, bound] : {std::pair{"full", test::kShareMax}, std::pair{"auto", kCodedShareMax}})
    for (const auto& step : {size_t{0}, size_t{1}}) {
      const auto got = logits_of(*OnDevices(model.directory(), weights, 2, kLt).gpu, 9, step);
      CHECK(share(got[0], want[0]) < bound);
    }
}

TEST_CASE("model/device: the stages of a pipeline that keep fp8 weights have the bits of the whole model") {
  const Fp8Model model({});
  const OnDevices whole(model.directory(), "auto", 1, kLt);
  const auto tokens = test::prompt_of(9);
  const auto want = logits_of(*whole.gpu, tokens.size());
  const attn::Plan plan = test::full_plan(whole.cpu->model);
  std::vector<float> stream(tokens.size() * whole.cpu->model.config().hidden), logits(want[0].size());
  for (uint32_t stage = 0; stage < 2; ++stage) {
    const OnDevices on(model.directory(), "auto", 1, kLt, {.stage = stage, .stages = 2});
    auto pages = LocalPages::allocate(on.gpu->layout(), 64);
    REQUIRE_OK(pages);
    PrefillChunk chunk;
    chunk.tokens = tokens;
    chunk.pages = pages->pages();
    chunk.plan = &plan;
    chunk.first_layer = on.cpu->model.held().first;
    chunk.end_layer = on.cpu->model.held().end;
    const std::vector<float> before = stream;
    if (stage == 0) chunk.activations_out = stream;
    if (stage == 1) chunk.activations_in = before, chunk.logits = logits;
    REQUIRE_OK(on.gpu->prefill(chunk));
  }
  CHECK(logits == want[0]);
}

TEST_CASE("model/device: KV that was made from inputs in fp8 has a namespace of its own") {
  const Fp8Model model({});
  auto one = test::Loaded::open(model.directory(), "bf16");
  const attn::Plan plan = test::full_plan(one->model);
  const auto before = one->model.kv_namespace(plan, 64);
  CHECK(before.weight_dtype == "fp8_e4m3");
  one->model.round_inputs("8 matrices, 5d41402a");
  CHECK(one->model.kv_namespace(plan, 64).weight_dtype == "fp8_e4m3 inputs fp8_e4m3 of 8 matrices, 5d41402a");
}

TEST_CASE("model/device: the namespace names the matrices with rounded inputs of all stages, on any number of GPUs") {
  const Fp8Model some({.kind = Fp8Kind::rows, .coded_layers = 1});
  const std::string first = rounded_of(some.directory(), 1, {.stage = 0, .stages = 2});
  CHECK(first.starts_with("4 matrices, "));
  CHECK(rounded_of(some.directory(), 1, {.stage = 1, .stages = 2}) == first);
  CHECK(rounded_of(some.directory(), 1) == first);
  CHECK(rounded_of(some.directory(), 2) == first);
  const Fp8Model all({.kind = Fp8Kind::blocks, .inner = 512});
  CHECK(rounded_of(all.directory(), 1).starts_with("8 matrices, "));
  CHECK(rounded_of(all.directory(), 2).starts_with("6 matrices, "));  // two devices cut a block of q, k and v
  const Fp8Model same({.kind = Fp8Kind::rows, .inner = 136});
  CHECK(rounded_of(same.directory(), 1).starts_with("6 matrices, "));
  CHECK(rounded_of(same.directory(), 1) != rounded_of(all.directory(), 2));  // others, as many
  const OnDevice own(all.directory(), "auto");
  CHECK(*rounded_text(own.cpu->model, *OnDevices::emulated_group(1, gpu::MatmulChoice::own)) == "");
}

}  // namespace device_codes_test
#endif

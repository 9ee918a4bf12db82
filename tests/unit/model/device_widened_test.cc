// Models whose weights are not bf16, on an emulated GPU that multiplies bf16: quantised blocks of a GGUF file, whole
// numbers of 8 and 4 bits, and fp8. The same weights widened while loading are the reference.
#include <algorithm>

#include "count.h"
#include "device_text.h"
#include "fp8_model.h"
#include "gguf_writer.h"
#include "gpu/emulated.h"
#include "model/device_forms.h"
#include "model/device_upload.h"
#include "ops/quant_pack.h"
#include "shallow_model.h"

#if !defined(__SANITIZE_THREAD__)  // which takes the stacks of the emulated GPU's fibers for one
namespace device_widened_test {

using namespace mc;
using namespace mc::model;
using test::greedy_of;
using test::kShareMax;
using test::logits_of;
using test::OnDevice;
using test::share;

namespace {

/// Random blocks whose weights have a deviation of about 1 / 16 and a middle of about 0.
std::string blocks_of(Rng& rng, gguf::Type type, size_t rows, size_t columns) {
  std::string out;
  const gguf::TypeInfo& info = gguf::info(type);
  const auto half = [](float value) { return test::little_endian(ops::f32_to_f16(value)); };
  for (size_t block = 0; block < rows * columns / info.weights; ++block) {
    std::string bytes;
    for (size_t i = 0; i < info.bytes; ++i) bytes += static_cast<char>(rng.below(256));
    const auto size = static_cast<float>(0.5 + rng.uniform());
    if (type == gguf::Type::q8_0) bytes.replace(0, 2, half(size * 0x1p-11f));
    if (type == gguf::Type::q4_k) bytes.replace(0, 4, half(size * 0x1p-12f) + half(size * 0x1.ep-10f));
    if (type == gguf::Type::q6_k) bytes.replace(info.bytes - 2, 2, half(size * 0x1p-14f));
    out += bytes;
  }
  return out;
}

/// A llama of one layer, hidden width and inner width 256, as a quantised GGUF file has it.
std::string write_gguf(const test::GgufFolder& folder, gguf::Type type, gguf::Type type_of_v) {
  constexpr uint32_t kHidden = 256, kKv = 128, kVocab = 256;
  Rng rng(3);
  test::GgufWriter out;
  const std::string a = "llama";
  out.text("general.architecture", a).whole(a + ".block_count", 1).whole(a + ".context_length", 512);
  out.whole(a + ".embedding_length", kHidden).whole(a + ".attention.head_count", 4);
  out.whole(a + ".attention.head_count_kv", 2).whole(a + ".attention.key_length", 64);
  out.whole(a + ".feed_forward_length", kHidden).number(a + ".attention.layer_norm_rms_epsilon", 1e-5f);
  const auto add = [&](const std::string& name, uint32_t rows, gguf::Type of) {
    out.tensor(name + ".weight", {rows, kHidden}, of, blocks_of(rng, of, rows, kHidden));
  };
  const auto norm = [&](const std::string& name) {
    std::string ones;
    for (uint32_t i = 0; i < kHidden; ++i) ones += test::little_endian(1.0f);
    out.tensor(name + ".weight", {kHidden}, gguf::Type::f32, ones);
  };
  add("token_embd", kVocab, gguf::Type::q8_0);
  add("output", kVocab, gguf::Type::q6_k);
  norm("output_norm");
  norm("blk.0.attn_norm");
  norm("blk.0.ffn_norm");
  add("blk.0.attn_q", kHidden, type);
  add("blk.0.attn_k", kKv, type);
  add("blk.0.attn_v", kKv, type_of_v);
  add("blk.0.attn_output", kHidden, gguf::Type::q8_0);
  add("blk.0.ffn_gate", kHidden, type);
  add("blk.0.ffn_up", kHidden, type);
  add("blk.0.ffn_down", kHidden, gguf::Type::q6_k);
  return folder.write("m" + std::to_string(static_cast<int>(type)) + ".gguf", out);
}

}  // namespace

TEST_CASE("model/device: blocks of a GGUF file on emu give the bits of the weights that were widened while loading") {
  const test::GgufFolder folder;
  const std::string path = write_gguf(folder, gguf::Type::q4_k, gguf::Type::q4_k);
  const OnDevice kept(path, "auto"), full(path, "full");
  CHECK(kept.cpu->model.weight_dtype() == "blocks");
  CHECK(full.cpu->model.weight_dtype() == "bf16");
  const auto got = logits_of(*kept.gpu, 9, 1);
  CHECK(got == logits_of(*full.gpu, 9, 1));
  CHECK(share(got[0], logits_of(full.cpu->runner, 9)[0]) < kShareMax);
}

TEST_CASE("model/device: a GGUF file whose stacked matrices mix types agrees with the CPU on the widened weights") {
  const test::GgufFolder folder;
  const std::string path = write_gguf(folder, gguf::Type::q4_k, gguf::Type::q6_k);
  const OnDevice kept(path, "auto");
  const auto full = test::Loaded::open(path, "bf16", 1, test::kDeviceOptions, "full");
  CHECK(share(logits_of(*kept.gpu, 9)[0], logits_of(full->runner, 9)[0]) < kShareMax);
}

TEST_CASE("model/device: weights of 8 and 4 bits on emu agree with the CPU's products of whole numbers") {
  for (const char* weights : {"int8", "int4"}) {
    CAPTURE(weights);
    const OnDevice pair(test::shallow_model(), weights);
    CHECK(share(logits_of(*pair.gpu, 9)[0], logits_of(pair.cpu->runner, 9)[0]) < kShareMax);
  }
}

TEST_CASE("model/device: an fp8 checkpoint on a device without products of fp8 has the CPU's greedy text") {
  for (const test::Fp8Kind kind : {test::Fp8Kind::blocks, test::Fp8Kind::rows}) {
    const test::Fp8Model model({.kind = kind});
    const OnDevice kept(model.directory(), "auto"), full(model.directory(), "full");
    CHECK(kept.cpu->model.weight_dtype() == "fp8_e4m3");
    const size_t steps = static_cast<size_t>(test::count(3, 8));
    const auto got = logits_of(*kept.gpu, 9, steps);
    CHECK(got == logits_of(*full.gpu, 9, steps));
    CHECK(greedy_of(got) == greedy_of(logits_of(kept.cpu->runner, 9, steps)));
  }
}

TEST_CASE("model/split: blocks of a GGUF file and whole numbers on two devices agree with the widened weights") {
  const test::GgufFolder folder;
  const std::string shallow = test::shallow_model();
  const struct {
    std::string path;
    const char* weights;
  } cases[] = {{write_gguf(folder, gguf::Type::q8_0, gguf::Type::q8_0), "auto"},  // which stays in its file
               {write_gguf(folder, gguf::Type::q4_k, gguf::Type::q6_k), "auto"},
               {shallow, "int8"},
               {shallow, "int4"}};
  for (const auto& one : cases) {
    CAPTURE(one.path);
    CAPTURE(one.weights);
    const test::OnDevices split(one.path, one.weights, 2);
    const bool is_file = one.path != shallow;
    CHECK(split.cpu->model.weight_dtype() == (is_file ? "blocks" : one.weights));
    const OnDevice alone(one.path, one.weights);
    CHECK(share(logits_of(*split.gpu, 9)[0], logits_of(*alone.gpu, 9)[0]) < kShareMax);
  }
}

TEST_CASE("model/device: the memory that is planned for widened weights is what the device lends") {
  const OnDevice pair(test::shallow_model(), "int8");
  const auto memory = pair.device->memory();
  REQUIRE_OK(memory);
  const auto plan = plan_model(test::shallow_model(), {.dtype = "bf16", .weight_dtype = "int8"});
  REQUIRE_OK(plan);
  const DeviceForms forms = device_forms(*plan, *pair.device, {}).value();
  CHECK(forms.widened_text() == "weights widened to bf16: 13 of 13 matrices, 1.11 MiB from 670 KiB");
  const size_t planned = forms.bytes + Runner::device_workspace_bytes(pair.cpu->model.config(), test::kDeviceOptions);
  const size_t lent = memory->total - memory->free, rounding = 64 << 10;  // alignment of the parts
  CHECK(lent <= planned + rounding);
  CHECK(planned <= lent);
}

TEST_CASE("model/device: a cut of a matrix has its rows, its columns and zeros beside them") {
  Rng rng(test::seed());
  Parallel parallel(2);
  constexpr size_t kRows = 200, kColumns = 72;
  std::vector<float> values(kRows * kColumns);
  for (float& value : values) value = static_cast<float>(rng.normal());
  const ops::WeightRows part{.data = values.data(), .rows = kRows};
  const auto matrix = ops::PackedMatrix::quantise(parallel, {&part, 1}, kColumns, ops::QuantForm::eight).value();
  const MatrixCut cut{{{10, 30, 32}, {50, 130, 136}}, {8, 20, 24}};
  CHECK(cut.row_count(matrix.rows()) == 168);
  auto device = gpu::Device::open(std::make_shared<gpu::EmulatedDriver>(), 0).value();
  auto memory = gpu::DeviceBuffer::make(*device, 168 * 24 * 2, "cut").value();
  DeviceUpload upload(*device, parallel);
  REQUIRE_OK(upload.prepare());
  REQUIRE_OK(upload.matrix(matrix, cut, memory.address()));
  REQUIRE_OK(upload.finish());
  std::vector<bf16_t> got(168 * 24);
  REQUIRE_OK(device->read(memory.address(), std::as_writable_bytes(std::span(got))));
  size_t wrong = 0;
  for (size_t row = 0; row < 168; ++row)
    for (size_t column = 0; column < 24; ++column) {
      const bool second = row >= 32;
      const size_t in_run = second ? row - 32 : row;
      const bool is_zero = column >= 20 || in_run >= (second ? 130u : 30u);
      const float want = is_zero ? 0 : matrix.at((second ? 50 : 10) + in_run, 8 + column);
      wrong += got[row * 24 + column] == f32_to_bf16(want) ? 0 : 1;
    }
  CHECK(wrong == 0);
}

}  // namespace device_widened_test
#endif

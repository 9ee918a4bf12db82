// A random Llama whose matrices are blocks of one GGUF type, for every type, beside plain files of the same weights:
// the blocks widened by their definition, and the blocks as this program keeps them. The definition has goldens of
// ggml's own reader (unit-gguf), and the packing has its bounds (property-ops).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/rng.h"
#include "count.h"
#include "double_llama.h"
#include "gguf_writer.h"
#include "golden.h"
#include "ops/quant_pack.h"

namespace gguf_types_test {

using namespace mc;
using namespace mc::model;
using test::GgufWriter;

namespace {

constexpr uint32_t kHidden = 256, kIntermediate = 512, kHeads = 4, kKvHeads = 2, kLayers = 2, kVocab = 384;

struct Factor {
  size_t offset;  // in a block
  double value;
};

/// The f16 factors of a block with which random codes give weights from about -0.1 to 0.1.
std::vector<Factor> factors_of(gguf::Type type) {
  constexpr double kLargest = 0.1;
  switch (type) {
    case gguf::Type::q4_0: return {{0, kLargest / 8}};
    case gguf::Type::q4_1: return {{0, kLargest / 15}, {2, -kLargest / 2}};
    case gguf::Type::q5_0: return {{0, kLargest / 16}};
    case gguf::Type::q5_1: return {{0, kLargest / 31}, {2, -kLargest / 2}};
    case gguf::Type::q8_0: return {{0, kLargest / 128}};
    case gguf::Type::q2_k: return {{80, kLargest / (15 * 3)}, {82, kLargest / 2 / 15}};
    case gguf::Type::q3_k: return {{108, kLargest / (32 * 4)}};
    case gguf::Type::q4_k: return {{0, kLargest / (63 * 15)}, {2, kLargest / 2 / 63}};
    case gguf::Type::q5_k: return {{0, kLargest / (63 * 31)}, {2, kLargest / 2 / 63}};
    case gguf::Type::q6_k: return {{208, kLargest / (128 * 32)}};
    case gguf::Type::iq4_nl: return {{0, kLargest / 127}};
    case gguf::Type::f32:
    case gguf::Type::f16:
    case gguf::Type::bf16: break;
  }
  FAIL("not a type of blocks");
  return {};
}

/// How a file has the matrices.
struct Form {
  gguf::Type type;
  bool is_plain = false;                              // as f32
  std::optional<ops::QuantForm> packed = std::nullopt;  // f32 of the weights that this packing leaves
};

std::string random_blocks(Rng& rng, const gguf::TypeInfo& type, size_t bytes) {
  std::string out(bytes, '\0');
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = rng.next();
    std::memcpy(out.data() + at, &word, std::min(sizeof word, bytes - at));
  }
  for (size_t block = 0; block < bytes; block += type.bytes)
    for (const Factor& factor : factors_of(type.type)) {
      const uint16_t half = ops::f32_to_f16(static_cast<float>(factor.value * (0.5 + rng.uniform())));
      std::memcpy(out.data() + block + factor.offset, &half, sizeof half);
    }
  return out;
}

/// The values of a row of blocks in f32.
std::vector<float> values_of(const Form& form, const std::byte* row, size_t columns) {
  std::vector<float> out(columns);
  if (!form.packed) {
    gguf::widen_row(form.type, row, columns, out.data());
    return out;
  }
  std::vector<std::byte> panel(ops::quant_panel_bytes(columns, *form.packed));
  ops::pack_blocks(form.type, row, columns, *form.packed, 0, panel.data());
  for (size_t i = 0; i < columns; ++i) out[i] = ops::quant_weight(panel.data(), *form.packed, 0, i);
  return out;
}

void add_matrix(GgufWriter& out, const std::string& name, const Form& form, size_t rows, size_t columns) {
  Rng rng = Rng(test::seed()).fork(name);
  const gguf::TypeInfo& type = gguf::info(form.type);
  const size_t row_bytes = gguf::row_bytes(form.type, columns);
  const std::string blocks = random_blocks(rng, type, rows * row_bytes);
  if (!form.is_plain) return void(out.tensor(name, {rows, columns}, form.type, blocks));
  std::string floats;
  for (size_t row = 0; row < rows; ++row) {
    const auto* at = reinterpret_cast<const std::byte*>(blocks.data()) + row * row_bytes;
    const std::vector<float> values = values_of(form, at, columns);
    floats.append(reinterpret_cast<const char*>(values.data()), columns * sizeof(float));
  }
  out.tensor(name, {rows, columns}, gguf::Type::f32, std::move(floats));
}

void add_norm(GgufWriter& out, const std::string& name) {
  std::string ones;
  for (uint32_t i = 0; i < kHidden; ++i) ones += test::little_endian(1.0f);
  out.tensor(name, {kHidden}, gguf::Type::f32, ones);
}

GgufWriter random_llama(const Form& form) {
  GgufWriter out;
  out.text("general.architecture", "llama");
  out.whole("llama.block_count", kLayers).whole("llama.context_length", 512);
  out.whole("llama.embedding_length", kHidden).whole("llama.feed_forward_length", kIntermediate);
  out.whole("llama.attention.head_count", kHeads).whole("llama.attention.head_count_kv", kKvHeads);
  out.number("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const size_t kv = kHidden / kHeads * kKvHeads;
  Form embeddings = form;  // their rows are read one by one, never packed
  embeddings.packed.reset();
  add_matrix(out, "token_embd.weight", embeddings, kVocab, kHidden);
  add_matrix(out, "output.weight", form, kVocab, kHidden);
  add_norm(out, "output_norm.weight");
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::string blk = "blk." + std::to_string(layer) + ".";
    add_norm(out, blk + "attn_norm.weight");
    add_norm(out, blk + "ffn_norm.weight");
    add_matrix(out, blk + "attn_q.weight", form, kHidden, kHidden);
    add_matrix(out, blk + "attn_k.weight", form, kv, kHidden);
    add_matrix(out, blk + "attn_v.weight", form, kv, kHidden);
    add_matrix(out, blk + "attn_output.weight", form, kHidden, kHidden);
    add_matrix(out, blk + "ffn_gate.weight", form, kIntermediate, kHidden);
    add_matrix(out, blk + "ffn_up.weight", form, kIntermediate, kHidden);
    add_matrix(out, blk + "ffn_down.weight", form, kHidden, kIntermediate);
  }
  return out;
}

struct Answer {
  Generated generated;
  std::vector<float> logits;  // of the token after the prompt
};

std::vector<uint32_t> random_prompt() {
  Rng rng(test::seed());
  std::vector<uint32_t> out;
  for (int i = 0; i < 40; ++i) out.push_back(static_cast<uint32_t>(rng.below(kVocab)));
  return out;
}

Answer answer_of(test::Loaded& loaded) {
  GenerateRequest request;
  request.prompt = random_prompt();
  request.max_tokens = test::count(8, 24);
  request.sampling.temperature = 0;
  request.sampling.logprobs = 2;
  request.prefill_plan = request.decode_plan = test::full_plan(loaded.model);
  auto generated = generate(loaded.runner, request, SystemClock::instance());
  REQUIRE_OK(generated);
  Answer out{std::move(*generated), std::vector<float>(kVocab)};
  auto pages = LocalPages::allocate(loaded.runner.layout(), static_cast<int64_t>(request.prompt.size()));
  REQUIRE_OK(pages);
  REQUIRE_OK(loaded.runner.prefill({.tokens = request.prompt,
                                    .pages = pages->pages(),
                                    .plan = &request.prefill_plan,
                                    .logits = out.logits}));
  return out;
}

Answer answer_of(const test::GgufFolder& folder, const Form& form, const std::string& weights = "auto") {
  const auto loaded = test::Loaded::open(folder.write("m.gguf", random_llama(form)), "f32", 1, {}, weights);
  return answer_of(*loaded);
}

/// Checks that the logits differ by at most `bound` of their range, and that the texts are equal up to a token whose
/// two best candidates are closer than that.
void check_close(const Answer& left, const Answer& right, double bound) {
  const auto [least, largest] = std::minmax_element(right.logits.begin(), right.logits.end());
  const double most = bound * (double{*largest} - *least);
  for (size_t i = 0; i < kVocab; ++i) CHECK(std::abs(double{left.logits[i]} - right.logits[i]) <= most);
  for (size_t i = 0; i < right.generated.ids.size(); ++i) {
    const auto& top = right.generated.sampled[i].top;
    REQUIRE(top.size() == 2);
    if (top[0].logprob - top[1].logprob <= 2 * most) break;
    CHECK(left.generated.ids[i] == right.generated.ids[i]);
  }
}

/// The largest difference between logits and their definition, as a share of the range of the definition.
double largest_error(const std::vector<float>& logits, const std::vector<double>& defined) {
  REQUIRE(logits.size() == defined.size());
  const auto [least, most] = std::minmax_element(defined.begin(), defined.end());
  double error = 0;
  for (size_t i = 0; i < defined.size(); ++i) error = std::max(error, std::abs(double{logits[i]} - defined[i]));
  return error / (*most - *least);
}

/// Bound of largest_error() for weights that stay quantised. Inputs of a product move by half a step, which is 1 /
/// 65024 of the largest of their 32, or 1 / 16382 of the largest of 256 in the forms of K types: 2e-5 and 1e-4 of an
/// input's usual size. Nine products follow one another here, whose errors add up as independent ones do, to three
/// times that; the largest of 384 logits is off by three times the usual error, and the range of the logits is six
/// times their usual size. The bounds are six times the result. Q2_K and Q3_K have scales for 16 weights, and become 8
/// bits with one for 32: a weight moves by half of 1 / 255 of the range of its group besides.
double kept_bound(gguf::Type type) {
  if (type == gguf::Type::q2_k || type == gguf::Type::q3_k) return 1e-2;
  return ops::quant_block_groups(*ops::kept_form(type)) == 1 ? 2e-4 : 1e-3;
}

}  // namespace

TEST_CASE("model/gguf_types: logits of every type are those of its definition in double") {
  const test::GgufFolder folder;
  CAPTURE(test::seed());
  for (const gguf::TypeInfo& type : gguf::types()) {
    if (type.plain) continue;
    CAPTURE(type.name);
    const std::string path = folder.write("m.gguf", random_llama({type.type}));
    const std::vector<double> defined = test::DoubleLlama(path).logits(random_prompt());
    // In f32 a sum of n products is off by at most n / 2^24 of the sum of their magnitudes: 3e-5 for the longest of 512
    // here. Rounding errors have both signs, so that all products of two layers together stay below this bound of one.
    CHECK(largest_error(answer_of(*test::Loaded::open(path, "f32", 1, {}, "full")).logits, defined) < 3e-5);
    CHECK(largest_error(answer_of(*test::Loaded::open(path, "f32", 1)).logits, defined) < kept_bound(type.type));
  }
}

TEST_CASE("model/gguf_types: blocks of every type give the text of their weights, widened or as they are kept") {
  const test::GgufFolder folder;
  CAPTURE(test::seed());
  size_t tried = 0;
  for (const gguf::TypeInfo& type : gguf::types()) {
    const auto own = ops::kept_form(type.type);
    if (!own) continue;
    CAPTURE(type.name);
    ++tried;
    const Answer widened = answer_of(folder, {type.type}, "full");
    const Answer defined = answer_of(folder, {.type = type.type, .is_plain = true});
    CHECK(widened.logits == defined.logits);
    CHECK(widened.generated.ids == defined.generated.ids);
    for (const auto& [weights, packed_form] : {std::pair{"auto", *own}, std::pair{"int8", ops::QuantForm::eight},
                                        std::pair{"int4", ops::QuantForm::four}}) {
      CAPTURE(weights);
      if (packed_form == *own && weights != std::string_view("auto")) continue;
      const Answer kept = answer_of(folder, {type.type}, weights);
      const Answer packed = answer_of(folder, {.type = type.type, .is_plain = true, .packed = packed_form});
      // An input moves by at most 1 / 16382 of the largest of its 256; a few layers of that stay below 1e-3.
      check_close(kept, packed, 1e-3);
    }
  }
  CHECK(tried == 11);
}

TEST_CASE("model/gguf_types: Q8_0 matrices stay in their file, also a removed one, with the bits of packed ones") {
  const test::GgufFolder folder;
  CAPTURE(test::seed());
  const GgufWriter file = random_llama({gguf::Type::q8_0});
  const std::string path = folder.write("m.gguf", file);
  const auto placed = test::Loaded::open(path, "f32", 2), packed = test::Loaded::open(path, "f32", 2, {}, "int8");
  std::filesystem::remove(path);
  const Layer &in_file = placed->model.layers()[1], &in_memory = packed->model.layers()[1];
  for (const auto& [left, right] :
       {std::pair{&in_file.qkv, &in_memory.qkv}, std::pair{&in_file.output, &in_memory.output},
        std::pair{&in_file.mlp.gate_up, &in_memory.mlp.gate_up}, std::pair{&in_file.mlp.down, &in_memory.mlp.down},
        std::pair{&placed->model.head(), &packed->model.head()}}) {
    CHECK(left->is_in_place());
    CHECK_FALSE(right->is_in_place());
    CHECK(left->bytes() == left->rows() * gguf::row_bytes(gguf::Type::q8_0, left->columns()));
  }
  const Answer left = answer_of(*placed), right = answer_of(*packed);
  CHECK(left.logits == right.logits);
  CHECK(left.generated.ids == right.generated.ids);
}

TEST_CASE("model/gguf_types: a table of embeddings stays in its blocks, and each row is its definition") {
  const test::GgufFolder folder;
  for (const gguf::TypeInfo& type : gguf::types()) {
    if (type.plain) continue;
    CAPTURE(type.name);
    const std::string path = folder.write("m.gguf", random_llama({type.type}));
    const auto kept = test::Loaded::open(path, "f32", 1), widened = test::Loaded::open(path, "f32", 1, {}, "full");
    CHECK(kept->model.embedding_bytes() == kVocab * gguf::row_bytes(type.type, kHidden));
    CHECK(widened->model.embedding_bytes() == kVocab * kHidden * sizeof(float));
    std::vector<float> row(kHidden), defined(kHidden);
    for (uint32_t token : {0u, 1u, kVocab - 1}) {
      kept->model.embed(token, row.data());
      widened->model.embed(token, defined.data());
      CHECK(row == defined);
    }
  }
}

}  // namespace gguf_types_test

// The golden models as GGUF files: the same configuration and, bit for bit, the same logits as their safetensors.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/errors.h"
#include "gguf_writer.h"
#include "golden.h"
#include "model/config_gguf.h"
#include "model/find.h"
#include "model/weights_gguf.h"

using namespace mc;
using namespace mc::model;
using test::GgufWriter;

namespace gguf_test {
namespace {

using Folder = test::GgufFolder;

namespace fs = std::filesystem;

std::string name_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::llama: return "llama";
    case Architecture::qwen2: return "qwen2";
    case Architecture::qwen3: return "qwen3";
    case Architecture::qwen2_moe: return "qwen2moe";
    case Architecture::qwen3_moe: return "qwen3moe";
    case Architecture::mistral: break;
  }
  FAIL("no GGUF architecture");
  return "";
}

GgufWriter metadata(const ModelConfig& c) {
  GgufWriter out;
  const std::string a = name_of(c.architecture);
  out.text("general.architecture", a);
  out.whole(a + ".block_count", c.layers).whole(a + ".context_length", c.max_positions);
  out.whole(a + ".embedding_length", c.hidden).whole(a + ".attention.head_count", c.heads);
  out.whole(a + ".attention.head_count_kv", c.kv_heads).whole(a + ".attention.key_length", c.head_dim);
  out.whole(a + ".feed_forward_length", c.intermediate);
  out.number(a + ".attention.layer_norm_rms_epsilon", c.norm_epsilon);
  out.number(a + ".rope.freq_base", static_cast<float>(c.rope.theta));
  if (c.rope.kind == ops::RopeConfig::Kind::linear) {
    out.text(a + ".rope.scaling.type", "linear").number(a + ".rope.scaling.factor", static_cast<float>(c.rope.factor));
  } else if (c.rope.kind == ops::RopeConfig::Kind::yarn) {
    out.text(a + ".rope.scaling.type", "yarn").number(a + ".rope.scaling.factor", static_cast<float>(c.rope.factor));
    out.whole(a + ".rope.scaling.original_context_length", c.rope.original_positions);
  }
  if (c.mixture.experts > 0) {
    out.whole(a + ".expert_count", c.mixture.experts).whole(a + ".expert_used_count", c.mixture.per_token);
    out.whole(a + ".expert_feed_forward_length", c.mixture.intermediate);
    out.flag(a + ".expert_weights_norm", c.mixture.normalise);
    if (c.mixture.shared_intermediate > 0)
      out.whole(a + ".expert_shared_feed_forward_length", c.mixture.shared_intermediate);
  }
  if (c.special.bos) out.whole("tokenizer.ggml.bos_token_id", *c.special.bos);
  if (!c.special.eos.empty()) out.whole("tokenizer.ggml.eos_token_id", c.special.eos[0]);
  return out;
}

/// The converter's order of the rows of q and k: row (head, i of head / 2, half) has what row (head, half, i) had.
std::string interleaved(const Tensor& tensor, size_t head) {
  const size_t rows = tensor.entry.shape[0], line = tensor.bytes() / rows;
  std::string out;
  for (size_t first = 0; first < rows; first += head)
    for (size_t i = 0; i < head / 2; ++i)
      for (size_t half = 0; half < 2; ++half)
        out.append(reinterpret_cast<const char*>(tensor.data) + (first + half * head / 2 + i) * line, line);
  return out;
}

const std::pair<std::string, std::string> kParts[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
};

gguf::Type type_of(const Tensor& tensor) {
  for (const gguf::TypeInfo& type : gguf::types())
    if (type.plain && type.plain == tensor.entry.dtype) return type.type;
  FAIL("no GGUF type for " << tensor.entry.dtype_name);
  return gguf::Type::f32;
}

/// A matrix as Q8_0 with a power of two as scale, or as Q4_1 with one and a minimum of whole scales.
std::string quantised(const Tensor& tensor, gguf::Type type) {
  std::string out;
  for (uint64_t first = 0; first < tensor.entry.elements(); first += 32) {
    float group[32], largest = 1e-6f;
    gguf::widen_row(type_of(tensor), tensor.data + gguf::row_bytes(type_of(tensor), first), 32, group);
    for (float value : group) largest = std::max(largest, std::abs(value));
    const int codes = type == gguf::Type::q8_0 ? 127 : 7;
    const int exponent = std::max(-14, static_cast<int>(std::ceil(std::log2(largest / static_cast<float>(codes)))));
    const float scale = std::ldexp(1.0f, exponent);
    out += test::little_endian(static_cast<uint16_t>((exponent + 15) << 10));
    if (type == gguf::Type::q8_0) {
      for (float value : group) out += static_cast<char>(std::lrint(value / scale));
      continue;
    }
    out += test::little_endian(static_cast<uint16_t>(0x8000 | (exponent + 18) << 10));  // -8 scales
    for (size_t i = 0; i < 16; ++i)
      out += static_cast<char>((std::lrint(group[i] / scale) + 8) | (std::lrint(group[i + 16] / scale) + 8) << 4);
  }
  return out;
}

/// Adds the tensors of one layer, "model.layers.N.".
void add_layer(GgufWriter& out, const WeightFiles& files, const ModelConfig& c, uint32_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".", blk = "blk." + std::to_string(layer) + ".";
  for (const auto& [ours, theirs] : kParts)
    for (const std::string suffix : {".weight", ".bias"}) {
      const Tensor* tensor = files.find(prefix + ours + suffix);
      if (!tensor) continue;
      const bool pairs = c.architecture == Architecture::llama && (theirs == "attn_q" || theirs == "attn_k");
      std::string data = pairs ? interleaved(*tensor, c.head_dim)
                               : std::string(reinterpret_cast<const char*>(tensor->data), tensor->bytes());
      const bool vector = theirs == "ffn_gate_inp_shexp";
      out.tensor(blk + theirs + suffix, vector ? std::vector<uint64_t>{c.hidden} : tensor->entry.shape,
                 type_of(*tensor), std::move(data));
    }
  if (!c.has_mixture(layer)) return;
  for (const std::string part : {"gate", "up", "down"}) {
    std::string data;
    const Tensor* tensor = nullptr;
    for (uint32_t i = 0; i < c.mixture.experts; ++i) {
      tensor = files.find(prefix + "mlp.experts." + std::to_string(i) + "." + part + "_proj.weight");
      REQUIRE(tensor != nullptr);
      data.append(reinterpret_cast<const char*>(tensor->data), tensor->bytes());
    }
    out.tensor(blk + "ffn_" + part + "_exps.weight",
               {c.mixture.experts, tensor->entry.shape[0], tensor->entry.shape[1]}, type_of(*tensor), std::move(data));
  }
}

GgufWriter converted(const std::string& directory, const ModelConfig& config) {
  GgufWriter out = metadata(config);
  const auto files = WeightFiles::open(directory);
  REQUIRE_OK(files);
  const std::pair<const char*, const char*> whole[] = {{"model.embed_tokens.weight", "token_embd.weight"},
                                                       {"lm_head.weight", "output.weight"},
                                                       {"model.norm.weight", "output_norm.weight"}};
  for (const auto& [ours, theirs] : whole)
    if (const Tensor* tensor = files->find(ours); tensor && !(config.tied_embeddings && ours[0] == 'l'))
      out.tensor(theirs, tensor->entry.shape, type_of(*tensor),
                 std::string(reinterpret_cast<const char*>(tensor->data), tensor->bytes()));
  for (uint32_t layer = 0; layer < config.layers; ++layer) add_layer(out, *files, config, layer);
  return out;
}

std::vector<float> logits_of(test::Loaded& loaded, const std::vector<uint32_t>& prompt) {
  auto pages = LocalPages::allocate(loaded.runner.layout(), static_cast<int64_t>(prompt.size()));
  REQUIRE_OK(pages);
  std::vector<float> logits(loaded.model.config().vocab);
  const attn::Plan plan = test::full_plan(loaded.model);
  REQUIRE_OK(loaded.runner.prefill({.tokens = prompt, .pages = pages->pages(), .plan = &plan, .logits = logits}));
  return logits;
}

/// A llama of one layer whose tensors are zero.
GgufWriter small_llama(const std::string& architecture = "llama") {
  GgufWriter out;
  const std::string a = "llama";
  out.text("general.architecture", architecture);
  out.whole(a + ".block_count", 1).whole(a + ".context_length", 64).whole(a + ".embedding_length", 8);
  out.whole(a + ".attention.head_count", 1).whole(a + ".feed_forward_length", 8);
  out.number(a + ".attention.layer_norm_rms_epsilon", 1e-5f);
  out.tensor("token_embd.weight", {4, 8}, gguf::Type::f32, std::string(4 * 8 * 4, '\0'));
  return out;
}

std::string config_error(const Folder& folder, const GgufWriter& writer) {
  const auto config = read_config(folder.write("m.gguf", writer));
  return config ? "ok" : "MC" + std::to_string(config.error().mc) + " " + config.error().what;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("model/gguf: golden models converted to GGUF have their configuration and their logits bit for bit") {
  const Folder folder;
  for (const char* name : {"llama-mha", "llama-mqa-bias", "llama-linear", "qwen2-gqa", "qwen2-untied", "qwen3-gqa",
                           "qwen2-yarn", "qwen2-moe", "qwen3-moe"}) {
    CAPTURE(name);
    const test::Golden golden = test::read_golden(name);
    const auto config = read_config(golden.directory);
    REQUIRE_OK(config);
    const std::string path = folder.write("m.gguf", converted(golden.directory, *config));
    const auto read = read_config(path);
    REQUIRE_OK(read);
    CHECK(read->vocab == config->vocab);
    CHECK(read->tied_embeddings == config->tied_embeddings);
    CHECK(read->heads == config->heads);
    CHECK(read->kv_heads == config->kv_heads);
    CHECK(read->rope.kind == config->rope.kind);
    CHECK(read->mixture.experts == config->mixture.experts);
    CHECK(read->bias.qkv == config->bias.qkv);
    for (const char* weights : {"auto", "int8"}) {
      auto theirs = test::Loaded::open(golden.directory, "f32", 1, {}, weights);
      auto ours = test::Loaded::open(path, "f32", 1, {}, weights);
      CHECK(ours->model.parameters() == theirs->model.parameters());
      for (const test::GoldenCase& one : golden.cases)
        CHECK(logits_of(*ours, one.prompt) == logits_of(*theirs, one.prompt));
    }
  }
}

TEST_CASE("model/gguf: weights that stay quantised give the logits of the widened ones but for rounding") {
  const Folder folder;
  const test::Golden golden = test::read_golden("qwen3-gqa");
  const auto config = read_config(golden.directory);
  REQUIRE_OK(config);
  const auto files = WeightFiles::open(golden.directory);
  REQUIRE_OK(files);
  for (gguf::Type type : {gguf::Type::q8_0, gguf::Type::q4_1}) {
    CAPTURE(gguf::info(type).name);
    GgufWriter writer = metadata(*config);
    const auto add = [&](const std::string& ours, const std::string& theirs) {
      const Tensor* tensor = files->find(ours);
      if (!tensor) return;
      const bool matrix = tensor->entry.shape.size() == 2 && tensor->entry.shape[1] % 32 == 0;
      writer.tensor(theirs, tensor->entry.shape, matrix ? type : type_of(*tensor),
                    matrix ? quantised(*tensor, type)
                           : std::string(reinterpret_cast<const char*>(tensor->data), tensor->bytes()));
    };
    add("model.embed_tokens.weight", "token_embd.weight");
    add("model.norm.weight", "output_norm.weight");
    if (!config->tied_embeddings) add("lm_head.weight", "output.weight");
    for (uint32_t layer = 0; layer < config->layers; ++layer)
      for (const auto& [ours, theirs] : kParts)
        add("model.layers." + std::to_string(layer) + "." + ours + ".weight",
            "blk." + std::to_string(layer) + "." + theirs + ".weight");
    const std::string path = folder.write("q.gguf", writer);
    const auto kept = test::Loaded::open(path, "f32", 1), full = test::Loaded::open(path, "f32", 1, {}, "full");
    CHECK(kept->model.weight_dtype() == "blocks");
    CHECK(full->model.weight_dtype() == "f32");
    CHECK(kept->model.weight_bytes() < full->model.weight_bytes() / 2);
    const attn::Plan plan = test::full_plan(kept->model);
    CHECK(kept->model.kv_namespace(plan, 64).id() != full->model.kv_namespace(plan, 64).id());
    const std::string version = " version " + std::to_string(ops::kQuantVersion);
    CHECK(kept->model.kv_namespace(plan, 64).weight_dtype == "blocks" + version);
    CHECK(full->model.kv_namespace(plan, 64).weight_dtype == "f32");
    for (const test::GoldenCase& one : golden.cases) {
      const auto left = logits_of(*kept, one.prompt), right = logits_of(*full, one.prompt);
      const auto [least, largest] = std::minmax_element(right.begin(), right.end());
      // An input moves by at most 1 / 65024 of its group's largest; a few layers of that stay far below 1e-3.
      for (size_t i = 0; i < left.size(); ++i) CHECK(std::abs(left[i] - right[i]) <= 1e-3 * (*largest - *least));
    }
  }
}

TEST_CASE("model/gguf: fields that are missing, wrong, foreign or contradictory are refused by key and value") {
  const Folder folder;
  CHECK(config_error(folder, small_llama()) == "ok");
  CHECK(contains(config_error(folder, small_llama("gemma3")),
                 "MC3003 " + (folder.path / "m.gguf").string() +
                     ": general.architecture is 'gemma3'; supported: llama, qwen2, qwen3, qwen2moe, qwen3moe"));
  CHECK(contains(config_error(folder, GgufWriter()), "general.architecture is missing"));
  CHECK(contains(config_error(folder, GgufWriter().text("general.architecture", "llama")),
                 "llama.embedding_length is missing"));
  CHECK(contains(config_error(folder, small_llama().whole("llama.attention.head_count_kv", 3)),
                 "llama.attention.head_count is 1, not a multiple of llama.attention.head_count_kv 3"));
  CHECK(contains(config_error(folder, small_llama().whole("llama.rope.dimension_count", 4)),
                 "llama.rope.dimension_count is 4; supported: 8, the size of a head"));
  CHECK(contains(config_error(folder, small_llama().whole("llama.expert_count", 8)),
                 "llama.expert_count is 8; supported: 0 for llama"));
  CHECK(contains(config_error(folder, small_llama().whole("llama.attention.sliding_window", 4096)),
                 "llama.attention.sliding_window is 4096; supported: 0"));
  CHECK(contains(
      config_error(folder,
                   small_llama().text("llama.rope.scaling.type", "longrope").number("llama.rope.scaling.factor", 4)),
      "MC3004 " + (folder.path / "m.gguf").string() + ": llama.rope.scaling.type is 'longrope'"));
  CHECK(contains(config_error(folder, small_llama().whole("tokenizer.ggml.eos_token_id", 4)),
                 "tokenizer.ggml.eos_token_id is 4; it must be below 4"));
  CHECK(contains(config_error(folder, small_llama().texts("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e"})),
                 "has 4 rows, and tokenizer.ggml.tokens has 5 tokens"));
  GgufWriter dense;
  dense.text("general.architecture", "qwen3moe");
  for (const char* field : {"block_count", "attention.head_count", "expert_count", "expert_used_count"})
    dense.whole(std::string("qwen3moe.") + field, 1);
  for (const char* field : {"context_length", "embedding_length", "expert_feed_forward_length"})
    dense.whole(std::string("qwen3moe.") + field, 8);
  dense.number("qwen3moe.attention.layer_norm_rms_epsilon", 1e-5f);
  dense.tensor("token_embd.weight", {4, 8}, gguf::Type::f32, std::string(4 * 8 * 4, '\0'));
  CHECK(contains(config_error(folder, dense), "qwen3moe.feed_forward_length is missing, but layer 0 has no router"));
}

TEST_CASE("model/gguf: the divisors of Llama 3.1's frequencies become its RoPE, and others are refused") {
  const Folder folder;
  ops::RopeConfig rope{.kind = ops::RopeConfig::Kind::llama3, .theta = 500000, .factor = 8};
  const ops::RopeConfig plain{.theta = 500000};
  const auto with_divisors = [&](float last) {
    const ops::Rope scaled(rope, 8), unscaled(plain, 8);
    std::string bytes;
    for (size_t i = 0; i < 4; ++i)
      bytes += test::little_endian(i < 3 ? unscaled.frequency()[i] / scaled.frequency()[i] : last);
    GgufWriter out = small_llama();
    out.number("llama.rope.freq_base", 500000);
    out.tensor("rope_freqs.weight", {4}, gguf::Type::f32, bytes);
    return out;
  };
  const auto config = read_config(folder.write("m.gguf", with_divisors(8)));
  REQUIRE_OK(config);
  CHECK(config->rope == rope);
  CHECK(contains(config_error(folder, with_divisors(9)), "MC3004"));
}

TEST_CASE("model/gguf: tensors without a place, of wrong shapes or of quantised norms are refused by name") {
  const Folder folder;
  const auto open_error = [&](const GgufWriter& writer) {
    Parallel parallel(1);
    const auto model = Model::open(folder.write("m.gguf", writer), {}, parallel);
    return model ? "ok" : model.error().what;
  };
  CHECK(contains(open_error(small_llama()), "has no tensor 'model.layers.0.input_layernorm.weight'"));
  CHECK(contains(
      open_error(small_llama().tensor("blk.0.attn_sub_norm.weight", {8}, gguf::Type::f32, std::string(32, '\0'))),
      "tensor 'blk.0.attn_sub_norm.weight' has no place in the architecture LlamaForCausalLM"));
  GgufWriter beyond = small_llama();
  beyond.tensor("blk.1.attn_v.weight", {8}, gguf::Type::f32, std::string(32, '\0'));
  CHECK(contains(open_error(beyond), "tensor 'blk.1.attn_v.weight' is of layer 1, but block_count is 1"));
  GgufWriter narrow = small_llama();
  narrow.tensor("blk.0.attn_norm.weight", {4}, gguf::Type::f32, std::string(16, '\0'));
  CHECK(contains(open_error(narrow), "has shape [4]; its metadata ask for [8]"));
  CHECK(contains(open_error(small_llama()
                                .tensor("blk.0.attn_v.weight", {8}, gguf::Type::f32, std::string(32, '\0'))
                                .tensor("blk.00.attn_v.weight", {8}, gguf::Type::f32, std::string(32, '\0'))),
                 "two tensors are model.layers.0.self_attn.v_proj.weight"));
}

TEST_CASE("model/find: a GGUF file, or the only one of a directory, is a model") {
  const Folder folder;
  const std::string path = folder.write("one.gguf", small_llama());
  CHECK(find_model(path).value() == path);
  CHECK(find_model(folder.path.string()).value() == path);
  folder.write("two-00001-of-00002.gguf", small_llama());
  CHECK(contains(find_model(folder.path.string()).error().what, "has 2 GGUF models"));
  fs::remove(path);
  folder.write("two-00002-of-00002.gguf", small_llama());
  CHECK(contains(find_model(folder.path.string()).value(), "two-00001-of-00002.gguf"));
  fs::remove(folder.path / "two-00001-of-00002.gguf");
  folder.write("best-of-3-00001-of-00003.gguf", small_llama());
  folder.write("best-of-3-00002-of-00003.gguf", small_llama());
  CHECK(contains(find_model(folder.path.string()).value(), "best-of-3-00001-of-00003.gguf"));
  std::ofstream(folder.path / "pointer.gguf") << "version https://git-lfs.github.com/spec/v1";
  CHECK(
      contains(find_model((folder.path / "pointer.gguf").string()).error().what, "does not begin with the bytes GGUF"));
}

}  // namespace gguf_test

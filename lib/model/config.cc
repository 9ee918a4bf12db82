#include "model/config.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/model_file.h"
#include "model/config_gguf.h"
#include "model/config_reader.h"

namespace mc::model {
namespace {

constexpr size_t kConfigBytesMax = size_t{16} << 20;

struct ArchitectureRow {
  Architecture architecture;
  std::string_view name, model_type;
};
constexpr ArchitectureRow kArchitectures[] = {
    {Architecture::llama, "LlamaForCausalLM", "llama"},
    {Architecture::qwen2, "Qwen2ForCausalLM", "qwen2"},
    {Architecture::qwen3, "Qwen3ForCausalLM", "qwen3"},
    {Architecture::mistral, "MistralForCausalLM", "mistral"},
    {Architecture::qwen2_moe, "Qwen2MoeForCausalLM", "qwen2_moe"},
    {Architecture::qwen3_moe, "Qwen3MoeForCausalLM", "qwen3_moe"},
};

Result<Architecture> read_architecture(const Reader& reader) {
  std::string known;
  for (const ArchitectureRow& row : kArchitectures) known += (known.empty() ? "" : ", ") + std::string(row.name);
  const Json& list = reader["architectures"];
  if (list.size() != 1 || !list[0].is_string())
    return reader.unsupported(err::kModelUnsupported, "architectures", quoted(list), "a list of one of " + known);
  for (const ArchitectureRow& row : kArchitectures) {
    if (row.name != list[0].as_string()) continue;
    if (reader.given("model_type") && reader["model_type"].as_string() != row.model_type)
      return reader.unsupported(err::kModelUnsupported, "model_type", quoted(reader["model_type"]),
                                "\"" + std::string(row.model_type) + "\" for " + std::string(row.name));
    return row.architecture;
  }
  return reader.unsupported(err::kModelUnsupported, "architectures", quoted(list[0]), known);
}

/// Refuses fields that would change the arithmetic in ways that this runtime does not implement.
Result<void> refuse_unknown_arithmetic(const Reader& reader, Architecture architecture) {
  if (reader.given("hidden_act") && reader["hidden_act"].as_string() != "silu")
    return reader.unsupported(err::kModelUnsupported, "hidden_act", quoted(reader["hidden_act"]), "\"silu\"");
  // Qwen configs have a sliding_window that use_sliding_window switches off.
  MC_TRY(use_window, reader.flag("use_sliding_window"));
  const bool window = reader.given("sliding_window") && (use_window || architecture == Architecture::llama);
  if (use_window || window)
    return reader.unsupported(err::kModelUnsupported, window ? "sliding_window" : "use_sliding_window",
                              quoted(reader[window ? "sliding_window" : "use_sliding_window"]),
                              "models without a sliding window");
  for (const Json& type : reader["layer_types"].items())
    if (type.as_string() != "full_attention")
      return reader.unsupported(err::kModelUnsupported, "layer_types", quoted(type), "\"full_attention\"");
  if (reader.given("partial_rotary_factor") && reader["partial_rotary_factor"].as_double() != 1)
    return reader.unsupported(err::kRopeUnsupported, "partial_rotary_factor", quoted(reader["partial_rotary_factor"]),
                              "1");
  return {};
}

/// Reads the quantisation of weights: only fp8 in E4M3. A quantisation of activations is ignored, because activations
/// stay f32.
Result<void> read_quantization(const Reader& reader, Fp8Config& fp8) {
  if (!reader.given("quantization_config")) return {};
  const Json& quant = reader["quantization_config"];
  const Json& method = quant["quant_method"];
  const auto refuse = [&](const std::string& field, const Json& value, const std::string& allowed) {
    return reader.unsupported(err::kQuantUnsupported, "quantization_config" + field, quoted(value), allowed);
  };
  const bool compressed = method.as_string() == "compressed-tensors";
  if (method.as_string() != "fp8" && !compressed)
    return refuse("", method.is_null() ? quant : method,
                  "\"fp8\", \"compressed-tensors\" (float-quantized), or none: weights in F32, F16 or BF16");
  if (compressed && quant["format"].as_string() != "float-quantized")
    return refuse(".format", quant["format"], "\"float-quantized\"");
  if (!quant["fmt"].is_null() && quant["fmt"].as_string() != "e4m3") return refuse(".fmt", quant["fmt"], "\"e4m3\"");
  const Json& block = quant["weight_block_size"];
  if (block.is_null()) return {};
  const auto side = [&](size_t i) { return block[i].as_int(0); };
  constexpr int64_t kSideMax = 1 << 20;
  if (!block.is_array() || block.size() != 2 || side(0) < 1 || side(1) < 1 || side(0) > kSideMax || side(1) > kSideMax)
    return refuse(".weight_block_size", block, "two whole numbers, such as [128, 128]");
  fp8 = {static_cast<uint32_t>(side(0)), static_cast<uint32_t>(side(1))};
  return {};
}

Result<std::optional<Dtype>> read_dtype(const Reader& reader) {
  const char* field = reader.given("dtype") ? "dtype" : "torch_dtype";
  if (!reader.given(field)) return std::optional<Dtype>{};
  const std::string_view name = reader[field].as_string();
  if (name == "float32") return std::optional(Dtype::f32);
  if (name == "bfloat16") return std::optional(Dtype::bf16);
  if (name == "float16") return std::optional(Dtype::f16);
  return reader.unsupported(err::kDtypeUnsupported, field, quoted(reader[field]),
                            "\"float32\", \"bfloat16\", \"float16\"");
}

/// Reads one number or a list of numbers, all below `bound`; ascending.
Result<std::vector<uint32_t>> read_ids(const Reader& reader, const char* field, uint32_t bound) {
  std::vector<uint32_t> ids;
  if (!reader.given(field)) return ids;
  const Json& value = reader[field];
  const auto take = [&](const Json& item) -> Result<void> {
    const int64_t id = item.as_int(-1);
    if (!item.is_int() || id < 0 || id >= bound)
      return reader.invalid(field, "names " + quoted(item) + "; it must be below " + std::to_string(bound));
    ids.push_back(static_cast<uint32_t>(id));
    return {};
  };
  if (value.is_array()) {
    if (value.size() > 1024) return reader.invalid(field, "lists " + std::to_string(value.size()) + " numbers");
    for (const Json& item : value.items()) MC_CHECK(take(item));
  } else {
    MC_CHECK(take(value));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Result<void> read_shape(const Reader& reader, ModelConfig& config) {
  MC_TRY(hidden, reader.size("hidden_size", 1 << 17));
  MC_TRY(intermediate, reader.size("intermediate_size", 1 << 20));
  MC_TRY(layers, reader.size("num_hidden_layers", 1024));
  MC_TRY(heads, reader.size("num_attention_heads", 1024));
  MC_TRY(vocab, reader.size("vocab_size", 1 << 22));
  MC_TRY(positions, reader.size("max_position_embeddings", 1 << 24));
  config.hidden = hidden;
  config.intermediate = intermediate;
  config.layers = layers;
  config.heads = config.kv_heads = heads;
  config.vocab = vocab;
  config.max_positions = positions;
  if (reader.given("num_key_value_heads")) {
    MC_TRY(kv_heads, reader.size("num_key_value_heads", 1024));
    config.kv_heads = kv_heads;
  }
  if (heads % config.kv_heads != 0)
    return reader.invalid(
        "num_attention_heads",
        "is " + std::to_string(heads) + ", not a multiple of num_key_value_heads " + std::to_string(config.kv_heads));
  if (reader.given("head_dim")) {
    MC_TRY(head_dim, reader.size("head_dim", 512));
    config.head_dim = head_dim;
  } else {
    if (hidden % heads != 0)
      return reader.invalid("hidden_size", "is " + std::to_string(hidden) + ", not a multiple of num_attention_heads " +
                                               std::to_string(heads) + ", and there is no head_dim");
    config.head_dim = hidden / heads;
  }
  if (config.head_dim % 2 != 0 || config.head_dim > 512)
    return reader.unsupported(err::kModelUnsupported, "head_dim", std::to_string(config.head_dim),
                              "even numbers up to 512");
  return {};
}

Result<void> read_mixture(const Reader& reader, ModelConfig& config) {
  MixtureConfig& mixture = config.mixture;
  MC_TRY(experts, reader.size("num_experts", 4096));
  MC_TRY(per_token, reader.size("num_experts_per_tok", 4096));
  MC_TRY(intermediate, reader.size("moe_intermediate_size", 1 << 20));
  MC_TRY(normalise, reader.flag("norm_topk_prob"));
  mixture = {.experts = experts, .per_token = per_token, .intermediate = intermediate, .normalise = normalise};
  if (per_token > experts)
    return reader.invalid("num_experts_per_tok",
                          "is " + std::to_string(per_token) + ", but num_experts is " + std::to_string(experts));
  if (config.architecture == Architecture::qwen2_moe) {
    MC_TRY(shared, reader.size("shared_expert_intermediate_size", 1 << 20));
    mixture.shared_intermediate = shared;
  } else if (reader["shared_expert_intermediate_size"].as_int() != 0) {
    return reader.unsupported(err::kModelUnsupported, "shared_expert_intermediate_size",
                              quoted(reader["shared_expert_intermediate_size"]), "absent in Qwen3MoeForCausalLM");
  }
  if (reader.given("decoder_sparse_step")) {
    MC_TRY(every, reader.size("decoder_sparse_step", 1024));
    mixture.every = every;
  }
  MC_TRY(dense, read_ids(reader, "mlp_only_layers", config.layers));
  mixture.dense = std::move(dense);
  return {};
}

Result<void> read_generation(const Reader& reader, ModelConfig& config) {
  MC_TRY(eos, read_ids(reader, "eos_token_id", config.vocab));
  if (!eos.empty()) config.special.eos = std::move(eos);
  const auto number = [&](const char* field, std::optional<double>& out) {
    if (reader[field].is_number()) out = reader[field].as_double();
  };
  number("temperature", config.generation.temperature);
  number("top_p", config.generation.top_p);
  number("min_p", config.generation.min_p);
  number("repetition_penalty", config.generation.repetition_penalty);
  if (reader["top_k"].is_int()) config.generation.top_k = std::clamp<int64_t>(reader["top_k"].as_int(), -1, 1 << 22);
  return {};
}

Result<Json> parse_object(std::string_view text, const std::string& path) {
  auto json = Json::parse(text, {.bytes = kConfigBytesMax, .depth = 32, .values = 1 << 20});
  if (!json) return user_error(err::kConfigInvalid, path + ": " + json.error().what);
  if (!json->is_object())
    return user_error(err::kConfigInvalid, path + ": is a " + std::string(json->kind_name()) + ", not an object");
  return json;
}

}  // namespace

std::string_view to_string(Architecture architecture) {
  for (const ArchitectureRow& row : kArchitectures)
    if (row.architecture == architecture) return row.name;
  return "?";
}

bool ModelConfig::has_mixture(uint32_t layer) const {
  return mixture.experts > 0 && (layer + 1) % mixture.every == 0 &&
         !std::binary_search(mixture.dense.begin(), mixture.dense.end(), layer);
}

uint64_t ModelConfig::active_inner(uint32_t layer) const {
  if (!has_mixture(layer)) return intermediate;
  return uint64_t{mixture.per_token} * mixture.intermediate + mixture.shared_intermediate;
}

std::string ModelConfig::kv_text() const {
  char line[512];
  std::snprintf(line, sizeof line,
                "architecture=%s\nhidden=%u\nintermediate=%u\nlayers=%u\nheads=%u\nkv_heads=%u\nhead_dim=%u\n"
                "vocab=%u\nnorm_epsilon=%.9g\nqkv_bias=%d\noutput_bias=%d\nmlp_bias=%d\nqk_norm=%d\n",
                std::string(to_string(architecture)).c_str(), hidden, intermediate, layers, heads, kv_heads, head_dim,
                vocab, static_cast<double>(norm_epsilon), bias.qkv, bias.output, bias.mlp, qk_norm);
  std::string text = line + ("rope=" + rope.text() + "\n");
  if (mixture.experts == 0) return text;
  std::snprintf(line, sizeof line,
                "experts=%u\nexperts_per_token=%u\nexpert_intermediate=%u\nshared_intermediate=%u\nnormalise=%d\n"
                "mixture_every=%u\ndense_layers=",
                mixture.experts, mixture.per_token, mixture.intermediate, mixture.shared_intermediate,
                mixture.normalise, mixture.every);
  text += line;
  for (uint32_t layer : mixture.dense) text += std::to_string(layer) + ",";
  return text + "\n";
}

std::string ModelConfig::kv_digest() const {
  std::string hex;
  for (uint8_t byte : Sha256().update(kv_text()).finish()) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    hex += digits;
  }
  return hex;
}

Result<ModelConfig> parse_config(std::string_view config_json, std::string_view generation_json,
                                 const std::string& directory) {
  MC_TRY(json, parse_object(config_json, directory + "/config.json"));
  const Reader reader(json, directory + "/config.json");
  ModelConfig config;
  MC_TRY(architecture, read_architecture(reader));
  config.architecture = architecture;
  MC_CHECK(refuse_unknown_arithmetic(reader, architecture));
  MC_CHECK(read_shape(reader, config));
  MC_TRY(rope, read_rope(reader, config.max_positions));
  config.rope = rope;
  MC_TRY(epsilon, reader.positive(json, "rms_norm_eps"));
  config.norm_epsilon = static_cast<float>(epsilon);
  const bool qwen2 = architecture == Architecture::qwen2 || architecture == Architecture::qwen2_moe;
  const bool qwen3 = architecture == Architecture::qwen3 || architecture == Architecture::qwen3_moe;
  if (architecture == Architecture::qwen2_moe || architecture == Architecture::qwen3_moe)
    MC_CHECK(read_mixture(reader, config));
  MC_TRY(tied, reader.flag("tie_word_embeddings"));
  MC_TRY(attention_bias, reader.flag("attention_bias"));
  MC_TRY(mlp_bias, reader.flag("mlp_bias"));
  config.tied_embeddings = tied;
  config.bias.qkv = qwen2 || attention_bias;
  config.bias.output = !qwen2 && attention_bias;
  config.bias.mlp = architecture == Architecture::llama && mlp_bias;
  config.qk_norm = qwen3;
  MC_TRY(dtype, read_dtype(reader));
  config.dtype = dtype;
  MC_CHECK(read_quantization(reader, config.fp8));
  MC_TRY(bos, read_ids(reader, "bos_token_id", config.vocab));
  if (!bos.empty()) config.special.bos = bos.front();
  MC_TRY(eos, read_ids(reader, "eos_token_id", config.vocab));
  config.special.eos = eos;
  if (architecture == Architecture::mistral && reader.given("sliding_window")) {
    MC_TRY(window, reader.size("sliding_window", 1 << 24));
    config.attention = attn::PlanText{.automatic = false, .mode = {.kind = attn::ModeKind::window}, .full_last = 0};
    config.attention->mode.window = static_cast<int32_t>(window);
  }
  if (reader.given("mc_attention")) {
    if (!reader["mc_attention"].is_string())
      return reader.invalid("mc_attention", "is " + quoted(reader["mc_attention"]) + "; it must be a string");
    auto plan = attn::parse_plan(reader["mc_attention"].as_string());
    if (!plan) return reader.invalid("mc_attention", plan.error().what);
    config.attention = *plan;
  }
  if (!generation_json.empty()) {
    MC_TRY(generation, parse_object(generation_json, directory + "/generation_config.json"));
    MC_CHECK(read_generation(Reader(generation, directory + "/generation_config.json"), config));
  }
  return config;
}

Result<ModelConfig> read_config(const std::string& directory) {
  if (gguf::is_gguf(directory)) {
    MC_TRY(file, gguf::File::open(directory));
    return read_gguf_config(file);
  }
  const std::string config_path = directory + "/config.json", generation_path = directory + "/generation_config.json";
  if (access(config_path.c_str(), F_OK) != 0)
    return user_error(err::kModelIncomplete, directory + " has no config.json");
  MC_TRY(config, read_model_file(config_path, kConfigBytesMax));
  std::string generation;
  if (access(generation_path.c_str(), F_OK) == 0) {
    MC_TRY(text, read_model_file(generation_path, kConfigBytesMax));
    generation = std::move(text);
  }
  return parse_config(config, generation, directory);
}

Result<attn::Plan> resolve_plan(const std::string& text, const ModelConfig& config, uint32_t block_tokens) {
  MC_TRY(asked, attn::parse_plan(text));
  return attn::resolve(asked, config.attention, static_cast<int32_t>(config.layers),
                       static_cast<int32_t>(block_tokens));
}

}  // namespace mc::model

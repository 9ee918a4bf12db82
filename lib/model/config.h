// The content of config.json and generation_config.json, for six architectures that differ in details:
// LlamaForCausalLM, MistralForCausalLM (sliding window), Qwen2ForCausalLM (bias on q, k, v), Qwen3ForCausalLM (RMSNorm
// on each head's q and k, explicit head_dim), Qwen2MoeForCausalLM (mixture of experts with a shared expert) and
// Qwen3MoeForCausalLM (mixture of experts). A field that would change the arithmetic and that this runtime does not
// implement is refused by name and value. No value is guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/plan.h"
#include "base/dtype.h"
#include "base/result.h"
#include "ops/rope.h"
#include "wire/sampling_choice.h"

namespace mc::model {

enum class Architecture : uint8_t { llama, qwen2, qwen3, mistral, qwen2_moe, qwen3_moe };

/// The name in config.json, such as "LlamaForCausalLM".
std::string_view to_string(Architecture architecture);

/// The mixture of experts that replaces the MLP; experts 0: none.
struct MixtureConfig {
  uint32_t experts = 0, per_token = 0;
  uint32_t intermediate = 0;         // inner width of a routed expert
  uint32_t shared_intermediate = 0;  // inner width of the shared expert; 0 = there is none
  bool normalise = false;            // the weights of the chosen experts sum to 1
  // Layers i with (i + 1) % every == 0 have the mixture, except those in `dense` (ascending).
  uint32_t every = 1;
  std::vector<uint32_t> dense;
  bool operator==(const MixtureConfig&) const = default;
};

/// The block size of fp8 weights whose scales are [rows / block, columns / block].
struct Fp8Config {
  uint32_t block_rows = 128, block_columns = 128;
  bool operator==(const Fp8Config&) const = default;
};

/// The projections that add a bias.
struct Biases {
  bool qkv = false, output = false, mlp = false;
};

struct SpecialTokens {
  std::optional<uint32_t> bos;
  std::vector<uint32_t> eos;  // generation_config.json wins over config.json; ascending
};

struct ModelConfig {
  Architecture architecture = Architecture::llama;
  uint32_t hidden = 0, intermediate = 0, layers = 0;
  uint32_t heads = 0, kv_heads = 0, head_dim = 0;
  uint32_t vocab = 0, max_positions = 0;
  float norm_epsilon = 1e-6f;
  bool tied_embeddings = false;
  Biases bias;
  bool qk_norm = false;
  MixtureConfig mixture;
  Fp8Config fp8;
  ops::RopeConfig rope;
  std::optional<Dtype> dtype;  // declared data type of the weights
  SpecialTokens special;
  wire::SamplingChoice generation;          // sampling parameters of generation_config.json
  std::optional<attn::PlanText> attention;  // key mc_attention

  bool has_mixture(uint32_t layer) const;
  /// Inner width of all MLPs that a token passes in a layer, for counting arithmetic.
  uint64_t active_inner(uint32_t layer) const;
  /// Everything that changes keys and values as text, one `name=value` a line, in a fixed order.
  std::string kv_text() const;
  /// SHA-256 of kv_text() in hex.
  std::string kv_digest() const;
};

/// Parses both files. `generation_json` may be empty. `directory` is for messages. invalid (MC3006), unsupported
/// (MC3003 architecture, MC3004 RoPE, MC3005 quantisation), each naming field and value.
Result<ModelConfig> parse_config(std::string_view config_json, std::string_view generation_json,
                                 const std::string& directory);
/// Reads both files of a directory, or the metadata of a GGUF file. not_found (MC3001) when config.json is missing.
Result<ModelConfig> read_config(const std::string& directory);

/// `text`, an attention plan as flags, requests and KV streams spell it, for the layers of this model.
Result<attn::Plan> resolve_plan(const std::string& text, const ModelConfig& config, uint32_t block_tokens);

}  // namespace mc::model

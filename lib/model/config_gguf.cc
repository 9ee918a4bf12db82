#include "model/config_gguf.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/assert.h"
#include "base/errors.h"

namespace mc::model {
namespace {

struct GgufArchitecture {
  std::string_view name;
  Architecture architecture;
  bool mixture, qk_norm;
  bool normalise;  // the weights of the chosen experts sum to 1, unless the file says otherwise
};
constexpr GgufArchitecture kGgufArchitectures[] = {
    {"llama", Architecture::llama, false, false, false},     {"qwen2", Architecture::qwen2, false, false, false},
    {"qwen3", Architecture::qwen3, false, true, false},      {"qwen2moe", Architecture::qwen2_moe, true, false, false},
    {"qwen3moe", Architecture::qwen3_moe, true, true, true},
};

constexpr const char* kArchitecture = "general.architecture";
constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kFactors = "rope_freqs.weight";  // a tensor: divisors of the RoPE frequencies
constexpr uint64_t kPositionsMax = 1 << 24;

/// Reads the fields of one architecture.
class GgufConfig {
 public:
  GgufConfig(const gguf::File& file, const GgufArchitecture& row) : file_(file), row_(row) {}

  Result<ModelConfig> read() {
    config_.architecture = row_.architecture;
    MC_CHECK(read_shape());
    MC_CHECK(read_vocabulary());
    MC_CHECK(refuse_unknown_arithmetic());
    MC_CHECK(read_rope());
    MC_TRY(epsilon, file_.positive(key("attention.layer_norm_rms_epsilon")));
    if (!epsilon) return file_.invalid(key("attention.layer_norm_rms_epsilon"), "is missing");
    config_.norm_epsilon = static_cast<float>(*epsilon);
    if (row_.mixture) MC_CHECK(read_mixture());
    config_.tied_embeddings = !has("output.weight");
    config_.bias.qkv = has("blk.0.attn_q.bias");
    config_.bias.output = has("blk.0.attn_output.bias");
    config_.bias.mlp = !row_.mixture && has("blk.0.ffn_gate.bias");
    config_.qk_norm = row_.qk_norm;
    MC_CHECK(read_ends());
    MC_ASSERT(config_.layers > 0 && config_.vocab > 0 && config_.heads % config_.kv_heads == 0);
    return config_;
  }

 private:
  std::string key(const char* field) const { return std::string(row_.name) + "." + field; }
  bool has(const char* tensor) const { return file_.find_tensor(tensor) != nullptr; }

  /// A required whole number from 1 to `most`.
  Result<void> size(const char* field, uint64_t most, uint32_t& out) const {
    MC_TRY(value, file_.whole(key(field), 1, most));
    if (!value) return file_.invalid(key(field), "is missing");
    out = static_cast<uint32_t>(*value);
    return {};
  }

  Result<void> read_shape() {
    MC_CHECK(size("embedding_length", 1 << 17, config_.hidden));
    MC_CHECK(size("block_count", 1024, config_.layers));
    MC_CHECK(size("attention.head_count", 1024, config_.heads));
    MC_CHECK(size("context_length", kPositionsMax, config_.max_positions));
    config_.kv_heads = config_.heads;
    if (file_.header().find(key("attention.head_count_kv")))
      MC_CHECK(size("attention.head_count_kv", 1024, config_.kv_heads));
    if (config_.heads % config_.kv_heads != 0)
      return file_.invalid(key("attention.head_count"), "is " + std::to_string(config_.heads) + ", not a multiple of " +
                                                            key("attention.head_count_kv") + " " +
                                                            std::to_string(config_.kv_heads));
    // A mixture without dense layers may leave the width of its dense MLP out.
    if (!row_.mixture || file_.header().find(key("feed_forward_length")))
      MC_CHECK(size("feed_forward_length", 1 << 20, config_.intermediate));
    return read_head_size();
  }

  Result<void> read_head_size() {
    if (file_.header().find(key("attention.key_length"))) {
      MC_CHECK(size("attention.key_length", 512, config_.head_dim));
    } else {
      if (config_.hidden % config_.heads != 0)
        return file_.invalid(key("embedding_length"), "is " + std::to_string(config_.hidden) + ", not a multiple of " +
                                                          key("attention.head_count") + " " +
                                                          std::to_string(config_.heads) + ", and there is no " +
                                                          key("attention.key_length"));
      config_.head_dim = config_.hidden / config_.heads;
    }
    if (config_.head_dim % 2 != 0 || config_.head_dim > 512)
      return user_error(err::kModelUnsupported, file_.paths().front() + ": the size of a head is " +
                                                    std::to_string(config_.head_dim) +
                                                    "; supported: even numbers up to 512");
    for (const char* field : {"attention.value_length", "rope.dimension_count"}) {
      MC_TRY(value, file_.whole(key(field), 1, 65536));
      if (value && *value != config_.head_dim)
        return file_.unsupported(err::kModelUnsupported, key(field),
                                 std::to_string(config_.head_dim) + ", the size of a head");
    }
    return {};
  }

  /// The rows of the embeddings. A file whose tokenizer has fewer tokens may have more rows.
  Result<void> read_vocabulary() {
    const gguf::Tensor* table = file_.find_tensor("token_embd.weight");
    if (!table || table->info.shape.size() != 2)
      return user_error(err::kModelIncomplete,
                        file_.paths().front() + ": there is no tensor 'token_embd.weight' with rows and columns");
    const uint64_t rows = table->info.shape[0];
    const gguf::Value* tokens = file_.header().find(kTokens);
    if (rows == 0 || rows > (1 << 22) || (tokens && tokens->count() > rows))
      return user_error(err::kModelCorrupt, file_.paths().front() + ": tensor 'token_embd.weight' has " +
                                                std::to_string(rows) + " rows, and " + kTokens + " has " +
                                                std::to_string(tokens ? tokens->count() : 0) + " tokens");
    config_.vocab = static_cast<uint32_t>(rows);
    return {};
  }

  Result<void> refuse_unknown_arithmetic() const {
    // Zero and one are how converters write "none".
    const std::pair<const char*, uint64_t> zeros[] = {{"attention.sliding_window", 0},
                                                      {"attention.causal", 1},
                                                      {"leading_dense_block_count", 0},
                                                      {"expert_group_count", 1}};
    for (const auto& [field, only] : zeros) {
      const gguf::Value* value = file_.header().find(key(field));
      if (!value) continue;
      const auto number = value->flag() ? std::optional<uint64_t>(*value->flag()) : value->whole();
      if (number != only && number != 0)
        return file_.unsupported(err::kModelUnsupported, key(field), std::to_string(only));
    }
    MC_TRY(experts, file_.whole(key("expert_count"), 0, 4096));
    if (!row_.mixture && experts.value_or(0) > 0)
      return file_.unsupported(err::kModelUnsupported, key("expert_count"), "0 for " + std::string(row_.name));
    for (const char* field : {"logit_scale", "embedding_scale", "residual_scale", "attention.scale"}) {
      const gguf::Value* value = file_.header().find(key(field));
      if (value && value->number() != 1 && value->number() != 0)
        return file_.unsupported(err::kModelUnsupported, key(field), "1");
    }
    return {};
  }

  Result<void> read_rope() {
    ops::RopeConfig& rope = config_.rope;
    MC_TRY(base, file_.positive(key("rope.freq_base")));
    rope.theta = base.value_or(10000);  // the format's default
    MC_TRY(kind, file_.text(key("rope.scaling.type")));
    MC_TRY(factor, file_.positive(key("rope.scaling.factor")));
    if (has(kFactors)) return read_factors();
    if (!kind || *kind == "none" || factor.value_or(1) == 1) return {};
    rope.factor = *factor;
    if (*kind == "linear") {
      rope.kind = ops::RopeConfig::Kind::linear;
      return {};
    }
    if (*kind != "yarn")
      return file_.unsupported(err::kRopeUnsupported, key("rope.scaling.type"), "none, linear, yarn");
    rope.kind = ops::RopeConfig::Kind::yarn;
    MC_CHECK(size("rope.scaling.original_context_length", kPositionsMax, rope.original_positions));
    rope.attention_factor = 0.1 * std::log(*factor) + 1;
    MC_TRY(fast, file_.positive(key("rope.scaling.yarn_beta_fast")));
    MC_TRY(slow, file_.positive(key("rope.scaling.yarn_beta_slow")));
    rope.beta_fast = fast.value_or(32);
    rope.beta_slow = slow.value_or(1);
    for (const char* field : {"rope.scaling.yarn_ext_factor", "rope.scaling.attn_factor"}) {
      MC_TRY(value, file_.positive(key(field)));
      if (value.value_or(1) != 1) return file_.unsupported(err::kRopeUnsupported, key(field), "1");
    }
    return {};
  }

  /// Llama 3.1 files hold the divisors of the frequencies instead of the four numbers that make them. Known sets of the
  /// four are tried: all released models use one of them.
  Result<void> read_factors() {
    const gguf::Tensor& tensor = *file_.find_tensor(kFactors);
    const std::string& path = file_.paths()[tensor.part];
    if (tensor.info.type != gguf::Type::f32 || tensor.info.elements() != config_.head_dim / 2)
      return user_error(err::kModelCorrupt, path + ": tensor '" + kFactors + "' has " +
                                                std::to_string(tensor.info.elements()) + " values of " +
                                                std::string(gguf::info(tensor.info.type).name) + "; " +
                                                std::to_string(config_.head_dim / 2) + " of F32 are needed");
    std::vector<float> divisors(config_.head_dim / 2);
    gguf::widen_row(gguf::Type::f32, tensor.data, divisors.size(), divisors.data());
    const ops::Rope plain(config_.rope, config_.head_dim);
    for (double factor : {8.0, 32.0, 16.0, 4.0}) {
      ops::RopeConfig tried = config_.rope;
      tried.kind = ops::RopeConfig::Kind::llama3;
      tried.factor = factor;
      const ops::Rope scaled(tried, config_.head_dim);
      bool equal = true;
      for (size_t i = 0; i < divisors.size(); ++i)
        equal &= std::abs(plain.frequency()[i] / scaled.frequency()[i] - divisors[i]) <= 1e-4f * divisors[i];
      if (!equal) continue;
      config_.rope = tried;
      return {};
    }
    return user_error(
        err::kRopeUnsupported,
        path + ": tensor '" + kFactors + "' ends in the divisor " + std::to_string(divisors.back()) +
            "; supported: those of Llama 3.1 and 3.2 (factor 4, 8, 16 or 32, low 1, high 4, original 8192)");
  }

  Result<void> read_mixture() {
    MixtureConfig& mixture = config_.mixture;
    MC_CHECK(size("expert_count", 4096, mixture.experts));
    MC_CHECK(size("expert_used_count", mixture.experts, mixture.per_token));
    MC_CHECK(size("expert_feed_forward_length", 1 << 20, mixture.intermediate));
    if (row_.architecture == Architecture::qwen2_moe)
      MC_CHECK(size("expert_shared_feed_forward_length", 1 << 20, mixture.shared_intermediate));
    MC_TRY(normalise, file_.flag(key("expert_weights_norm")));
    mixture.normalise = normalise.value_or(row_.normalise);
    for (uint32_t layer = 0; layer < config_.layers; ++layer)
      if (!has(("blk." + std::to_string(layer) + ".ffn_gate_inp.weight").c_str())) mixture.dense.push_back(layer);
    if (!mixture.dense.empty() && config_.intermediate == 0)
      return file_.invalid(key("feed_forward_length"),
                           "is missing, but layer " + std::to_string(mixture.dense.front()) + " has no router");
    return {};
  }

  Result<void> read_ends() {
    MC_TRY(bos, file_.whole("tokenizer.ggml.bos_token_id", 0, UINT32_MAX));
    if (bos && *bos < config_.vocab) config_.special.bos = static_cast<uint32_t>(*bos);
    for (const char* field : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
      const std::string name = std::string("tokenizer.ggml.") + field;
      MC_TRY(id, file_.whole(name, 0, UINT32_MAX));
      if (!id || *id == UINT32_MAX) continue;  // all ones: none
      if (*id >= config_.vocab)
        return file_.invalid(name, "is " + std::to_string(*id) + "; it must be below " + std::to_string(config_.vocab));
      config_.special.eos.push_back(static_cast<uint32_t>(*id));
    }
    std::sort(config_.special.eos.begin(), config_.special.eos.end());
    config_.special.eos.erase(std::unique(config_.special.eos.begin(), config_.special.eos.end()),
                              config_.special.eos.end());
    return {};
  }

  const gguf::File& file_;
  const GgufArchitecture& row_;
  ModelConfig config_;
};

}  // namespace

Result<ModelConfig> read_gguf_config(const gguf::File& file) {
  MC_TRY(name, file.text(kArchitecture));
  std::string known;
  for (const GgufArchitecture& row : kGgufArchitectures) {
    if (name == row.name) return GgufConfig(file, row).read();
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  if (!name) return file.invalid(kArchitecture, "is missing; supported: " + known);
  return file.unsupported(err::kModelUnsupported, kArchitecture, known);
}

}  // namespace mc::model

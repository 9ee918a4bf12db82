// Small models with mixtures of experts, written for a test: random weights in bf16, heads of 64 elements, a vocabulary
// of 128 tokens.
#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/rng.h"
#include "test.h"

namespace mc::test {

struct MixtureModelShape {
  bool has_shared_expert = false;  // Qwen2-MoE, whose layer 0 is dense; else Qwen3-MoE
  int experts = 4, per_token = 2, inner = 24;
  int layers = 2;
};

/// A directory with a model; it is removed at the end.
class MixtureModel {
 public:
  explicit MixtureModel(const MixtureModelShape& shape) : shape_(shape) {
    static int made = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("mct-mixture-" + std::to_string(::getpid()) + "-" + std::to_string(made++));
    std::filesystem::create_directories(path_);
    write_config();
    write_weights();
  }
  ~MixtureModel() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MixtureModel(const MixtureModel&) = delete;
  MixtureModel& operator=(const MixtureModel&) = delete;
  std::string directory() const { return path_.string(); }

 private:
  static constexpr int kHidden = 128, kHeads = 2, kKvHeads = 1, kHeadDim = 64, kVocab = 128, kDense = 40, kShared = 16;

  void write_config() const {
    const bool shared = shape_.has_shared_expert;
    Json out = Json::object({{"hidden_act", "silu"}, {"vocab_size", kVocab}, {"hidden_size", kHidden}});
    out.set("architectures", Json::array({shared ? "Qwen2MoeForCausalLM" : "Qwen3MoeForCausalLM"}));
    out.set("model_type", shared ? "qwen2_moe" : "qwen3_moe").set("intermediate_size", kDense);
    out.set("num_hidden_layers", shape_.layers).set("num_attention_heads", kHeads).set("head_dim", kHeadDim);
    out.set("num_key_value_heads", kKvHeads).set("max_position_embeddings", 512).set("rms_norm_eps", 1e-6);
    out.set("rope_theta", 1000000.0).set("tie_word_embeddings", true).set("torch_dtype", "bfloat16");
    out.set("num_experts", shape_.experts).set("num_experts_per_tok", shape_.per_token);
    out.set("moe_intermediate_size", shape_.inner).set("norm_topk_prob", !shared).set("use_sliding_window", false);
    out.set("decoder_sparse_step", 1).set("mlp_only_layers", shared ? Json::array({0}) : Json::array());
    if (shared) out.set("shared_expert_intermediate_size", kShared);
    out.set("bos_token_id", 0).set("eos_token_id", 1);
    std::ofstream(path_ / "config.json") << out.dump();
  }

  /// Weights give activations of about one. A router's are larger, so that few choices are close.
  void add(const std::string& name, std::vector<int> shape, double size, double middle = 0) {
    Json dims = Json::array();
    size_t count = 1;
    for (const int dim : shape) {
      dims.push(dim);
      count *= static_cast<size_t>(dim);
    }
    const size_t begin = data_.size();
    for (size_t i = 0; i < count; ++i) {
      const uint16_t half = f32_to_bf16(static_cast<float>(middle + size * rng_.normal()));
      data_.append(reinterpret_cast<const char*>(&half), 2);
    }
    const Json offsets = Json::array({begin, data_.size()});
    header_.set(name, Json::object({{"dtype", "BF16"}, {"shape", dims}, {"data_offsets", offsets}}));
  }
  void add_matrix(const std::string& name, int rows, int columns, double gain = 1) {
    add(name + ".weight", {rows, columns}, gain / std::sqrt(static_cast<double>(columns)));
  }
  void add_mlp(const std::string& prefix, int inner) {
    add_matrix(prefix + "gate_proj", inner, kHidden);
    add_matrix(prefix + "up_proj", inner, kHidden);
    add_matrix(prefix + "down_proj", kHidden, inner);
  }

  void write_weights() {
    const bool shared = shape_.has_shared_expert;
    add("model.embed_tokens.weight", {kVocab, kHidden}, 1);
    for (int i = 0; i < shape_.layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".", attention = layer + "self_attn.";
      const std::string mlp = layer + "mlp.";
      for (const auto& [name, rows] : {std::pair{"q_proj", kHeads * kHeadDim}, std::pair{"k_proj", kKvHeads * kHeadDim},
                                       std::pair{"v_proj", kKvHeads * kHeadDim}}) {
        add_matrix(attention + name, rows, kHidden);
        if (shared) add(attention + name + ".bias", {rows}, 0.1);
      }
      add_matrix(attention + "o_proj", kHidden, kHeads * kHeadDim);
      for (const char* name : {"q_norm", "k_norm"})
        if (!shared) add(attention + name + ".weight", {kHeadDim}, 0.1, 1);
      add(layer + "input_layernorm.weight", {kHidden}, 0.1, 1);
      add(layer + "post_attention_layernorm.weight", {kHidden}, 0.1, 1);
      if (shared && i == 0) {
        add_mlp(mlp, kDense);
        continue;
      }
      add_matrix(mlp + "gate", shape_.experts, kHidden, 8);
      for (int expert = 0; expert < shape_.experts; ++expert)
        add_mlp(mlp + "experts." + std::to_string(expert) + ".", shape_.inner);
      if (!shared) continue;
      add_mlp(mlp + "shared_expert.", kShared);
      add_matrix(mlp + "shared_expert_gate", 1, kHidden);
    }
    add("model.norm.weight", {kHidden}, 0.1, 1);
    std::string text = header_.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t length = text.size();
    std::ofstream file(path_ / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << text << data_;
  }

  MixtureModelShape shape_;
  std::filesystem::path path_;
  Rng rng_{11};
  Json header_ = Json::object({{"__metadata__", Json::object({{"format", "pt"}})}});
  std::string data_;
};

}  // namespace mc::test

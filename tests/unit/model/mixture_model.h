// Small models with mixtures of experts, written for a test: random weights in bf16, heads of 64 elements, a vocabulary
// of 128 tokens.
#pragma once

#include <string>
#include <utility>

#include "model_writer.h"

namespace mc::test {

struct MixtureModelShape {
  bool has_shared_expert = false;  // Qwen2-MoE, whose layer 0 is dense; else Qwen3-MoE
  int experts = 4, per_token = 2, inner = 24;
  int layers = 2;
  int heads = 2, kv_heads = 1;
};

/// A directory with a model; it is removed at the end.
class MixtureModel {
 public:
  explicit MixtureModel(const MixtureModelShape& shape) : shape_(shape) {
    add_weights();
    out_.finish(config());
  }
  std::string directory() const { return out_.directory(); }

 private:
  static constexpr int kHidden = 128, kHeadDim = 64, kVocab = 128, kDense = 40, kShared = 16;

  Json config() const {
    const bool shared = shape_.has_shared_expert;
    Json out = Json::object({{"hidden_act", "silu"}, {"vocab_size", kVocab}, {"hidden_size", kHidden}});
    out.set("architectures", Json::array({shared ? "Qwen2MoeForCausalLM" : "Qwen3MoeForCausalLM"}));
    out.set("model_type", shared ? "qwen2_moe" : "qwen3_moe").set("intermediate_size", kDense);
    out.set("num_hidden_layers", shape_.layers).set("num_attention_heads", shape_.heads).set("head_dim", kHeadDim);
    out.set("num_key_value_heads", shape_.kv_heads).set("max_position_embeddings", 512).set("rms_norm_eps", 1e-6);
    out.set("rope_theta", 1000000.0).set("tie_word_embeddings", true).set("torch_dtype", "bfloat16");
    out.set("num_experts", shape_.experts).set("num_experts_per_tok", shape_.per_token);
    out.set("moe_intermediate_size", shape_.inner).set("norm_topk_prob", !shared).set("use_sliding_window", false);
    out.set("decoder_sparse_step", 1).set("mlp_only_layers", shared ? Json::array({0}) : Json::array());
    if (shared) out.set("shared_expert_intermediate_size", kShared);
    out.set("bos_token_id", 0).set("eos_token_id", 1);
    return out;
  }

  void add_weights() {
    const bool shared = shape_.has_shared_expert;
    out_.add("model.embed_tokens.weight", {kVocab, kHidden}, 1);
    for (int i = 0; i < shape_.layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".", attention = layer + "self_attn.";
      const std::string mlp = layer + "mlp.";
      for (const auto& [name, rows] :
           {std::pair{"q_proj", shape_.heads * kHeadDim}, std::pair{"k_proj", shape_.kv_heads * kHeadDim},
            std::pair{"v_proj", shape_.kv_heads * kHeadDim}}) {
        out_.add_matrix(attention + name, rows, kHidden);
        if (shared) out_.add(attention + name + ".bias", {rows}, 0.1);
      }
      out_.add_matrix(attention + "o_proj", kHidden, shape_.heads * kHeadDim);
      for (const char* name : {"q_norm", "k_norm"})
        if (!shared) out_.add(attention + name + ".weight", {kHeadDim}, 0.1, 1);
      out_.add(layer + "input_layernorm.weight", {kHidden}, 0.1, 1);
      out_.add(layer + "post_attention_layernorm.weight", {kHidden}, 0.1, 1);
      if (shared && i == 0) {
        out_.add_mlp(mlp, kHidden, kDense);
        continue;
      }
      out_.add_matrix(mlp + "gate", shape_.experts, kHidden, 8);  // large, so that few choices are close
      for (int expert = 0; expert < shape_.experts; ++expert)
        out_.add_mlp(mlp + "experts." + std::to_string(expert) + ".", kHidden, shape_.inner);
      if (!shared) continue;
      out_.add_mlp(mlp + "shared_expert.", kHidden, kShared);
      out_.add_matrix(mlp + "shared_expert_gate", 1, kHidden);
    }
    out_.add("model.norm.weight", {kHidden}, 0.1, 1);
  }

  MixtureModelShape shape_;
  ModelWriter out_{"mixture"};
};

}  // namespace mc::test

// The model of tests that compute in the emulator: three layers of random weights, a quarter of the work of those of
// mc-tiny. The emulator runs every instruction of every thread, so the time of such a test grows with each width. Rows
// of 136 elements are no multiple of a kernel's tile.
#pragma once

#include <memory>
#include <string>

#include "model_writer.h"

namespace mc::test {

inline std::unique_ptr<const ModelWriter> make_shallow_model() {
  constexpr int kLayers = 3, kHidden = 128, kHeads = 4, kKvHeads = 2, kHeadDim = 64, kInner = 136, kVocab = 1024;
  auto out = std::make_unique<ModelWriter>("shallow");
  out->add("model.embed_tokens.weight", {kVocab, kHidden}, 1);
  for (int i = 0; i < kLayers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".", attention = layer + "self_attn.";
    out->add_matrix(attention + "q_proj", kHeads * kHeadDim, kHidden);
    out->add_matrix(attention + "k_proj", kKvHeads * kHeadDim, kHidden);
    out->add_matrix(attention + "v_proj", kKvHeads * kHeadDim, kHidden);
    out->add_matrix(attention + "o_proj", kHidden, kHeads * kHeadDim);
    out->add(layer + "input_layernorm.weight", {kHidden}, 0.1, 1);
    out->add(layer + "post_attention_layernorm.weight", {kHidden}, 0.1, 1);
    out->add_mlp(layer + "mlp.", kHidden, kInner);
  }
  out->add("model.norm.weight", {kHidden}, 0.1, 1);
  Json config = Json::object({{"hidden_act", "silu"}, {"vocab_size", kVocab}, {"hidden_size", kHidden}});
  config.set("architectures", Json::array({"LlamaForCausalLM"})).set("model_type", "llama");
  config.set("intermediate_size", kInner).set("num_hidden_layers", kLayers).set("num_attention_heads", kHeads);
  config.set("num_key_value_heads", kKvHeads).set("head_dim", kHeadDim).set("max_position_embeddings", 8192);
  config.set("rms_norm_eps", 1e-5).set("rope_theta", 500000.0).set("tie_word_embeddings", true);
  config.set("torch_dtype", "bfloat16").set("bos_token_id", 0).set("eos_token_id", 1);
  out->finish(config);
  return out;
}

/// The directory of the model, made once in a process.
inline std::string shallow_model() {
  static const std::unique_ptr<const ModelWriter> kModel = make_shallow_model();
  return kModel->directory();
}

}  // namespace mc::test

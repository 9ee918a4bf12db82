// Small dense models in fp8, written for a test: random E4M3 codes with scales for blocks of 128 x 128, rows or whole
// matrices. Two layers, heads of 64 elements; embeddings and head are bf16.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "base/e4m3.h"
#include "model_writer.h"

namespace mc::test {

enum class Fp8Kind { blocks, rows, matrix };

struct Fp8ModelShape {
  Fp8Kind kind = Fp8Kind::blocks;
  bool has_biases = false;  // of q, k and v: Qwen2
  int heads = 4, kv_heads = 2, inner = 384;
  int coded_layers = 2;         // the others are bf16
  bool has_all_biases = false;  // of attention and MLPs: a Llama with attention_bias and mlp_bias
};

/// A directory with a model; it is removed at the end.
class Fp8Model {
 public:
  explicit Fp8Model(const Fp8ModelShape& shape) : shape_(shape) {
    const int q = shape.heads * kHeadDim, kv = shape.kv_heads * kHeadDim;
    out_.add("model.embed_tokens.weight", {kVocab, kHidden}, 1);
    for (int i = 0; i < kLayers; ++i) {
      is_coded_ = i < shape.coded_layers;
      const std::string layer = "model.layers." + std::to_string(i) + ".", attention = layer + "self_attn.";
      for (const auto& [name, rows] : {std::pair{"q_proj", q}, std::pair{"k_proj", kv}, std::pair{"v_proj", kv}}) {
        add(attention + name, rows, kHidden);
        if (shape.has_biases) out_.add(attention + name + ".bias", {rows}, 0.1);
      }
      add(attention + "o_proj", kHidden, q);
      if (shape.has_all_biases) add_biases(layer, q, kv);
      out_.add(layer + "input_layernorm.weight", {kHidden}, 0.1, 1);
      out_.add(layer + "post_attention_layernorm.weight", {kHidden}, 0.1, 1);
      add(layer + "mlp.gate_proj", shape.inner, kHidden);
      add(layer + "mlp.up_proj", shape.inner, kHidden);
      add(layer + "mlp.down_proj", kHidden, shape.inner);
    }
    out_.add("model.norm.weight", {kHidden}, 0.1, 1);
    out_.finish(config());
  }
  std::string directory() const { return out_.directory(); }

 private:
  static constexpr int kHidden = 256, kHeadDim = 64, kVocab = 256, kLayers = 2, kBlock = 128;

  /// Weights give activations of about one.
  void add(const std::string& name, int rows, int columns) {
    if (!is_coded_) return out_.add_matrix(name, rows, columns);
    const bool blocks = shape_.kind == Fp8Kind::blocks;
    const int down = blocks ? (rows + kBlock - 1) / kBlock : shape_.kind == Fp8Kind::rows ? rows : 1;
    const int across = blocks ? (columns + kBlock - 1) / kBlock : 1;
    std::string codes, scales;
    std::vector<float> values;
    for (int i = 0; i < down * across; ++i) {
      values.push_back(static_cast<float>((0.5 + out_.rng().uniform()) / (40 * std::sqrt(columns))));
      scales.append(reinterpret_cast<const char*>(&values.back()), sizeof values.back());
    }
    for (int row = 0; row < rows; ++row)
      for (int column = 0; column < columns; ++column) {
        const int line = blocks ? row / kBlock : down == rows ? row : 0;
        const float scale = values[static_cast<size_t>(line * across + (blocks ? column / kBlock : 0))];
        const auto weight = static_cast<float>(out_.rng().normal() / std::sqrt(columns));
        codes += static_cast<char>(f32_to_e4m3(weight / scale));
      }
    out_.put(name + ".weight", "F8_E4M3", {rows, columns}, codes);
    const std::vector<int> shape = blocks ? std::vector{down, across} : std::vector{down};
    out_.put(name + (blocks ? ".weight_scale_inv" : ".weight_scale"), "F32", shape, scales);
  }

  void add_biases(const std::string& layer, int q, int kv) {
    for (const auto& [name, rows] :
         {std::pair{"self_attn.q_proj", q}, std::pair{"self_attn.k_proj", kv}, std::pair{"self_attn.v_proj", kv},
          std::pair{"self_attn.o_proj", kHidden}, std::pair{"mlp.gate_proj", shape_.inner},
          std::pair{"mlp.up_proj", shape_.inner}, std::pair{"mlp.down_proj", kHidden}})
      out_.add(layer + name + ".bias", {rows}, 0.5);
  }

  Json config() const {
    Json out = Json::object({{"hidden_act", "silu"}, {"vocab_size", kVocab}, {"hidden_size", kHidden}});
    const bool qwen = shape_.has_biases;
    out.set("architectures", Json::array({qwen ? "Qwen2ForCausalLM" : "LlamaForCausalLM"}));
    out.set("model_type", qwen ? "qwen2" : "llama").set("intermediate_size", shape_.inner);
    out.set("num_hidden_layers", kLayers).set("num_attention_heads", shape_.heads).set("head_dim", kHeadDim);
    out.set("num_key_value_heads", shape_.kv_heads).set("max_position_embeddings", 512).set("rms_norm_eps", 1e-5);
    out.set("rope_theta", 10000.0).set("tie_word_embeddings", true).set("torch_dtype", "bfloat16");
    out.set("bos_token_id", 0).set("eos_token_id", 1);
    if (shape_.has_all_biases) out.set("attention_bias", true).set("mlp_bias", true);
    Json quantisation = Json::object({{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}});
    if (shape_.kind == Fp8Kind::blocks) quantisation.set("weight_block_size", Json::array({kBlock, kBlock}));
    return out.set("quantization_config", quantisation);
  }

  Fp8ModelShape shape_;
  bool is_coded_ = true;  // the matrices of the layer that is written
  ModelWriter out_{"fp8"};
};

}  // namespace mc::test

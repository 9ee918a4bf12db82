// The weights of a model, read once from a Hugging Face directory or a GGUF file and packed for the CPU. They are
// immutable and shared by every forward pass (runner.h) of the process. The files are mapped only while loading, but
// matrices in Q8_0 stay in their mapped file: such a model is ready at once, and the processes of a host share its
// pages.
//
//   MC_TRY(model, Model::open("/models/qwen2.5-0.5b", {.dtype = "auto"}, pool));
//   MC_TRY(plan, attn::resolve(asked, model.config().attention, model.config().layers, 64));
//   MC_TRY(runner, Runner::open(model, pool, {.block_tokens = 64}));        // runner.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attn/plan.h"
#include "base/dtype.h"
#include "base/extent.h"
#include "base/result.h"
#include "kv/namespace.h"
#include "mem/mem.h"
#include "model/config.h"
#include "model/experts.h"
#include "model/read_ahead.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "ops/matmul.h"

namespace mc {
class Parallel;
}

namespace mc::model {

struct ModelOptions {
  /// "f32", "bf16", or "auto": bf16 when all weights are stored in bf16, else f32 (bf16 cannot represent f16). Weights
  /// and matrix inputs have one dtype. Sums are always f32.
  std::string dtype = "auto";
  /// "auto": K and V have `dtype`. "fp8_e4m3": pages of half of bf16's bytes (base/extent.h), for every `dtype`. Other
  /// types must be `dtype`.
  std::string kv_dtype = "auto";
  /// "auto": matrices that are stored in fp8 stay fp8 (ops/fp8.h), quantised blocks of a GGUF file stay whole numbers
  /// of 4, 6 or 8 bits (ops/quant.h; Q8_0 in the mapped file), the others have `dtype`. "full": all have `dtype`.
  /// "int8", "int4": all matrices become such whole numbers while loading. Inputs of whole numbers are f32. Routers
  /// always have `dtype`, norms and biases f32. Embeddings have `dtype` too, but with "auto" the blocks of a GGUF
  /// file, and tied ones share the head's matrix and its form.
  std::string weight_dtype = "auto";
  /// The part of a pipeline to load: its layers, with the embeddings for the first stage and the head for the last.
  uint32_t stage = 0, stages = 1;
};

/// The matrices of attention and of a dense MLP, and all others: of mixtures, the head and the embeddings.
enum class MatrixRole : uint8_t { qkv, output, gate_up, down, other };

/// A matrix or table of a plan.
struct PlannedMatrix {
  MatrixRole role = MatrixRole::other;
  size_t rows = 0, columns = 0;
  size_t bytes = 0;                     // in memory, or of the file
  bool is_full = false;                 // in the compute type
  std::optional<ops::ScaleRun> scales;  // of fp8 codes
  uint32_t layer = 0;                   // of a role other than `other`
};

/// The plan of loading a model, made from the headers alone.
struct ModelPlan {
  ModelConfig config;
  Dtype dtype = Dtype::bf16;
  Dtype kv_dtype = Dtype::bf16;
  WeightForm form = WeightForm::as_stored;
  bool fp8 = false;                              // some matrices stay fp8
  bool blocks = false;                           // some matrices stay quantised blocks
  LayerRange layers;                             // layers that are loaded
  size_t weight_bytes = 0, embedding_bytes = 0;  // the first with the second
  std::vector<PlannedMatrix> matrices;           // of these layers, the head and the embeddings
  std::vector<PlannedMatrix> coded;              // fp8 matrices of attention and dense MLPs, of all layers
  WeightFiles files;

  /// Type of the matrices: "int8", "int4", "blocks" or "fp8_e4m3" when some are kept as the file has them, or the
  /// dtype.
  std::string_view weight_dtype() const;
  /// Whether ops/quant.h multiplies some of the matrices.
  bool is_quantised() const { return form == WeightForm::int8 || form == WeightForm::int4 || blocks; }
};

/// Makes the plan. Its errors are those of Model::open, without memory errors.
Result<ModelPlan> plan_model(const std::string& directory, const ModelOptions& options);
/// MC5003: names the size of the weights and the free memory.
Error not_enough_memory(const ModelPlan& plan, const std::string& directory, size_t free);

struct Layer {
  std::vector<float> input_norm, post_norm;  // [hidden]
  std::vector<float> q_norm, k_norm;         // [head_dim], or empty
  ops::PackedMatrix qkv;                     // [(heads + 2 kv_heads) head_dim, hidden]: q, then k, then v
  std::vector<float> qkv_bias;               // empty without biases
  ops::PackedMatrix output;                  // [hidden, heads head_dim]
  std::vector<float> output_bias;
  Mlp mlp;          // or `experts`
  Experts experts;  // used where config().has_mixture(layer)
};

class Model {
 public:
  /// Checks everything, including memory, before it allocates. Errors carry an MC number: 3001 incomplete, 3002
  /// corrupt, 3003 to 3006 and 3010 unsupported, 5003 not enough memory.
  static Result<Model> open(const std::string& directory, const ModelOptions& options, Parallel& parallel);
  /// A dense model in bf16 that has a shape alone, for measurements. A device gives it random weights; the CPU does not
  /// serve it.
  static Model without_weights(const ModelConfig& config);

  const ModelConfig& config() const { return config_; }
  const std::string& directory() const { return directory_; }
  Dtype dtype() const { return dtype_; }
  Dtype kv_dtype() const { return kv_dtype_; }
  /// See ModelPlan.
  std::string_view weight_dtype() const { return weight_dtype_; }
  /// ModelPlan::coded.
  std::span<const PlannedMatrix> coded() const { return coded_; }
  /// GPUs round the inputs of some fp8 weights to fp8, so that their KV has a namespace of its own. `of` names these
  /// matrices (rounded_text() of model/device_forms.h); empty: no input is rounded.
  void round_inputs(std::string of) { rounded_ = std::move(of); }
  /// SHA-256 hex of the weights (WeightFiles::digest). For tests.
  const std::string& weights_digest() const { return weights_digest_; }
  size_t weight_bytes() const { return weight_bytes_; }
  /// The part of weight_bytes() that a table of embeddings takes; 0 for tied ones.
  size_t embedding_bytes() const { return embedding_bytes_; }
  /// The loaded layers: all, or those of a pipeline stage.
  LayerRange held() const { return held_; }
  bool whole() const { return held_.count() == config_.layers; }
  bool has_weights() const { return has_weights_; }
  /// Number of parameters of the whole model.
  uint64_t parameters() const { return parameters_; }

  ExtentLayout kv_layout(uint32_t block_tokens) const;
  /// The namespace that two nodes must share before they exchange KV. `plan` is the prefill plan.
  kv::Namespace kv_namespace(const attn::Plan& plan, uint32_t block_tokens, const std::string& salt = {}) const;

  // For the forward pass. Parts of layers that are not loaded are empty.
  std::span<const Layer> layers() const { return layers_; }
  std::span<const float> final_norm() const { return final_norm_; }
  const ops::PackedMatrix& head() const { return head_; }
  /// Writes the embedding of a token < vocab, widened to f32; out [hidden].
  void embed(uint32_t token, float* out) const;

 private:
  Model() = default;
  Result<void> load(const WeightLoader& loader);
  Result<void> load_layer(const WeightLoader& loader, uint32_t index);
  Result<Mlp> load_mlp(const WeightLoader& loader, const std::string& prefix, uint64_t inner, bool biased) const;
  Result<Experts> load_experts(const WeightLoader& loader, const std::string& prefix) const;

  WeightFiles files_;     // where matrices lie in their files; otherwise empty
  ReadAhead read_ahead_;  // of these matrices
  std::string directory_;
  ModelConfig config_;
  Dtype dtype_ = Dtype::bf16;
  Dtype kv_dtype_ = Dtype::bf16;
  std::string_view weight_dtype_;
  bool is_quantised_ = false, has_weights_ = true;
  std::vector<PlannedMatrix> coded_;
  std::string rounded_;  // matrices whose inputs are rounded
  LayerRange held_;
  std::string weights_digest_;
  size_t weight_bytes_ = 0, embedding_bytes_ = 0;
  uint64_t parameters_ = 0;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  ops::PackedMatrix head_;  // [vocab, hidden]
  WeightTable embeddings_;  // [vocab, hidden]; empty when tied, because head_ has them
};

/// `held`: the layers of a pipeline stage; empty: all.
ExtentLayout kv_layout(const ModelConfig& config, Dtype kv_dtype, uint32_t block_tokens, LayerRange held = {});
}  // namespace mc::model

#include "model/model.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/errors.h"
#include "base/parallel.h"

namespace mc::model {
namespace {

using Shape = std::vector<uint64_t>;

uint64_t q_width(const ModelConfig& c) {
  return uint64_t{c.heads} * c.head_dim;
}
uint64_t kv_width(const ModelConfig& c) {
  return uint64_t{c.kv_heads} * c.head_dim;
}

Result<std::vector<float>> vector_of(const WeightFiles& files, const std::string& name, uint64_t size) {
  MC_TRY(tensor, files.require(name, Shape{size}));
  std::vector<float> out(size);
  for (size_t i = 0; i < size; ++i) {
    if (*tensor->entry.dtype == Dtype::f32) {
      std::memcpy(&out[i], tensor->data + 4 * i, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, tensor->data + 2 * i, 2);
      out[i] = *tensor->entry.dtype == Dtype::bf16 ? bf16_to_f32(bits) : ops::f16_to_f32(bits);
    }
  }
  return out;
}

/// One stacked matrix of several tensors `prefix + name`.
struct Part {
  const char* name;
  uint64_t rows;
};

Result<ops::PackedMatrix> matrix_of(const WeightFiles& files, const std::string& prefix, std::span<const Part> parts,
                                    uint64_t columns, Dtype dtype, Parallel& parallel) {
  std::vector<ops::WeightRows> rows;
  for (const Part& part : parts) {
    MC_TRY(tensor, files.require(prefix + part.name + ".weight", Shape{part.rows, columns}));
    rows.push_back({tensor->data, *tensor->entry.dtype, part.rows});
  }
  return ops::PackedMatrix::pack(parallel, rows, columns, dtype);
}

Result<std::vector<float>> bias_of(const WeightFiles& files, const std::string& prefix, std::span<const Part> parts,
                                   bool present) {
  std::vector<float> bias;
  if (!present) return bias;
  for (const Part& part : parts) {
    MC_TRY(values, vector_of(files, prefix + part.name + ".bias", part.rows));
    bias.insert(bias.end(), values.begin(), values.end());
  }
  return bias;
}

Result<Dtype> choose_dtype(const std::string& asked, const WeightFiles& files) {
  if (asked == "f32") return Dtype::f32;
  if (asked == "bf16") return Dtype::bf16;
  if (asked != "auto" && !asked.empty())
    return user_error(err::kDtypeUnsupported, "dtype '" + asked + "'; supported: auto, bf16, f32");
  for (const Tensor& tensor : files.tensors())
    if (tensor.entry.dtype != Dtype::bf16) return Dtype::f32;
  return Dtype::bf16;
}

std::string mib(size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

}  // namespace

size_t packed_weight_bytes(const ModelConfig& c, Dtype dtype) {
  const auto packed = [&](uint64_t rows, uint64_t columns) {
    return ops::PackedMatrix::packed_bytes(rows, columns, dtype);
  };
  const auto mlp = [&](uint64_t inner) { return packed(2 * inner, c.hidden) + packed(c.hidden, inner); };
  const MixtureConfig& m = c.mixture;
  size_t mlps = 0;
  for (uint32_t layer = 0; layer < c.layers; ++layer) {
    if (!c.has_mixture(layer)) {
      mlps += mlp(c.intermediate);
      continue;
    }
    mlps += packed(m.experts, c.hidden) + m.experts * mlp(m.intermediate);
    if (m.shared_intermediate > 0) mlps += mlp(m.shared_intermediate) + packed(1, c.hidden);
  }
  const size_t layer =
      packed(q_width(c) + 2 * kv_width(c), c.hidden) + packed(c.hidden, q_width(c)) + 2 * sizeof(float) * c.hidden;
  const size_t embeddings = c.tied_embeddings ? 0 : uint64_t{c.vocab} * c.hidden * dtype_bytes(dtype);
  return c.layers * layer + mlps + packed(c.vocab, c.hidden) + embeddings;
}

Result<Model> Model::open(const std::string& directory, const ModelOptions& options, Parallel& parallel) {
  Model model;
  model.directory_ = directory;
  MC_TRY(config, read_config(directory));
  model.config_ = std::move(config);
  MC_TRY(files, WeightFiles::open(directory));
  MC_TRY(dtype, choose_dtype(options.dtype, files));
  model.dtype_ = dtype;
  const size_t needed = packed_weight_bytes(model.config_, dtype), free = mem::available_bytes();
  if (needed > free)
    return user_error(
        err::kNotEnoughMemory,
        directory + ": the weights need " + mib(needed) + " in " + std::string(to_string(dtype)) + ", free are " +
            mib(free),
        {}, dtype == Dtype::f32 ? "use --dtype bf16 (half of that), or a smaller model" : "use a smaller model");
  model.weight_bytes_ = needed;
  model.weights_digest_ = files.digest();
  MC_CHECK(model.load(files, parallel));
  return model;
}

Result<void> Model::load(const WeightFiles& files, Parallel& parallel) {
  const ModelConfig& c = config_;
  for (const Tensor& tensor : files.tensors()) parameters_ += tensor.entry.elements();
  layers_.resize(c.layers);
  for (uint32_t i = 0; i < c.layers; ++i) MC_CHECK(load_layer(files, i, parallel));
  MC_TRY(norm, vector_of(files, "model.norm.weight", c.hidden));
  final_norm_ = std::move(norm);
  const Shape shape{c.vocab, c.hidden};
  MC_TRY(embeddings, files.require("model.embed_tokens.weight", shape));
  const Tensor* head = embeddings;
  if (!c.tied_embeddings) {
    MC_TRY(own, files.require("lm_head.weight", shape));
    head = own;
  }
  const ops::WeightRows rows{head->data, *head->entry.dtype, c.vocab};
  MC_TRY(packed, ops::PackedMatrix::pack(parallel, {&rows, 1}, c.hidden, dtype_));
  head_ = std::move(packed);
  if (c.tied_embeddings) return {};
  MC_TRY(storage,
         mem::HostBuffer::allocate(uint64_t{c.vocab} * c.hidden * dtype_bytes(dtype_), {.name = "embeddings"}));
  embeddings_ = std::move(storage);
  const ops::WeightRows source{embeddings->data, *embeddings->entry.dtype, c.vocab};
  parallel.for_ranges(c.vocab, 256, [&](int64_t begin, int64_t end, int) {
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row)
      ops::convert_row(source, row, c.hidden, dtype_, embeddings_.data() + row * c.hidden * dtype_bytes(dtype_));
  });
  return {};
}

/// Tensors prefix + {gate,up,down}_proj.
Result<Mlp> Model::load_mlp(const WeightFiles& files, const std::string& prefix, uint64_t inner, bool biased,
                            Parallel& parallel) const {
  const Part gate_up[] = {{"gate_proj", inner}, {"up_proj", inner}}, down[] = {{"down_proj", config_.hidden}};
  MC_TRY(first, matrix_of(files, prefix, gate_up, config_.hidden, dtype_, parallel));
  MC_TRY(first_bias, bias_of(files, prefix, gate_up, biased));
  MC_TRY(second, matrix_of(files, prefix, down, inner, dtype_, parallel));
  MC_TRY(second_bias, bias_of(files, prefix, down, biased));
  return Mlp{std::move(first), std::move(first_bias), std::move(second), std::move(second_bias)};
}

Result<Experts> Model::load_experts(const WeightFiles& files, const std::string& prefix, Parallel& parallel) const {
  const MixtureConfig& mixture = config_.mixture;
  const Part router[] = {{"gate", mixture.experts}}, shared_gate[] = {{"shared_expert_gate", 1}};
  Experts experts;
  MC_TRY(scores, matrix_of(files, prefix, router, config_.hidden, dtype_, parallel));
  experts.router = std::move(scores);
  for (uint32_t i = 0; i < mixture.experts; ++i) {
    const std::string name = prefix + "experts." + std::to_string(i) + ".";
    MC_TRY(one, load_mlp(files, name, mixture.intermediate, false, parallel));
    experts.routed.push_back(std::move(one));
  }
  if (mixture.shared_intermediate == 0) return experts;
  MC_TRY(shared, load_mlp(files, prefix + "shared_expert.", mixture.shared_intermediate, false, parallel));
  MC_TRY(gate, matrix_of(files, prefix, shared_gate, config_.hidden, dtype_, parallel));
  experts.shared = std::move(shared);
  experts.shared_gate = std::move(gate);
  return experts;
}

Result<void> Model::load_layer(const WeightFiles& files, uint32_t index, Parallel& parallel) {
  const ModelConfig& c = config_;
  Layer& layer = layers_[index];
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  MC_TRY(input_norm, vector_of(files, prefix + "input_layernorm.weight", c.hidden));
  MC_TRY(post_norm, vector_of(files, prefix + "post_attention_layernorm.weight", c.hidden));
  layer.input_norm = std::move(input_norm);
  layer.post_norm = std::move(post_norm);
  if (c.qk_norm) {
    MC_TRY(q_norm, vector_of(files, prefix + "self_attn.q_norm.weight", c.head_dim));
    MC_TRY(k_norm, vector_of(files, prefix + "self_attn.k_norm.weight", c.head_dim));
    layer.q_norm = std::move(q_norm);
    layer.k_norm = std::move(k_norm);
  }
  struct Product {
    ops::PackedMatrix* matrix;
    std::vector<float>* bias;
    std::vector<Part> parts;
    uint64_t columns;
    bool biased;
  };
  const Product products[] = {
      {&layer.qkv,
       &layer.qkv_bias,
       {{"self_attn.q_proj", q_width(c)}, {"self_attn.k_proj", kv_width(c)}, {"self_attn.v_proj", kv_width(c)}},
       c.hidden,
       c.qkv_bias},
      {&layer.output, &layer.output_bias, {{"self_attn.o_proj", c.hidden}}, q_width(c), c.output_bias},
  };
  for (const Product& product : products) {
    MC_TRY(matrix, matrix_of(files, prefix, product.parts, product.columns, dtype_, parallel));
    *product.matrix = std::move(matrix);
    MC_TRY(bias, bias_of(files, prefix, product.parts, product.biased));
    *product.bias = std::move(bias);
  }
  if (c.has_mixture(index)) {
    MC_TRY(experts, load_experts(files, prefix + "mlp.", parallel));
    layer.experts = std::move(experts);
  } else {
    MC_TRY(mlp, load_mlp(files, prefix + "mlp.", c.intermediate, c.mlp_bias, parallel));
    layer.mlp = std::move(mlp);
  }
  return {};
}

ExtentLayout Model::kv_layout(uint32_t block_tokens) const {
  return {.layers = config_.layers,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim,
          .block_tokens = block_tokens,
          .dtype = dtype_};
}

kv::Namespace Model::kv_namespace(const attn::Plan& plan, uint32_t block_tokens, const std::string& salt) const {
  kv::Namespace space;
  space.weights = weights_digest_;
  space.config = config_.kv_digest();
  space.dtype = space.weight_dtype = space.kv_dtype = to_string(dtype_);
  space.rope = config_.rope.text();
  space.attention = attn::to_string(plan);
  space.layers = config_.layers;
  space.kv_heads = config_.kv_heads;
  space.head_dim = config_.head_dim;
  space.block_tokens = block_tokens;
  space.layout = ExtentLayout::kVersion;
  space.salt = salt;
  return space;
}

void Model::embed(uint32_t token, float* out) const {
  MC_ASSERT_LT(token, config_.vocab);
  if (!embeddings_) return head_.row(token, out);
  const size_t width = config_.hidden;
  const std::byte* source = embeddings_.data() + token * width * dtype_bytes(dtype_);
  if (dtype_ == Dtype::f32) {
    std::memcpy(out, source, width * sizeof(float));
    return;
  }
  const auto* narrow = reinterpret_cast<const bf16_t*>(source);
  for (size_t i = 0; i < width; ++i) out[i] = bf16_to_f32(narrow[i]);
}

}  // namespace mc::model

#include "model/model.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/errors.h"
#include "base/parallel.h"

namespace mc::model {
namespace {

constexpr const char* kEmbeddings = "model.embed_tokens.weight";

uint64_t q_width(const ModelConfig& c) {
  return uint64_t{c.heads} * c.head_dim;
}
uint64_t kv_width(const ModelConfig& c) {
  return uint64_t{c.kv_heads} * c.head_dim;
}

Result<Dtype> choose_dtype(const std::string& asked, const WeightFiles& files) {
  if (asked == "f32") return Dtype::f32;
  if (asked == "bf16") return Dtype::bf16;
  if (asked != "auto" && !asked.empty())
    return user_error(err::kDtypeUnsupported, "dtype '" + asked + "'; supported: auto, bf16, f32");
  for (const Tensor& tensor : files.tensors()) {
    if (files.is_gguf() && tensor.entry.shape.size() < 2) continue;  // norms and biases, which are F32 in every file
    const bool narrow = tensor.entry.dtype == Dtype::bf16 || tensor.entry.dtype == Dtype::f8_e4m3;
    if (!narrow && !is_scale(tensor.entry.name)) return Dtype::f32;
  }
  return Dtype::bf16;
}

Result<Dtype> choose_kv_dtype(const std::string& asked, Dtype dtype) {
  if (asked == "auto" || asked.empty()) return dtype;
  const auto kv = dtype_from(asked);
  if (kv == dtype || kv == Dtype::f8_e4m3) return *kv;
  const std::string own(to_string(dtype));
  return user_error(err::kDtypeUnsupported, "K and V in '" + asked + "' beside the compute type " + own, "--kv-dtype",
                    "use auto, " + own + " or fp8_e4m3, or change --dtype");
}

Result<WeightForm> read_form(const std::string& asked) {
  constexpr std::pair<std::string_view, WeightForm> kForms[] = {{"", WeightForm::as_stored},
                                                                {"auto", WeightForm::as_stored},
                                                                {"full", WeightForm::full},
                                                                {"int8", WeightForm::int8},
                                                                {"int4", WeightForm::int4}};
  for (const auto& [name, form] : kForms)
    if (asked == name) return form;
  return user_error(err::kDtypeUnsupported,
                    "weight dtype '" + asked + "'; supported: auto (as stored), full (as --dtype), int8 and int4");
}

std::string mib(size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

/// With tied weights, the rows of the embeddings are those of the head.
bool needs_head(const ModelConfig& c, LayerRange held) {
  return held.end == c.layers || (c.tied_embeddings && held.first == 0);
}
bool needs_embeddings(const ModelConfig& c, LayerRange held) {
  return !c.tied_embeddings && held.first == 0;
}
WeightPart head_part(const ModelConfig& c) {
  return {c.tied_embeddings ? "model.embed_tokens" : "lm_head", c.vocab};
}

std::string layer_prefix(uint32_t layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

/// Visits the matrices of one MLP or mixture.
template <class Visit>
Result<void> visit_mlp(const ModelConfig& c, uint32_t layer, Visit visit) {
  const std::string prefix = layer_prefix(layer) + "mlp.";
  const auto mlp = [&](const std::string& at, uint64_t inner) -> Result<void> {
    MC_CHECK(visit(at, {{"gate_proj", inner}, {"up_proj", inner}}, c.hidden, Precision::as_asked));
    return visit(at, {{"down_proj", c.hidden}}, inner, Precision::as_asked);
  };
  if (!c.has_mixture(layer)) return mlp(prefix, c.intermediate);
  const MixtureConfig& m = c.mixture;
  MC_CHECK(visit(prefix, {{"gate", m.experts}}, c.hidden, Precision::full));
  for (uint32_t i = 0; i < m.experts; ++i) MC_CHECK(mlp(prefix + "experts." + std::to_string(i) + ".", m.intermediate));
  if (m.shared_intermediate == 0) return {};
  MC_CHECK(mlp(prefix + "shared_expert.", m.shared_intermediate));
  return visit(prefix, {{"shared_expert_gate", 1}}, c.hidden, Precision::full);
}

/// The role of a matrix whose first part is `name`.
MatrixRole role_of(const std::string& prefix, std::string_view name) {
  if (prefix.find("expert") != std::string::npos) return MatrixRole::other;
  constexpr std::pair<std::string_view, MatrixRole> kRoles[] = {{"self_attn.q_proj", MatrixRole::qkv},
                                                                {"self_attn.o_proj", MatrixRole::output},
                                                                {"gate_proj", MatrixRole::gate_up},
                                                                {"down_proj", MatrixRole::down}};
  for (const auto& [part, role] : kRoles)
    if (name == part) return role;
  return MatrixRole::other;
}

/// Computes the packed size of the weights of plan.layers from headers and scales, for messages and planning.
Result<void> plan_weights(ModelPlan& plan) {
  const ModelConfig& c = plan.config;
  Parallel nobody(1);
  const WeightLoader loader(plan.files, c, plan.dtype, plan.form, nobody);
  bool held = true;
  uint32_t layer = 0;
  const auto visit = [&](const std::string& prefix, const std::vector<WeightPart>& parts, uint64_t columns,
                         Precision precision) -> Result<void> {
    MC_TRY(matrix, loader.plan(prefix, parts, columns, precision));
    const bool is_whole_numbers = precision == Precision::as_asked && quant_form_of(plan.form);
    size_t rows = 0;
    for (const WeightPart& part : parts) rows += part.rows;
    const PlannedMatrix planned{.role = role_of(prefix, parts.front().name),
                                .rows = rows,
                                .columns = columns,
                                .bytes = matrix.bytes,
                                .is_full = !matrix.fp8 && !matrix.blocks && !is_whole_numbers,
                                .scales = matrix.scales,
                                .layer = layer};
    if (held) plan.matrices.push_back(planned);
    if (planned.scales && planned.role != MatrixRole::other) plan.coded.push_back(planned);
    plan.weight_bytes += held ? matrix.bytes : 0;
    plan.fp8 |= matrix.fp8;
    plan.blocks |= matrix.blocks;
    return {};
  };
  // All layers are read, because the stages of a pipeline must name one weight dtype.
  for (layer = 0; layer < c.layers; ++layer) {
    held = plan.layers.first <= layer && layer < plan.layers.end;
    const std::string prefix = layer_prefix(layer);
    const std::vector<WeightPart> qkv = {
        {"self_attn.q_proj", q_width(c)}, {"self_attn.k_proj", kv_width(c)}, {"self_attn.v_proj", kv_width(c)}};
    MC_CHECK(visit(prefix, qkv, c.hidden, Precision::as_asked));
    MC_CHECK(visit(prefix, {{"self_attn.o_proj", c.hidden}}, q_width(c), Precision::as_asked));
    MC_CHECK(visit_mlp(c, layer, visit));
    plan.weight_bytes += held ? 2 * sizeof(float) * c.hidden : 0;
  }
  held = needs_head(c, plan.layers);
  MC_CHECK(visit("", {head_part(c)}, c.hidden, Precision::as_asked));
  if (!needs_embeddings(c, plan.layers)) return {};
  const WeightLoader::MatrixPlan table = loader.plan_table(kEmbeddings, c.vocab, c.hidden);
  plan.blocks |= table.blocks;
  plan.embedding_bytes = table.bytes;
  plan.matrices.push_back(
      {.rows = c.vocab, .columns = c.hidden, .bytes = table.bytes, .is_full = !table.blocks, .scales = {}});
  plan.weight_bytes += table.bytes;
  return {};
}

}  // namespace

std::string_view ModelPlan::weight_dtype() const {
  switch (form) {
    case WeightForm::int8: return "int8";
    case WeightForm::int4: return "int4";
    case WeightForm::as_stored:
    case WeightForm::full: break;
  }
  return blocks ? "blocks" : to_string(fp8 ? Dtype::f8_e4m3 : dtype);
}

Result<ModelPlan> plan_model(const std::string& directory, const ModelOptions& options) {
  ModelPlan plan;
  MC_TRY(config, read_config(directory));
  plan.config = std::move(config);
  MC_TRY(files, WeightFiles::open(directory));
  MC_TRY(dtype, choose_dtype(options.dtype, files));
  plan.dtype = dtype;
  MC_TRY(kv_dtype, choose_kv_dtype(options.kv_dtype, dtype));
  plan.kv_dtype = kv_dtype;
  MC_TRY(form, read_form(options.weight_dtype));
  plan.form = form;
  if (options.stages == 0 || options.stage >= options.stages)
    return user_error(err::kBadValue,
                      "stage " + std::to_string(options.stage) + " of " + std::to_string(options.stages) +
                          " stages, which count from 0",
                      "--pipeline");
  if (options.stages > plan.config.layers)
    return user_error(err::kBadValue,
                      "a pipeline of " + std::to_string(options.stages) + " stages for a model of " +
                          std::to_string(plan.config.layers) + " layers",
                      "--pipeline");
  plan.layers = stage_layers(plan.config.layers, options.stage, options.stages);
  plan.files = std::move(files);
  MC_CHECK(plan_weights(plan));
  return plan;
}

Error not_enough_memory(const ModelPlan& plan, const std::string& directory, size_t free) {
  const bool f32 = plan.dtype == Dtype::f32;
  return user_error(err::kNotEnoughMemory,
                    directory + ": the weights need " + mib(plan.weight_bytes) + " in " +
                        std::string(plan.weight_dtype()) + ", free are " + mib(free),
                    {},
                    plan.form == WeightForm::int4 ? "use a smaller model"
                    : quant_form_of(plan.form) || plan.fp8 || plan.blocks
                        ? "use --weight-dtype int4, or a smaller model"
                    : f32 ? "use --dtype bf16 (half of that), --weight-dtype int8, or a smaller model"
                          : "use --weight-dtype int8 (half of that), or a smaller model");
}

Result<Model> Model::open(const std::string& directory, const ModelOptions& options, Parallel& parallel) {
  MC_TRY(plan, plan_model(directory, options));
  const size_t free = mem::available_bytes();
  if (plan.weight_bytes > free) return not_enough_memory(plan, directory, free);
  Model model;
  model.directory_ = directory;
  model.config_ = std::move(plan.config);
  model.dtype_ = plan.dtype;
  model.kv_dtype_ = plan.kv_dtype;
  model.weight_dtype_ = plan.weight_dtype();
  model.is_quantised_ = plan.is_quantised();
  model.coded_ = std::move(plan.coded);
  model.held_ = plan.layers;
  model.weight_bytes_ = plan.weight_bytes;
  model.embedding_bytes_ = plan.embedding_bytes;
  model.weights_digest_ = plan.files.digest();
  for (const Tensor& tensor : plan.files.tensors())
    if (!is_scale(tensor.entry.name)) model.parameters_ += tensor.entry.elements();
  const WeightLoader loader(plan.files, model.config_, model.dtype_, plan.form, parallel);
  MC_CHECK(model.load(loader));
  if (loader.in_place().empty()) return model;
  model.read_ahead_ = ReadAhead(loader.in_place());
  model.files_ = std::move(plan.files);
  return model;
}

Model Model::without_weights(const ModelConfig& c) {
  MC_ASSERT(c.mixture.experts == 0 && !c.bias.qkv && !c.bias.output && !c.bias.mlp && !c.qk_norm);
  Model model;
  model.config_ = c;
  model.dtype_ = model.kv_dtype_ = Dtype::bf16;
  model.weight_dtype_ = to_string(Dtype::bf16);
  model.has_weights_ = false;
  model.held_ = {0, c.layers};
  const uint64_t attention = c.hidden * (2 * q_width(c) + 2 * kv_width(c));
  const uint64_t layer = attention + 3 * uint64_t{c.hidden} * c.intermediate + 2 * c.hidden;
  const uint64_t table = uint64_t{c.vocab} * c.hidden;
  model.parameters_ = c.layers * layer + c.hidden + (c.tied_embeddings ? 1 : 2) * table;
  model.weight_bytes_ = model.parameters_ * dtype_bytes(Dtype::bf16);
  model.embedding_bytes_ = c.tied_embeddings ? 0 : table * dtype_bytes(Dtype::bf16);
  model.final_norm_.assign(c.hidden, 1);
  return model;
}

Result<void> Model::load(const WeightLoader& loader) {
  const ModelConfig& c = config_;
  layers_.resize(c.layers);
  for (uint32_t i = held_.first; i < held_.end; ++i) MC_CHECK(load_layer(loader, i));
  MC_TRY(norm, loader.vector("model.norm.weight", c.hidden));
  final_norm_ = std::move(norm);
  if (needs_head(c, held_)) {
    const WeightPart head[] = {head_part(c)};
    MC_TRY(packed, loader.matrix("", head, c.hidden));
    head_ = std::move(packed);
  }
  if (needs_embeddings(c, held_)) {
    MC_TRY(table, loader.table(kEmbeddings, c.vocab, c.hidden));
    embeddings_ = std::move(table);
  }
  return {};
}

/// Loads the tensors prefix + {gate,up,down}_proj.
Result<Mlp> Model::load_mlp(const WeightLoader& loader, const std::string& prefix, uint64_t inner, bool biased) const {
  const WeightPart gate_up[] = {{"gate_proj", inner}, {"up_proj", inner}}, down[] = {{"down_proj", config_.hidden}};
  MC_TRY(first, loader.matrix(prefix, gate_up, config_.hidden));
  MC_TRY(first_bias, loader.bias(prefix, gate_up, biased));
  MC_TRY(second, loader.matrix(prefix, down, inner));
  MC_TRY(second_bias, loader.bias(prefix, down, biased));
  return Mlp{std::move(first), std::move(first_bias), std::move(second), std::move(second_bias)};
}

Result<Experts> Model::load_experts(const WeightLoader& loader, const std::string& prefix) const {
  const MixtureConfig& mixture = config_.mixture;
  const WeightPart router[] = {{"gate", mixture.experts}}, shared_gate[] = {{"shared_expert_gate", 1}};
  Experts experts;
  MC_TRY(scores, loader.matrix(prefix, router, config_.hidden, Precision::full));
  experts.router = std::move(scores);
  for (uint32_t i = 0; i < mixture.experts; ++i) {
    const std::string name = prefix + "experts." + std::to_string(i) + ".";
    MC_TRY(one, load_mlp(loader, name, mixture.intermediate, false));
    experts.routed.push_back(std::move(one));
  }
  if (mixture.shared_intermediate == 0) return experts;
  MC_TRY(shared, load_mlp(loader, prefix + "shared_expert.", mixture.shared_intermediate, false));
  MC_TRY(gate, loader.matrix(prefix, shared_gate, config_.hidden, Precision::full));
  experts.shared = std::move(shared);
  experts.shared_gate = std::move(gate);
  return experts;
}

Result<void> Model::load_layer(const WeightLoader& loader, uint32_t index) {
  const ModelConfig& c = config_;
  Layer& layer = layers_[index];
  const std::string prefix = layer_prefix(index);
  MC_TRY(input_norm, loader.vector(prefix + "input_layernorm.weight", c.hidden));
  MC_TRY(post_norm, loader.vector(prefix + "post_attention_layernorm.weight", c.hidden));
  layer.input_norm = std::move(input_norm);
  layer.post_norm = std::move(post_norm);
  if (c.qk_norm) {
    MC_TRY(q_norm, loader.vector(prefix + "self_attn.q_norm.weight", c.head_dim));
    MC_TRY(k_norm, loader.vector(prefix + "self_attn.k_norm.weight", c.head_dim));
    layer.q_norm = std::move(q_norm);
    layer.k_norm = std::move(k_norm);
  }
  struct Product {
    ops::PackedMatrix* matrix;
    std::vector<float>* bias;
    std::vector<WeightPart> parts;
    uint64_t columns;
    bool biased;
  };
  const Product products[] = {
      {&layer.qkv,
       &layer.qkv_bias,
       {{"self_attn.q_proj", q_width(c)}, {"self_attn.k_proj", kv_width(c)}, {"self_attn.v_proj", kv_width(c)}},
       c.hidden,
       c.bias.qkv},
      {&layer.output, &layer.output_bias, {{"self_attn.o_proj", c.hidden}}, q_width(c), c.bias.output},
  };
  for (const Product& product : products) {
    MC_TRY(matrix, loader.matrix(prefix, product.parts, product.columns));
    *product.matrix = std::move(matrix);
    MC_TRY(bias, loader.bias(prefix, product.parts, product.biased));
    *product.bias = std::move(bias);
  }
  if (c.has_mixture(index)) {
    MC_TRY(experts, load_experts(loader, prefix + "mlp."));
    layer.experts = std::move(experts);
  } else {
    MC_TRY(mlp, load_mlp(loader, prefix + "mlp.", c.intermediate, c.bias.mlp));
    layer.mlp = std::move(mlp);
  }
  return {};
}

ExtentLayout kv_layout(const ModelConfig& config, Dtype kv_dtype, uint32_t block_tokens, LayerRange held) {
  return {.layers = config.layers,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .block_tokens = block_tokens,
          .dtype = kv_dtype,
          .stage = held.count() < config.layers ? held : LayerRange{}};
}

ExtentLayout Model::kv_layout(uint32_t block_tokens) const {
  return model::kv_layout(config_, kv_dtype_, block_tokens, held_);
}

kv::Namespace Model::kv_namespace(const attn::Plan& plan, uint32_t block_tokens, const std::string& salt) const {
  kv::Namespace space;
  space.weights = weights_digest_;
  space.config = config_.kv_digest();
  space.dtype = to_string(dtype_);
  space.kv_dtype = to_string(kv_dtype_);
  space.weight_dtype = weight_dtype();
  if (!rounded_.empty()) space.weight_dtype += " inputs " + std::string(to_string(Dtype::f8_e4m3)) + " of " + rounded_;
  if (is_quantised_) space.weight_dtype += " version " + std::to_string(ops::kQuantVersion);
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
  embeddings_.row(token, out);
}

}  // namespace mc::model

#include "model/device_layers.h"

#include <algorithm>
#include <vector>

#include "base/assert.h"
#include "gpu/mlp.h"
#include "model/device_forms.h"
#include "model/device_inputs.h"
#include "model/device_steps.h"

namespace mc::model {
namespace {

uint32_t ceil_div(size_t value, size_t by) {
  return static_cast<uint32_t>((value + by - 1) / by);
}

/// Inner width of the layers without a mixture; 0: all have one.
size_t dense_inner(const ModelConfig& c) {
  for (uint32_t layer = 0; layer < c.layers; ++layer)
    if (!c.has_mixture(layer)) return c.intermediate;
  return 0;
}

std::optional<gpu::MixtureShape> mixture_shape(const ModelConfig& c, const TensorPart& part = {}) {
  if (c.mixture.experts == 0) return std::nullopt;
  return gpu::MixtureShape{.experts = c.mixture.experts,
                           .per_token = c.mixture.per_token,
                           .normalise = c.mixture.normalise,
                           .hidden = c.hidden,
                           .inner = c.mixture.intermediate,
                           .shared_inner = c.mixture.shared_intermediate,
                           .routes_alike = !part.is_whole()};
}

/// The widest product of a dense layer.
struct Fp8Widths {
  size_t columns, inner;
};
Fp8Widths fp8_widths(const ModelConfig& c) {
  const size_t q = size_t{c.heads} * c.head_dim, qkv = q + size_t{2} * c.kv_heads * c.head_dim;
  return {std::max({qkv, size_t{c.hidden}, 2 * dense_inner(c)}), std::max({size_t{c.hidden}, q, dense_inner(c)})};
}

size_t fp8_rows_most(const RunnerOptions& options) {
  return std::max(DeviceLayers::rows_most(options), DeviceLayers::logit_rows_most(options));
}

}  // namespace

// ---- memory ----

size_t DeviceLayers::rows_most(const RunnerOptions& options) {
  return std::max<size_t>(options.max_chunk_tokens, options.max_batch);
}

size_t DeviceLayers::logit_rows_most(const RunnerOptions& options) {
  return std::max<size_t>(options.max_batch, 16);
}

std::vector<DeviceLayers::PartSize> DeviceLayers::part_sizes(const ModelConfig& c, const RunnerOptions& options) {
  const size_t rows = rows_most(options), logit_rows = logit_rows_most(options);
  const size_t q_width = size_t{c.heads} * c.head_dim, kv_width = size_t{c.kv_heads} * c.head_dim;
  const size_t step_rows = DeviceSteps::kPlaces * c.layers * options.max_batch;
  return {{&Parts::inputs, DeviceInputs::bytes_most(rows, c.head_dim)},
          {&Parts::sums, std::max(kLayersAtOnce * rows, step_rows) * 4},
          {&Parts::x, rows * c.hidden * 4},
          {&Parts::qkv, rows * (q_width + 2 * kv_width) * 4},
          {&Parts::gate_up, rows * dense_inner(c) * 8},
          {&Parts::logits, logit_rows * c.vocab * 4},
          {&Parts::normed, rows * c.hidden * 2},
          {&Parts::q, rows * q_width * 2},
          {&Parts::attended, rows * q_width * 2},
          {&Parts::activated, rows * dense_inner(c) * 2},
          {&Parts::kept, step_rows * 2 * kv_width * 2},
          {&Parts::last_x, logit_rows * c.hidden * 4},
          {&Parts::last_q, logit_rows * q_width * 2}};
}

size_t DeviceLayers::fp8_bytes(const ModelConfig& config, const RunnerOptions& options) {
  const Fp8Widths widths = fp8_widths(config);
  return gpu::Fp8Matmul::bytes(fp8_rows_most(options), widths.columns, widths.inner);
}

size_t DeviceLayers::bytes(const ModelConfig& config, const RunnerOptions& options) {
  const auto mixture = mixture_shape(config);
  size_t bytes = mixture ? gpu::Mixture::bytes(*mixture, rows_most(options)) : 0;
  for (const PartSize& part : part_sizes(config, options)) bytes += round_up(part.bytes, gpu::Arena::kAlignment);
  return bytes;
}

Result<void> DeviceLayers::prepare(Parallel& parallel) {
  MC_TRY(weights, DeviceWeights::load(model_, device_, parallel, part_));
  weights_ = std::move(weights);
  if (weights_.has_codes()) {
    const Fp8Widths widths = fp8_widths(config_);
    MC_TRY(fp8, gpu::Fp8Matmul::open(device_, fp8_rows_most(options_), widths.columns, widths.inner));
    fp8_.emplace(std::move(fp8));
  }
  const std::vector<PartSize> sizes = part_sizes(config(), options_);
  size_t bytes = 0;
  for (const PartSize& part : sizes) bytes += round_up(part.bytes, gpu::Arena::kAlignment);
  MC_TRY(arena, gpu::Arena::open(device_, gpu::Place::device, bytes, "workspace"));
  scratch_ = std::move(arena);
  for (const PartSize& size : sizes) {
    if (size.bytes == 0) continue;
    MC_TRY(part, scratch_.take(size.bytes, "activations"));
    at_.*size.member = part.address;
  }
  if (const auto shape = mixture_shape(config(), part_)) {
    MC_TRY(mixture, gpu::Mixture::open(device_, *shape, rows_most(options_)));
    mixture_ = std::move(mixture);
  }
  // Attention writes nothing for rows of no sequence, which later kernels of the layer read.
  return device_.fill(at_.attended, 0, options_.max_batch * q_bytes());
}

// ---- kernels ----

Result<void> DeviceLayers::embed(uint64_t tokens, uint64_t fed, size_t rows) {
  const gpu::EmbedArgs args{.tokens = gpu::device_pointer<const int32_t>(tokens),
                            .table = gpu::device_pointer<const uint16_t>(weights_.embeddings()),
                            .fed = gpu::device_pointer<const gpu::Drawn>(fed),
                            .x = gpu::device_pointer<float>(at_.x),
                            .columns = static_cast<int32_t>(config().hidden)};
  return device_.launch("embed_rows", {.grid = {static_cast<uint32_t>(rows), 1, 1}}, gpu::bytes_of(args));
}

Result<void> DeviceLayers::norm(uint64_t x, uint64_t weight, uint64_t out, size_t rows) {
  const gpu::NormArgs args{.x = gpu::device_pointer<const float>(x),
                           .weight = gpu::device_pointer<const float>(weight),
                           .out = gpu::device_pointer<uint16_t>(out),
                           .rows = static_cast<int32_t>(rows),
                           .columns = static_cast<int32_t>(config().hidden),
                           .epsilon = config().norm_epsilon};
  return device_.launch("rms_norm", {.grid = {ceil_div(rows, gpu::kRowsPerCta), 1, 1}}, gpu::bytes_of(args));
}

/// y = x w^T + bias, or y += the same.
Result<void> DeviceLayers::multiply(uint64_t x, uint64_t weights, uint64_t bias, uint64_t y, size_t rows,
                                    size_t columns, size_t inner, bool adds) {
  if (const DeviceCodes* codes = weights_.codes(weights))
    return multiply_codes({.x = x,
                           .w = weights,
                           .w_scales = codes->values,
                           .y = y,
                           .rows = rows,
                           .columns = columns,
                           .inner = inner,
                           .scales = codes->scales,
                           .adds = adds},
                          bias);
  return gpu::queue_product(
      device_,
      {.x = x, .w = weights, .y = y, .bias = bias, .rows = rows, .columns = columns, .inner = inner, .adds = adds});
}

Result<void> DeviceLayers::multiply_codes(const gpu::Fp8Product& product, uint64_t bias) {
  MC_CHECK(fp8_->queue(product));
  if (bias == 0) return {};
  const gpu::AddArgs add{.x = gpu::device_pointer<const float>(bias),
                         .y = gpu::device_pointer<float>(product.y),
                         .columns = static_cast<int32_t>(product.columns)};
  return device_.launch("add_to_rows", {.grid = {static_cast<uint32_t>(product.rows), 1, 1}}, gpu::bytes_of(add));
}

Result<void> DeviceLayers::project(uint32_t layer, size_t rows) {
  const ModelConfig& c = config();
  const DeviceLayer& w = weights_.layer(layer);
  const size_t qkv_width = q_width() + size_t{2} * c.kv_heads * c.head_dim;
  MC_CHECK(norm(at_.x, w.input_norm, at_.normed, rows));
  return multiply(at_.normed, w.qkv, w.qkv_bias, at_.qkv, rows, qkv_width, c.hidden, false);
}

Result<void> DeviceLayers::rotate(uint32_t layer, const gpu::KvPool& pool, const RotateTables& tables, size_t rows) {
  const ModelConfig& c = config();
  const DeviceLayer& w = weights_.layer(layer);
  const gpu::RotateArgs rotate{.pool = pool,
                               .qkv = gpu::device_pointer<float>(at_.qkv),
                               .cosine = gpu::device_pointer<const float>(tables.cosine),
                               .sine = gpu::device_pointer<const float>(tables.sine),
                               .q_norm = gpu::device_pointer<const float>(w.q_norm),
                               .k_norm = gpu::device_pointer<const float>(w.k_norm),
                               .places = gpu::device_pointer<const gpu::RowPlace>(tables.places),
                               .q = gpu::device_pointer<uint16_t>(at_.q),
                               .kept = gpu::device_pointer<uint16_t>(tables.kept),
                               .kept_rows = static_cast<int32_t>(tables.kept_rows),
                               .q_heads = static_cast<int32_t>(c.heads),
                               .head_dim = static_cast<int32_t>(c.head_dim),
                               .epsilon = c.norm_epsilon};
  const uint32_t heads = c.heads + 2 * c.kv_heads;
  MC_CHECK(device_.launch("rotate_and_keep",
                          {.grid = {static_cast<uint32_t>(rows), ceil_div(heads, gpu::kRowsPerCta), 1}},
                          gpu::bytes_of(rotate)));
  return tables.coded_pages > 0 ? code_rows(pool, tables) : Result<void>{};
}

Result<void> DeviceLayers::code_rows(const gpu::KvPool& pool, const RotateTables& tables) {
  const ModelConfig& c = config();
  const gpu::CodeArgs args{.pool = pool,
                           .qkv = gpu::device_pointer<const float>(at_.qkv),
                           .pages = gpu::device_pointer<const gpu::PageRows>(tables.coded),
                           .kept = gpu::device_pointer<unsigned char>(tables.kept),
                           .kept_rows = static_cast<int32_t>(tables.kept_rows),
                           .q_heads = static_cast<int32_t>(c.heads),
                           .head_dim = static_cast<int32_t>(c.head_dim)};
  return device_.launch(
      "code_rows",
      {.grid = {static_cast<uint32_t>(tables.coded_pages), c.kv_heads, 2}, .dynamic_shared = gpu::kCodeShared},
      gpu::bytes_of(args));
}

Result<void> DeviceLayers::finish(uint32_t layer, const Rows& rows) {
  MC_ASSERT(part_.is_whole());
  MC_CHECK(add_attention(layer, rows));
  return add_mlp(layer, rows);
}

Result<void> DeviceLayers::add_attention(uint32_t layer, const Rows& rows) {
  const DeviceLayer& w = weights_.layer(layer);
  return multiply(rows.attended, w.output, w.output_bias, rows.x, rows.count, config().hidden, q_width(),
                  part_.is_first());
}

Result<void> DeviceLayers::add_mlp(uint32_t layer, const Rows& rows) {
  const ModelConfig& c = config();
  const DeviceLayer& w = weights_.layer(layer);
  MC_CHECK(norm(rows.x, w.post_norm, at_.normed, rows.count));
  if (c.has_mixture(layer)) {
    if (!part_.is_first()) MC_CHECK(device_.fill(rows.x, 0, rows.count * hidden_bytes()));
    return mixture_->add(w.experts, at_.normed, rows.x, rows.count);
  }
  MC_CHECK(multiply(at_.normed, w.gate_up, w.gate_up_bias, at_.gate_up, rows.count, size_t{2} * c.intermediate,
                    c.hidden, false));
  const gpu::SiluArgs silu{.gate_up = gpu::device_pointer<const float>(at_.gate_up),
                           .out = gpu::device_pointer<uint16_t>(at_.activated),
                           .columns = static_cast<int32_t>(c.intermediate)};
  MC_CHECK(gpu::queue_silu(device_, silu, rows.count));
  return multiply(at_.activated, w.down, w.down_bias, rows.x, rows.count, c.hidden, c.intermediate, part_.is_first());
}

Result<void> DeviceLayers::gather_words(uint64_t from, uint64_t to, uint64_t rows, size_t count, size_t bytes) {
  MC_ASSERT_EQ(bytes % 4, 0u);
  const gpu::GatherArgs args{.from = gpu::device_pointer<const uint32_t>(from),
                             .to = gpu::device_pointer<uint32_t>(to),
                             .rows = gpu::device_pointer<const int32_t>(rows),
                             .words = static_cast<int32_t>(bytes / 4)};
  return device_.launch("gather_rows", {.grid = {static_cast<uint32_t>(count), 1, 1}}, gpu::bytes_of(args));
}

Result<void> DeviceLayers::gather(uint64_t rows, size_t count) {
  MC_ASSERT_LE(count, logit_rows_most(options_));
  MC_CHECK(gather_words(at_.x, at_.last_x, rows, count, hidden_bytes()));
  return gather_words(at_.q, at_.last_q, rows, count, q_bytes());
}

Result<void> DeviceLayers::make_logits(uint64_t x, size_t rows) {
  MC_ASSERT_LE(rows, logit_rows_most(options_));
  MC_CHECK(norm(x, weights_.final_norm(), at_.normed, rows));
  return multiply(at_.normed, weights_.head(), 0, at_.logits, rows, config().vocab, config().hidden, false);
}

}  // namespace mc::model

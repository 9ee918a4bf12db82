#include "model/device_weights.h"

#include <cmath>

#include "base/assert.h"
#include "base/errors.h"
#include "base/rng.h"
#include "model/device_forms.h"
#include "ops/unpack.h"

namespace mc::model {
namespace {

constexpr size_t kRandomWeights = 8 * 262'139;  // after which they repeat; 8 times a prime, so that rows differ

size_t aligned(size_t bytes) {
  return round_up(bytes, gpu::Arena::kAlignment);
}

Result<void> check_served(const gpu::Device& device, const std::string& name, size_t columns) {
  if (columns % 8 != 0)
    return user_error(err::kDeviceUnusable,
                      std::string(device.name()) + ": " + name + " has " + std::to_string(columns) +
                          " columns, kernels read 8 at a time",
                      "--device", "use --device cpu");
  return {};
}

bool embeds(const Model& model) {
  return model.held().first == 0;
}
bool has_table(const Model& model) {
  return embeds(model) && !(model.config().tied_embeddings && model.head().rows() > 0);
}

}  // namespace

Result<DeviceWeights> DeviceWeights::load(const Model& model, gpu::Device& device, Parallel& parallel,
                                          const TensorPart& part) {
  if (!model.has_weights()) return random(config_of(model.config(), part), device);
  DeviceWeights out;
  out.part_ = part;
  out.layers_.resize(model.layers().size());
  MC_CHECK(out.load_all(device, model));
  MC_TRY(arena, gpu::Arena::open(device, gpu::Place::device, out.counted_, "weights"));
  out.arena_ = std::move(arena);
  out.is_counting_ = false;
  DeviceUpload upload(device, parallel);
  MC_CHECK(upload.prepare());
  out.upload_ = &upload;
  MC_CHECK(out.load_all(device, model));
  MC_CHECK(upload.finish());
  out.upload_ = nullptr;
  MC_ASSERT_LE(out.arena_.used(), out.counted_);
  return out;
}

Result<void> DeviceWeights::load_all(gpu::Device& device, const Model& model) {
  for (uint32_t l = model.held().first; l < model.held().end; ++l) MC_CHECK(load_layer(device, model, l));
  return load_ends(device, model);
}

Result<uint64_t> DeviceWeights::take(size_t bytes, const std::string& name) {
  if (is_counting_) {
    counted_ += aligned(bytes);
    return uint64_t{0};
  }
  MC_TRY(part, arena_.take(bytes, name));
  return part.address;
}

Result<void> DeviceWeights::load_layer(gpu::Device& device, const Model& model, uint32_t index) {
  const Layer& from = model.layers()[index];
  DeviceLayer& to = layers_[index];
  const std::string name = "layer " + std::to_string(index) + " ";
  const ModelConfig& c = model.config();
  const auto heads = attention_rows(c, part_), inner = inner_rows(c.intermediate, part_);
  const auto put = [&](uint64_t& address, const ops::PackedMatrix& part, const char* what,
                       MatrixRole role) -> Result<void> {
    MC_TRY(at, dense(device, model, {&part, name + what, cut_of(role, c, part_)}, role));
    address = at;
    return {};
  };
  const auto put_vector = [&](uint64_t& address, std::span<const float> part, const char* what,
                              std::span<const RowRun> runs = {}) -> Result<void> {
    MC_TRY(at, vector(device, part, name + what, runs));
    address = at;
    return {};
  };
  MC_CHECK(put_vector(to.input_norm, from.input_norm, "input norm"));
  MC_CHECK(put_vector(to.post_norm, from.post_norm, "post-attention norm"));
  MC_CHECK(put_vector(to.q_norm, from.q_norm, "q norm"));
  MC_CHECK(put_vector(to.k_norm, from.k_norm, "k norm"));
  MC_CHECK(put(to.qkv, from.qkv, "q, k and v", MatrixRole::qkv));
  MC_CHECK(put(to.output, from.output, "output", MatrixRole::output));
  MC_CHECK(put(to.gate_up, from.mlp.gate_up, "gate and up", MatrixRole::gate_up));
  MC_CHECK(put(to.down, from.mlp.down, "down", MatrixRole::down));
  MC_CHECK(put_vector(to.qkv_bias, from.qkv_bias, "q, k and v bias", heads));
  MC_CHECK(put_vector(to.gate_up_bias, from.mlp.gate_up_bias, "gate and up bias", inner));
  if (part_.is_first()) {
    MC_CHECK(put_vector(to.output_bias, from.output_bias, "output bias"));
    MC_CHECK(put_vector(to.down_bias, from.mlp.down_bias, "down bias"));
  }
  return from.experts.routed.empty() ? Result<void>{} : load_experts(device, model, from.experts, to.experts, name);
}

Result<void> DeviceWeights::load_experts(gpu::Device& device, const Model& model, const Experts& from,
                                         gpu::MixtureWeights& to, const std::string& name) {
  const MixtureConfig& c = model.config().mixture;
  const auto inner = inner_rows(c.intermediate, part_), shared = inner_rows(c.shared_intermediate, part_);
  const RowRun columns = inner_columns(c.intermediate, part_);
  std::vector<Source> gate_up, down, router{{&from.router, name + "router", {}}};
  for (size_t i = 0; i < from.routed.size(); ++i) {
    const std::string expert = " of expert " + std::to_string(i);
    gate_up.push_back({&from.routed[i].gate_up, name + "gate and up" + expert, {inner, {}}});
    down.push_back({&from.routed[i].down, name + "down" + expert, {{}, columns}});
  }
  if (from.shared_gate.rows() > 0) router.push_back({&from.shared_gate, name + "gate of the shared expert", {}});
  MC_TRY(router_at, matrices(device, router));
  MC_TRY(gate_up_at, matrices(device, gate_up));
  MC_TRY(down_at, matrices(device, down));
  MC_TRY(shared_gate_up,
         matrix(device, {&from.shared.gate_up, name + "gate and up of the shared expert", {shared, {}}}));
  MC_TRY(shared_down, matrix(device, {&from.shared.down,
                                      name + "down of the shared expert",
                                      {{}, inner_columns(c.shared_intermediate, part_)}}));
  to = {router_at, gate_up_at, down_at, shared_gate_up, shared_down};
  return {};
}

/// Embeddings, final norm and head, as far as the stage has them. The first part alone makes logits.
Result<void> DeviceWeights::load_ends(gpu::Device& device, const Model& model) {
  const ModelConfig& config = model.config();
  MC_TRY(norm, vector(device, model.final_norm(), "final norm"));
  final_norm_ = norm;
  if (part_.is_first() || (embeds(model) && !has_table(model))) {
    MC_TRY(head, matrix(device, {&model.head(), "head", {}}));
    head_ = head;
  }
  if (!embeds(model)) return {};
  embeddings_ = head_;
  if (!has_table(model)) return {};
  MC_TRY(table, take(size_t{config.vocab} * config.hidden * 2, "embeddings"));
  embeddings_ = table;
  if (is_counting_) return {};
  return upload_->table(config.vocab, config.hidden, embeddings_,
                        [&](size_t token, float* out) { model.embed(static_cast<uint32_t>(token), out); });
}

Result<uint64_t> DeviceWeights::dense(gpu::Device& device, const Model& model, const Source& from, MatrixRole role) {
  PlannedMatrix planned{.role = role, .rows = from.matrix->rows(), .columns = from.matrix->columns(), .scales = {}};
  if (from.matrix->is_fp8()) planned.scales = from.matrix->scale_run();
  MC_TRY(scales, kept_scales(device, planned, model.config(), part_.ranks));
  if (!scales) return matrix(device, from);
  const size_t rows = from.row_count(), columns = from.column_count();
  MC_TRY(at, take(rows * columns, from.name));
  MC_TRY(values, take(code_scale_count(*scales, rows, columns) * sizeof(float), from.name + " scales"));
  if (is_counting_) return at;
  MC_CHECK(upload_->codes(*from.matrix, from.cut, at));
  const DeviceCodes codes{values, *scales};
  MC_CHECK(put_scales(device, from, codes));
  codes_[at] = codes;
  return at;
}

/// A scale of a block is that of any of its rows that holds no NaN: the codes bring NaN themselves.
Result<void> DeviceWeights::put_scales(gpu::Device& device, const Source& from, const DeviceCodes& codes) {
  const size_t rows = from.row_count(), columns = from.column_count();
  const bool of_rows = codes.scales == gpu::Fp8Scales::rows;
  const size_t stride = of_rows ? 1 : gpu::fp8_scale_stride(columns), block = of_rows ? 1 : gpu::kFp8Block;
  std::vector<float> values(code_scale_count(codes.scales, rows, columns), std::nanf(""));
  std::vector<size_t> sources;  // by row of the cut
  for (const RowRun& run : from.cut.rows)
    for (size_t i = 0; i < run.count; ++i) sources.push_back(run.first + i);
  for (size_t row = 0; row < rows; ++row)
    for (size_t group = 0; group * gpu::kFp8Block < (of_rows ? 1 : columns); ++group) {
      float& value = values[row / block * stride + group];
      const size_t source = sources.empty() ? row : sources[row];
      if (std::isnan(value))
        value = ops::scale_of(*from.matrix, source, from.cut.columns.first + group * gpu::kFp8Block);
    }
  return device.write(codes.values, std::as_bytes(std::span(values)));
}

Result<uint64_t> DeviceWeights::matrices(gpu::Device& device, std::span<const Source> sources) {
  const size_t columns = sources[0].column_count();
  size_t rows = 0;
  for (const Source& from : sources) {
    if (from.row_count() == 0) continue;
    rows += from.row_count();
    MC_ASSERT_EQ(from.column_count(), columns);
    MC_CHECK(check_served(device, from.name, columns));
  }
  if (rows == 0) return uint64_t{0};
  MC_TRY(at, take(rows * columns * 2, sources[0].name));
  uint64_t to = at;
  for (const Source& from : sources) {
    if (is_counting_ || from.row_count() == 0) continue;
    MC_CHECK(upload_->matrix(*from.matrix, from.cut, to));
    to += from.row_count() * columns * 2;
  }
  return at;
}

Result<uint64_t> DeviceWeights::vector(gpu::Device& device, std::span<const float> from, const std::string& name,
                                       std::span<const RowRun> runs) {
  if (from.empty()) return uint64_t{0};
  std::vector<float> taken;
  for (const RowRun& run : runs) {
    const auto part = from.subspan(run.first, run.count);
    taken.insert(taken.end(), part.begin(), part.end());
    taken.resize(taken.size() + run.padded - run.count);
  }
  if (!runs.empty()) from = taken;
  MC_TRY(at, take(from.size_bytes(), name));
  if (!is_counting_) MC_CHECK(device.write(at, std::as_bytes(from)));
  return at;
}

// ---- random weights ----

Result<DeviceWeights> DeviceWeights::random(const ModelConfig& c, gpu::Device& device) {
  const size_t q = size_t{c.heads} * c.head_dim, kv = size_t{c.kv_heads} * c.head_dim,
               table = aligned(c.vocab * size_t{c.hidden} * 2);
  const size_t layer = aligned((q + 2 * kv) * c.hidden * 2) + aligned(q * c.hidden * 2) +
                       aligned(size_t{2} * c.intermediate * c.hidden * 2) +
                       aligned(size_t{c.intermediate} * c.hidden * 2);
  DeviceWeights out;
  const size_t bytes = c.layers * layer + (c.tied_embeddings ? 1 : 2) * table + aligned(c.hidden * 4);
  MC_TRY(arena, gpu::Arena::open(device, gpu::Place::device, bytes, "random weights"));
  out.arena_ = std::move(arena);
  MC_CHECK(out.place_random(c));
  MC_ASSERT_EQ(out.arena_.used(), bytes);
  MC_CHECK(out.fill_random(device));
  const std::vector<float> ones(c.hidden, 1);
  MC_CHECK(device.write(out.final_norm_, std::as_bytes(std::span(ones))));
  return out;
}

/// Norms of ones are one vector.
Result<void> DeviceWeights::place_random(const ModelConfig& c) {
  const size_t q = size_t{c.heads} * c.head_dim, kv = size_t{c.kv_heads} * c.head_dim;
  const auto put = [this](uint64_t& to, size_t rows, size_t columns, const char* what) -> Result<void> {
    MC_TRY(part, arena_.take(rows * columns * 2, what));
    to = part.address;
    return {};
  };
  layers_.resize(c.layers);
  MC_CHECK(put(head_, c.vocab, c.hidden, "head"));
  embeddings_ = head_;
  if (!c.tied_embeddings) MC_CHECK(put(embeddings_, c.vocab, c.hidden, "embeddings"));
  for (DeviceLayer& layer : layers_) {
    MC_CHECK(put(layer.qkv, q + 2 * kv, c.hidden, "q, k and v"));
    MC_CHECK(put(layer.output, c.hidden, q, "output"));
    MC_CHECK(put(layer.gate_up, size_t{2} * c.intermediate, c.hidden, "gate and up"));
    MC_CHECK(put(layer.down, c.hidden, c.intermediate, "down"));
  }
  MC_CHECK(put(final_norm_, 2, c.hidden, "norms"));
  for (DeviceLayer& layer : layers_) layer.input_norm = layer.post_norm = final_norm_;
  return {};
}

/// Numbers of equal distribution between -0.035 and 0.035, whose deviation is the 0.02 with which Llama was begun. The
/// device repeats them, because 16 GB of them take the host too long.
Result<void> DeviceWeights::fill_random(gpu::Device& device) {
  Rng rng = Rng(0).fork("weights");
  const size_t all = arena_.used();
  std::vector<bf16_t> some(std::min(kRandomWeights, all / 2));
  for (bf16_t& weight : some) weight = f32_to_bf16(0.07f * (static_cast<float>(rng.next() >> 40) * 0x1p-24f - 0.5f));
  const uint64_t begin = arena_.parts().front().address;
  size_t have = some.size() * 2;
  MC_CHECK(device.write(begin, std::as_bytes(std::span(some))));
  MC_TRY(stream, gpu::Stream::make(device));
  for (size_t more; have < all; have += more) {
    more = std::min(have, all - have);
    MC_CHECK(stream.copy_within(begin + have, begin, more));
  }
  return stream.finish();
}

}  // namespace mc::model

#include "model/device_weights.h"

#include "base/assert.h"
#include "base/errors.h"
#include "base/rng.h"

namespace mc::model {
namespace {

constexpr size_t kRowsAtOnce = 256;             // of a matrix, converted and copied together
constexpr size_t kRandomWeights = 8 * 262'139;  // after which they repeat; 8 times a prime, so that rows differ

size_t aligned(size_t bytes) {
  return round_up(bytes, gpu::Arena::kAlignment);
}

size_t matrix_bytes(const ops::PackedMatrix& m) {
  return aligned(m.rows() * m.columns() * 2);
}

size_t expert_bytes(const Experts& experts) {
  size_t gate_up = 0, down = 0;
  for (const Mlp& one : experts.routed) {
    gate_up += one.gate_up.rows() * one.gate_up.columns() * 2;
    down += one.down.rows() * one.down.columns() * 2;
  }
  const size_t router = (experts.router.rows() + experts.shared_gate.rows()) * experts.router.columns() * 2;
  return aligned(gate_up) + aligned(down) + aligned(router) + matrix_bytes(experts.shared.gate_up) +
         matrix_bytes(experts.shared.down);
}

size_t layer_bytes(const Layer& layer) {
  size_t bytes = expert_bytes(layer.experts);
  for (const ops::PackedMatrix* m : {&layer.qkv, &layer.output, &layer.mlp.gate_up, &layer.mlp.down})
    bytes += matrix_bytes(*m);
  for (const std::vector<float>* v :
       {&layer.input_norm, &layer.post_norm, &layer.q_norm, &layer.k_norm, &layer.qkv_bias, &layer.output_bias,
        &layer.mlp.gate_up_bias, &layer.mlp.down_bias})
    bytes += aligned(v->size() * 4);
  return bytes;
}

Result<void> check_served(const gpu::Device& device, const ops::PackedMatrix& from, const std::string& name) {
  if (from.quantised() || from.is_fp8() || from.dtype() != Dtype::bf16)
    return user_error(err::kDeviceUnusable,
                      std::string(device.name()) + ": the weights of " + name +
                          " are not bf16, and a GPU serves no "
                          "other type yet",
                      "--device", "use --dtype bf16 with a bf16 checkpoint, or --device cpu");
  if (from.columns() % 8 != 0)
    return user_error(err::kDeviceUnusable,
                      std::string(device.name()) + ": " + name + " has " + std::to_string(from.columns()) +
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

Result<DeviceWeights> DeviceWeights::load(const Model& model, gpu::Device& device) {
  const ModelConfig& config = model.config();
  if (!model.has_weights()) return random(config, device);
  size_t bytes = aligned(model.final_norm().size() * 4) + matrix_bytes(model.head());
  if (has_table(model)) bytes += aligned(size_t{config.vocab} * config.hidden * 2);
  for (const Layer& layer : model.layers()) bytes += layer_bytes(layer);
  DeviceWeights out;
  MC_TRY(arena, gpu::Arena::open(device, gpu::Place::device, bytes, "weights"));
  out.arena_ = std::move(arena);
  out.layers_.resize(model.layers().size());
  for (uint32_t l = model.held().first; l < model.held().end; ++l)
    MC_CHECK(out.load_layer(device, model.layers()[l], out.layers_[l], "layer " + std::to_string(l)));
  MC_CHECK(out.load_ends(device, model));
  MC_ASSERT_LE(out.arena_.used(), bytes);
  return out;
}

Result<void> DeviceWeights::load_layer(gpu::Device& device, const Layer& from, DeviceLayer& to,
                                       const std::string& name) {
  const auto put = [&](uint64_t& address, const auto& part, const char* what) -> Result<void> {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(part)>, ops::PackedMatrix>) {
      MC_TRY(at, matrix(device, part, name + " " + what));
      address = at;
    } else {
      MC_TRY(at, vector(device, part, name + " " + what));
      address = at;
    }
    return {};
  };
  MC_CHECK(put(to.input_norm, from.input_norm, "input norm"));
  MC_CHECK(put(to.post_norm, from.post_norm, "post-attention norm"));
  MC_CHECK(put(to.q_norm, from.q_norm, "q norm"));
  MC_CHECK(put(to.k_norm, from.k_norm, "k norm"));
  MC_CHECK(put(to.qkv, from.qkv, "q, k and v"));
  MC_CHECK(put(to.output, from.output, "output"));
  MC_CHECK(put(to.gate_up, from.mlp.gate_up, "gate and up"));
  MC_CHECK(put(to.down, from.mlp.down, "down"));
  MC_CHECK(put(to.qkv_bias, from.qkv_bias, "q, k and v bias"));
  MC_CHECK(put(to.output_bias, from.output_bias, "output bias"));
  MC_CHECK(put(to.gate_up_bias, from.mlp.gate_up_bias, "gate and up bias"));
  MC_CHECK(put(to.down_bias, from.mlp.down_bias, "down bias"));
  return from.experts.routed.empty() ? Result<void>{} : load_experts(device, from.experts, to.experts, name);
}

Result<void> DeviceWeights::load_experts(gpu::Device& device, const Experts& from, gpu::MixtureWeights& to,
                                         const std::string& name) {
  std::vector<Source> gate_up, down, router{{&from.router, name + " router"}};
  for (size_t i = 0; i < from.routed.size(); ++i) {
    const std::string expert = " of expert " + std::to_string(i);
    gate_up.push_back({&from.routed[i].gate_up, name + " gate and up" + expert});
    down.push_back({&from.routed[i].down, name + " down" + expert});
  }
  if (from.shared_gate.rows() > 0) router.push_back({&from.shared_gate, name + " gate of the shared expert"});
  MC_TRY(router_at, matrices(device, router));
  MC_TRY(gate_up_at, matrices(device, gate_up));
  MC_TRY(down_at, matrices(device, down));
  MC_TRY(shared_gate_up, matrix(device, from.shared.gate_up, name + " gate and up of the shared expert"));
  MC_TRY(shared_down, matrix(device, from.shared.down, name + " down of the shared expert"));
  to = {router_at, gate_up_at, down_at, shared_gate_up, shared_down};
  return {};
}

/// Embeddings, final norm and head, as far as the stage has them.
Result<void> DeviceWeights::load_ends(gpu::Device& device, const Model& model) {
  const ModelConfig& config = model.config();
  MC_TRY(norm, vector(device, model.final_norm(), "final norm"));
  final_norm_ = norm;
  MC_TRY(head, matrix(device, model.head(), "head"));
  head_ = head;
  if (!embeds(model)) return {};
  embeddings_ = head_;
  if (!has_table(model)) return {};
  MC_TRY(part, arena_.take(size_t{config.vocab} * config.hidden * 2, "embeddings"));
  embeddings_ = part.address;
  std::vector<float> row(config.hidden);
  std::vector<bf16_t> rows;
  for (uint32_t first = 0; first < config.vocab; first += kRowsAtOnce) {
    rows.clear();
    const uint32_t end = std::min<uint32_t>(config.vocab, first + kRowsAtOnce);
    for (uint32_t token = first; token < end; ++token) {
      model.embed(token, row.data());
      for (const float value : row) rows.push_back(f32_to_bf16(value));
    }
    MC_CHECK(device.write(embeddings_ + size_t{first} * config.hidden * 2, std::as_bytes(std::span(rows))));
  }
  return {};
}

Result<uint64_t> DeviceWeights::matrix(gpu::Device& device, const ops::PackedMatrix& from, const std::string& name) {
  const Source source{&from, name};
  return matrices(device, {&source, 1});
}

Result<uint64_t> DeviceWeights::matrices(gpu::Device& device, std::span<const Source> sources) {
  const size_t columns = sources[0].matrix->columns();
  size_t rows = 0;
  for (const auto& [from, name] : sources) {
    rows += from->rows();
    MC_ASSERT_EQ(from->columns(), columns);
    if (from->rows() > 0) MC_CHECK(check_served(device, *from, name));
  }
  if (rows == 0) return uint64_t{0};
  MC_TRY(part, arena_.take(rows * columns * 2, sources[0].name));
  uint64_t to = part.address;
  for (const auto& [from, name] : sources) {
    MC_CHECK(copy_rows(device, *from, to));
    to += from->rows() * columns * 2;
  }
  return part.address;
}

Result<void> DeviceWeights::copy_rows(gpu::Device& device, const ops::PackedMatrix& from, uint64_t to) {
  std::vector<float> row(from.columns());
  std::vector<bf16_t> rows;
  for (size_t first = 0; first < from.rows(); first += kRowsAtOnce) {
    rows.clear();
    for (size_t r = first; r < std::min(from.rows(), first + kRowsAtOnce); ++r) {
      from.row(r, row.data());
      for (const float value : row) rows.push_back(f32_to_bf16(value));
    }
    MC_CHECK(device.write(to + first * from.columns() * 2, std::as_bytes(std::span(rows))));
  }
  return {};
}

Result<uint64_t> DeviceWeights::vector(gpu::Device& device, std::span<const float> from, const std::string& name) {
  if (from.empty()) return uint64_t{0};
  MC_TRY(part, arena_.take(from.size_bytes(), name));
  MC_CHECK(device.write(part.address, std::as_bytes(from)));
  return part.address;
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
  const auto take = [this](uint64_t& to, size_t rows, size_t columns, const char* what) -> Result<void> {
    MC_TRY(part, arena_.take(rows * columns * 2, what));
    to = part.address;
    return {};
  };
  layers_.resize(c.layers);
  MC_CHECK(take(head_, c.vocab, c.hidden, "head"));
  embeddings_ = head_;
  if (!c.tied_embeddings) MC_CHECK(take(embeddings_, c.vocab, c.hidden, "embeddings"));
  for (DeviceLayer& layer : layers_) {
    MC_CHECK(take(layer.qkv, q + 2 * kv, c.hidden, "q, k and v"));
    MC_CHECK(take(layer.output, c.hidden, q, "output"));
    MC_CHECK(take(layer.gate_up, size_t{2} * c.intermediate, c.hidden, "gate and up"));
    MC_CHECK(take(layer.down, c.hidden, c.intermediate, "down"));
  }
  MC_CHECK(take(final_norm_, 2, c.hidden, "norms"));
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

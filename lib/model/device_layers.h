// The arithmetic of a model's layers on a device: the weights, the activations of the pass under way, and the kernels
// before and behind attention. Rows are those of a pass; which sequence a row belongs to does not matter here.
//
//   MC_CHECK(layers.prepare());
//   MC_CHECK(layers.embed(tokens, fed, rows));              // x
//   for each layer:
//     MC_CHECK(layers.project(layer, rows));                // x -> qkv
//     MC_CHECK(layers.rotate(layer, pool, tables, rows));   // qkv -> q, and K and V into pages
//     ... attention: q -> attended ...
//     MC_CHECK(layers.finish(layer, behind));               // or add_attention() and add_mlp()
//   MC_CHECK(layers.make_logits(layers.at().x, rows));
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "gpu/arena.h"
#include "gpu/gpu.h"
#include "gpu/kernels/layer.h"
#include "gpu/mixture.h"
#include "model/device_weights.h"
#include "model/model.h"
#include "model/pass.h"
#include "model/tensor_part.h"

namespace mc::model {

class DeviceLayers {
 public:
  /// Layers of a pass with chunks whose sums are on the device: those of one layer are stored while the next ones are
  /// made.
  static constexpr size_t kLayersAtOnce = 2;

  /// Addresses of scratch memory, each part [rows, ...].
  struct Parts {
    uint64_t inputs = 0;                                      // DeviceInputs
    uint64_t sums = 0;                                        // uint32 [places of steps, layers, rows], or
                                                              // [kLayersAtOnce, rows of a pass with chunks]
    uint64_t x = 0, qkv = 0, gate_up = 0, logits = 0;         // f32
    uint64_t normed = 0, q = 0, attended = 0, activated = 0;  // bf16
    uint64_t kept = 0;                // [places of steps, layers, rows of a step] rows of kept_row_bytes()
    uint64_t last_x = 0, last_q = 0;  // f32, bf16: rows of gather()
  };
  /// The tables of a pass that rotate() reads; addresses on the device.
  struct RotateTables {
    uint64_t places = 0, cosine = 0, sine = 0;
    uint64_t kept = 0;  // of the layer
    size_t kept_rows = 0;
    uint64_t coded = 0;  // gpu::PageRows, when pages hold codes
    size_t coded_pages = 0;
  };

  /// Rows behind attention.
  struct Rows {
    uint64_t attended = 0;  // bf16 [count, heads head_dim]: what attention gave
    uint64_t x = 0;         // f32 [count, hidden]: the residual stream
    size_t count = 0;
  };

  /// Most rows of a pass, and most rows whose logits are made at a time.
  static size_t rows_most(const RunnerOptions& options);
  static size_t logit_rows_most(const RunnerOptions& options);
  /// Device memory beside the weights. `config`: of the part.
  static size_t bytes(const ModelConfig& config, const RunnerOptions& options);

  /// Memory of products of fp8 beside that, where the device has fp8 weights.
  static size_t fp8_bytes(const ModelConfig& config, const RunnerOptions& options);

  /// `model` and `device` must outlive it.
  DeviceLayers(const Model& model, gpu::Device& device, const RunnerOptions& options, const TensorPart& part)
      : model_(model), device_(device), options_(options), part_(part), config_(config_of(model.config(), part)) {}
  /// Loads the weights with the host's threads, and allocates. Errors: those of DeviceWeights::load(), MC7005.
  Result<void> prepare(Parallel& parallel);

  /// The heads and widths that this device computes.
  const ModelConfig& config() const { return config_; }
  const Parts& at() const { return at_; }
  size_t hidden_bytes() const { return size_t{config().hidden} * 4; }
  size_t q_bytes() const { return q_width() * 2; }
  uint64_t x(size_t row) const { return at_.x + row * hidden_bytes(); }

  /// `tokens` and `fed` as gpu::EmbedArgs.
  Result<void> embed(uint64_t tokens, uint64_t fed, size_t rows);
  Result<void> project(uint32_t layer, size_t rows);
  Result<void> rotate(uint32_t layer, const gpu::KvPool& pool, const RotateTables& tables, size_t rows);
  /// The layer behind attention: the output projection and the MLP, which are added to x.
  Result<void> finish(uint32_t layer, const Rows& rows);
  // Its two halves. Behind each one the x of all parts are to be summed: the first part adds to x, and in the others x
  // becomes what they add.
  Result<void> add_attention(uint32_t layer, const Rows& rows);
  Result<void> add_mlp(uint32_t layer, const Rows& rows);
  /// Copies x and q of some rows side by side, to last_x and last_q. `rows`: int32 [count] on the device.
  Result<void> gather(uint64_t rows, size_t count);
  /// at().logits = head(norm(x))
  Result<void> make_logits(uint64_t x, size_t rows);

 private:
  struct PartSize {
    uint64_t Parts::*member;
    size_t bytes;
  };
  static std::vector<PartSize> part_sizes(const ModelConfig& config, const RunnerOptions& options);
  size_t q_width() const { return size_t{config().heads} * config().head_dim; }
  Result<void> multiply_codes(const gpu::Fp8Product& product, uint64_t bias);
  Result<void> code_rows(const gpu::KvPool& pool, const RotateTables& tables);
  Result<void> norm(uint64_t x, uint64_t weight, uint64_t out, size_t rows);
  Result<void> multiply(uint64_t x, uint64_t weights, uint64_t bias, uint64_t y, size_t rows, size_t columns,
                        size_t inner, bool adds);
  Result<void> gather_words(uint64_t from, uint64_t to, uint64_t rows, size_t count, size_t bytes);

  const Model& model_;
  gpu::Device& device_;
  RunnerOptions options_;
  TensorPart part_;
  ModelConfig config_;
  std::optional<gpu::Fp8Matmul> fp8_;  // of weights that are codes
  DeviceWeights weights_;
  gpu::Arena scratch_;
  Parts at_;
  std::optional<gpu::Mixture> mixture_;
};

}  // namespace mc::model

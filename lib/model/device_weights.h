// A model's weights in the memory of a device: matrices as bf16 [rows, columns], vectors as f32. One arena holds them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu/arena.h"
#include "gpu/mixture.h"
#include "model/model.h"

namespace mc::model {

/// Addresses on the device; 0: the model has no such part.
struct DeviceLayer {
  uint64_t input_norm = 0, post_norm = 0, q_norm = 0, k_norm = 0;  // f32
  uint64_t qkv = 0, output = 0, gate_up = 0, down = 0;             // bf16
  uint64_t qkv_bias = 0, output_bias = 0, gate_up_bias = 0, down_bias = 0;
  gpu::MixtureWeights experts;  // in the place of gate_up and down
};

class DeviceWeights {
 public:
  /// Copies all loaded layers. MC7005 when they do not fit; MC7002 names a matrix that is not bf16.
  /// Random weights when the model has none.
  static Result<DeviceWeights> load(const Model& model, gpu::Device& device);

  const DeviceLayer& layer(uint32_t index) const { return layers_[index]; }
  uint64_t embeddings() const { return embeddings_; }  // bf16 [vocab, hidden]
  uint64_t final_norm() const { return final_norm_; }
  uint64_t head() const { return head_; }
  size_t bytes() const { return arena_.bytes(); }

 private:
  /// A matrix and its name in messages.
  struct Source {
    const ops::PackedMatrix* matrix;
    std::string name;
  };
  /// Stacks matrices of equal columns; 0: they have no rows.
  Result<uint64_t> matrices(gpu::Device& device, std::span<const Source> sources);
  Result<uint64_t> matrix(gpu::Device& device, const ops::PackedMatrix& from, const std::string& name);
  Result<void> copy_rows(gpu::Device& device, const ops::PackedMatrix& from, uint64_t to);
  Result<void> load_experts(gpu::Device& device, const Experts& from, gpu::MixtureWeights& to, const std::string& name);
  Result<uint64_t> vector(gpu::Device& device, std::span<const float> from, const std::string& name);
  Result<void> load_layer(gpu::Device& device, const Layer& from, DeviceLayer& to, const std::string& name);
  Result<void> load_ends(gpu::Device& device, const Model& model);
  static Result<DeviceWeights> random(const ModelConfig& config, gpu::Device& device);
  Result<void> place_random(const ModelConfig& config);
  Result<void> fill_random(gpu::Device& device);

  gpu::Arena arena_;
  std::vector<DeviceLayer> layers_;
  uint64_t embeddings_ = 0, final_norm_ = 0, head_ = 0;
};

}  // namespace mc::model

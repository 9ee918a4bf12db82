// A model's weights, or the part of them that a device computes with (tensor_part.h), in the memory of the device:
// matrices as bf16 [rows, columns] or as codes of fp8 (device_forms.h), vectors as f32. One arena holds them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/arena.h"
#include "gpu/fp8_product.h"
#include "gpu/mixture.h"
#include "model/device_upload.h"
#include "model/model.h"
#include "model/tensor_part.h"

namespace mc::model {

/// Addresses on the device; 0: the model has no such part.
struct DeviceLayer {
  uint64_t input_norm = 0, post_norm = 0, q_norm = 0, k_norm = 0;  // f32
  uint64_t qkv = 0, output = 0, gate_up = 0, down = 0;             // bf16, or codes
  uint64_t qkv_bias = 0, output_bias = 0, gate_up_bias = 0, down_bias = 0;
  gpu::MixtureWeights experts;  // in the place of gate_up and down
};

/// The scales of a matrix of codes.
struct DeviceCodes {
  uint64_t values = 0;
  gpu::Fp8Scales scales = gpu::Fp8Scales::rows;
};

class DeviceWeights {
 public:
  /// Copies all loaded layers, with the host's threads. MC7005 when they do not fit; MC7002 names a matrix that kernels
  /// do not multiply. Random weights when the model has none.
  static Result<DeviceWeights> load(const Model& model, gpu::Device& device, Parallel& parallel,
                                    const TensorPart& part = {});

  const DeviceLayer& layer(uint32_t index) const { return layers_[index]; }
  uint64_t embeddings() const { return embeddings_; }  // bf16 [vocab, hidden]
  uint64_t final_norm() const { return final_norm_; }
  uint64_t head() const { return head_; }  // 0: the part has none
  /// Null: the matrix at this address is bf16.
  const DeviceCodes* codes(uint64_t matrix) const {
    const auto found = codes_.find(matrix);
    return found != codes_.end() ? &found->second : nullptr;
  }
  bool has_codes() const { return !codes_.empty(); }
  size_t bytes() const { return arena_.bytes(); }

 private:
  /// A matrix with its name in messages, and the cut of it that the device has.
  struct Source {
    const ops::PackedMatrix* matrix;
    std::string name;
    MatrixCut cut;
    size_t row_count() const { return cut.row_count(matrix->rows()); }
    size_t column_count() const { return cut.column_count(matrix->columns()); }
  };
  /// A matrix of a dense layer.
  Result<uint64_t> dense(gpu::Device& device, const Model& model, const Source& from, MatrixRole role);
  Result<void> put_scales(gpu::Device& device, const Source& from, const DeviceCodes& codes);
  /// Copies everything, or counts its bytes as long as there is no arena.
  Result<void> load_all(gpu::Device& device, const Model& model);
  Result<uint64_t> take(size_t bytes, const std::string& name);
  /// Stacks matrices of equal columns; 0: they have no rows.
  Result<uint64_t> matrices(gpu::Device& device, std::span<const Source> sources);
  Result<uint64_t> matrix(gpu::Device& device, const Source& from) { return matrices(device, {&from, 1}); }
  Result<void> load_experts(gpu::Device& device, const Model& model, const Experts& from, gpu::MixtureWeights& to,
                            const std::string& name);
  /// `runs`: the elements that are taken; none: all.
  Result<uint64_t> vector(gpu::Device& device, std::span<const float> from, const std::string& name,
                          std::span<const RowRun> runs = {});
  Result<void> load_layer(gpu::Device& device, const Model& model, uint32_t index);
  Result<void> load_ends(gpu::Device& device, const Model& model);
  static Result<DeviceWeights> random(const ModelConfig& config, gpu::Device& device);
  Result<void> place_random(const ModelConfig& config);
  Result<void> fill_random(gpu::Device& device);

  TensorPart part_;
  bool is_counting_ = true;
  size_t counted_ = 0;
  DeviceUpload* upload_ = nullptr;  // while everything is copied
  std::map<uint64_t, DeviceCodes> codes_;
  gpu::Arena arena_;
  std::vector<DeviceLayer> layers_;
  uint64_t embeddings_ = 0, final_norm_ = 0, head_ = 0;
};

}  // namespace mc::model

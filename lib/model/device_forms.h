// The types that the matrices of a model have on a GPU, and the memory that they take there: planned from the headers
// of its files, before anything is loaded.
//
//   on the host                        on the device
//   bf16                               bf16
//   fp8, of attention or a dense MLP   fp8, where cuBLASLt multiplies its scales (gpu/fp8_product.h); else bf16
//   fp8, of experts or the head        bf16
//   quantised blocks, int8, int4       bf16
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "base/result.h"
#include "gpu/fp8_product.h"
#include "model/model.h"
#include "model/tensor_part.h"

namespace mc::gpu {
class DeviceGroup;
}

namespace mc::model {

/// The scales of an fp8 matrix as products take them on each of `ranks` devices; nullopt: no product takes the cut of
/// some rank, and all ranks widen the matrix. A row has one scale, or blocks of 128 x 128 begin at multiples of 128 in
/// the cuts too.
std::optional<gpu::Fp8Scales> code_scales(const PlannedMatrix& matrix, const ModelConfig& config, uint32_t ranks);
/// f32 values of such scales: one for each row, or [rows / 128][fp8_scale_stride(columns)], rounded up.
size_t code_scale_count(gpu::Fp8Scales scales, size_t rows, size_t columns);
/// The scales with which the device, one of `ranks`, keeps a matrix in fp8; nullopt: it widens the matrix. The plan,
/// the load and the namespace of KV ask this one function, which asks cuBLASLt.
Result<std::optional<gpu::Fp8Scales>> kept_scales(gpu::Device& device, const PlannedMatrix& matrix,
                                                  const ModelConfig& config, uint32_t ranks);
/// The cut of a matrix of a dense layer that a device of several has.
MatrixCut cut_of(MatrixRole role, const ModelConfig& config, const TensorPart& part);

struct DeviceForms {
  size_t matrices = 0;
  size_t widened = 0, widened_bytes = 0, widened_stored = 0;  // of another type; bytes on the device and on the host
  size_t coded = 0, coded_bytes = 0;                          // that stay fp8
  size_t bytes = 0;  // of all weights on one device, but for the alignment of its parts
  std::string why;   // some fp8 matrices are widened; empty: none is
  bool operator==(const DeviceForms&) const = default;

  /// "weights widened to bf16: 168 of 169 matrices, 7.2 GiB from 4.1 GiB"; empty: none is widened.
  std::string widened_text() const;
  /// "weights kept in fp8: 112 of 114 matrices, 6.5 GiB"; empty: none is.
  std::string coded_text() const;
};
/// `part`: of several devices like this one, which together have these bytes. Errors: those of the device.
Result<DeviceForms> device_forms(const ModelPlan& plan, gpu::Device& device, const TensorPart& part);

/// Names the matrices of all layers that the devices keep in fp8, whose inputs they round: "8 matrices, 5d41402a". The
/// text does not depend on the stage of a pipeline. Empty: no matrix is kept.
Result<std::string> rounded_text(const Model& model, gpu::DeviceGroup& devices);

}  // namespace mc::model

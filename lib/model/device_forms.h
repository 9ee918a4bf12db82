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

#include "gpu/fp8_product.h"
#include "model/model.h"
#include "model/tensor_part.h"

namespace mc::model {

/// The scales of a cut of an fp8 matrix as products take them; nullopt: no product takes the cut, and it is widened.
/// A row has one scale, or blocks of 128 x 128 begin at multiples of 128 in the cut too.
std::optional<gpu::Fp8Scales> code_scales(const ops::ScaleRun& run, size_t rows, size_t columns, const MatrixCut& cut);
/// f32 values of such scales: one for each row, or [rows / 128][fp8_scale_stride(columns)], rounded up.
size_t code_scale_count(gpu::Fp8Scales scales, size_t rows, size_t columns);
/// Whether the device multiplies them by cuBLASLt.
bool multiplies_codes(const gpu::Device& device, gpu::Fp8Scales scales);

struct DeviceForms {
  size_t matrices = 0;
  size_t widened = 0, widened_bytes = 0, widened_stored = 0;  // of another type; bytes on the device and on the host
  size_t coded = 0, coded_bytes = 0;                          // that stay fp8
  size_t bytes = 0;  // of all weights on one device, but for the alignment of its parts
  std::string why;   // some fp8 matrices are widened; empty: none is

  /// "weights widened to bf16: 168 of 169 matrices, 7.2 GiB from 4.1 GiB"; empty: none is widened.
  std::string widened_text() const;
  /// "weights kept in fp8: 112 of 114 matrices, 6.5 GiB"; empty: none is.
  std::string coded_text() const;
};
/// `part`: of several devices like this one, which together have these bytes.
DeviceForms device_forms(const ModelPlan& plan, const gpu::Device& device, const TensorPart& part);

/// Whether the device multiplies some fp8 weights of the model as they are, with inputs in fp8.
bool keeps_codes(const Model& model, const gpu::Device& device, const TensorPart& part);

}  // namespace mc::model

#include "model/device_forms.h"

#include <algorithm>

#include "base/assert.h"
#include "base/units.h"

namespace mc::model {
namespace {

constexpr size_t kScaleRows = gpu::kFp8Block;        // of a block of scales
constexpr size_t kCodeInner = 16, kCodeColumns = 4;  // multiples that products of fp8 need

/// The cut of a matrix of a dense layer that a device of several has.
MatrixCut cut_of(MatrixRole role, const ModelConfig& config, const TensorPart& part) {
  switch (role) {
    case MatrixRole::qkv: return {attention_rows(config, part), {}};
    case MatrixRole::output: return {{}, attention_columns(config, part)};
    case MatrixRole::gate_up: return {inner_rows(config.intermediate, part), {}};
    case MatrixRole::down: return {{}, inner_columns(config.intermediate, part)};
    case MatrixRole::other: break;
  }
  return {};
}

/// Why a device widens an fp8 matrix; empty: it keeps the codes.
std::string obstacle(const PlannedMatrix& matrix, std::optional<gpu::Fp8Scales> scales, const gpu::Device& device) {
  if (matrix.role == MatrixRole::other) return "experts and heads have no products of fp8";
  if (!scales) return "scales are neither of rows nor of blocks of 128 x 128 that begin with a matrix";
  if (device.matmul() == nullptr) return "products of fp8 need cuBLASLt";
  if (!multiplies_codes(device, *scales))
    return "compute capability " + std::to_string(device.capability() / 10) + "." +
           std::to_string(device.capability() % 10) + " has no products of fp8 with such scales";
  return {};
}

}  // namespace

std::optional<gpu::Fp8Scales> code_scales(const ops::ScaleRun& run, size_t rows, size_t columns, const MatrixCut& cut) {
  const RowRun all_rows{0, rows, rows};
  const std::span<const RowRun> runs = cut.rows.empty() ? std::span(&all_rows, 1) : std::span(cut.rows);
  const RowRun taken = cut.columns.padded > 0 ? cut.columns : RowRun{0, columns, columns};
  if (taken.padded != taken.count || taken.count % kCodeInner != 0 || cut.row_count(rows) % kCodeColumns != 0)
    return std::nullopt;
  for (const RowRun& one : runs)
    if (one.padded != one.count) return std::nullopt;
  if (run.columns >= columns) return gpu::Fp8Scales::rows;
  if (run.columns != kScaleRows || run.rows != kScaleRows || taken.first % kScaleRows != 0) return std::nullopt;
  for (const RowRun& one : runs)
    if (one.first % kScaleRows != 0 || (&one != &runs.back() && one.count % kScaleRows != 0)) return std::nullopt;
  return gpu::Fp8Scales::blocks;
}

size_t code_scale_count(gpu::Fp8Scales scales, size_t rows, size_t columns) {
  MC_ASSERT(scales != gpu::Fp8Scales::matrix);
  return scales == gpu::Fp8Scales::rows ? rows : (rows + kScaleRows - 1) / kScaleRows * gpu::fp8_scale_stride(columns);
}

bool multiplies_codes(const gpu::Device& device, gpu::Fp8Scales scales) {
  return device.matmul() != nullptr && gpu::multiplies_fp8(device.capability(), scales);
}

std::string DeviceForms::widened_text() const {
  if (widened == 0) return {};
  return "weights widened to bf16: " + std::to_string(widened) + " of " + std::to_string(matrices) + " matrices, " +
         human_bytes(widened_bytes) + " from " + human_bytes(widened_stored);
}

std::string DeviceForms::coded_text() const {
  if (coded == 0) return {};
  return "weights kept in fp8: " + std::to_string(coded) + " of " + std::to_string(matrices) + " matrices, " +
         human_bytes(coded_bytes);
}

DeviceForms device_forms(const ModelPlan& plan, const gpu::Device& device, const TensorPart& part) {
  DeviceForms out{.matrices = plan.matrices.size(), .bytes = plan.weight_bytes, .why = {}};
  for (const PlannedMatrix& matrix : plan.matrices) {
    const size_t weights = matrix.rows * matrix.columns;
    std::optional<gpu::Fp8Scales> scales;
    std::string why;
    if (matrix.scales) {
      scales = code_scales(*matrix.scales, matrix.rows, matrix.columns, cut_of(matrix.role, plan.config, part));
      why = obstacle(matrix, scales, device);
    }
    const bool is_coded = matrix.scales && why.empty();
    const size_t bytes = is_coded ? weights + code_scale_count(*scales, matrix.rows, matrix.columns) * sizeof(float)
                                  : weights * dtype_bytes(Dtype::bf16);
    out.bytes = out.bytes - matrix.bytes + bytes;
    if (matrix.is_full) continue;
    if (is_coded) {
      ++out.coded;
      out.coded_bytes += bytes;
      continue;
    }
    ++out.widened;
    out.widened_bytes += bytes;
    out.widened_stored += matrix.bytes;
    if (!why.empty() && out.why.find(why) == std::string::npos) out.why += (out.why.empty() ? "" : "; ") + why;
  }
  return out;
}

bool keeps_codes(const Model& model, const gpu::Device& device, const TensorPart& part) {
  for (const Layer& layer : model.layers())
    for (const auto& [role, matrix] :
         {std::pair{MatrixRole::qkv, &layer.qkv}, std::pair{MatrixRole::output, &layer.output},
          std::pair{MatrixRole::gate_up, &layer.mlp.gate_up}, std::pair{MatrixRole::down, &layer.mlp.down}}) {
      if (!matrix->is_fp8()) continue;
      const MatrixCut cut = cut_of(role, model.config(), part);
      const auto scales = code_scales(matrix->scale_run(), matrix->rows(), matrix->columns(), cut);
      if (scales && multiplies_codes(device, *scales)) return true;
    }
  return false;
}

}  // namespace mc::model

#include "model/device_forms.h"

#include <algorithm>

#include "base/assert.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/units.h"
#include "gpu/device_group.h"

namespace mc::model {
namespace {

constexpr size_t kScaleRows = gpu::kFp8Block;        // of a block of scales
constexpr size_t kCodeInner = 16, kCodeColumns = 4;  // multiples that products of fp8 need

std::optional<gpu::Fp8Scales> scales_of_cut(const PlannedMatrix& matrix, const MatrixCut& cut) {
  const RowRun all_rows{0, matrix.rows, matrix.rows};
  const std::span<const RowRun> runs = cut.rows.empty() ? std::span(&all_rows, 1) : std::span(cut.rows);
  const RowRun taken = cut.columns.padded > 0 ? cut.columns : RowRun{0, matrix.columns, matrix.columns};
  if (taken.padded != taken.count || taken.count % kCodeInner != 0 || cut.row_count(matrix.rows) % kCodeColumns != 0)
    return std::nullopt;
  for (const RowRun& one : runs)
    if (one.padded != one.count) return std::nullopt;
  if (matrix.scales->columns >= matrix.columns) return gpu::Fp8Scales::rows;
  if (matrix.scales->columns != kScaleRows || matrix.scales->rows != kScaleRows || taken.first % kScaleRows != 0)
    return std::nullopt;
  for (const RowRun& one : runs)
    if (one.first % kScaleRows != 0 || (&one != &runs.back() && one.count % kScaleRows != 0)) return std::nullopt;
  return gpu::Fp8Scales::blocks;
}

/// Why a device widens an fp8 matrix that it does not keep.
std::string obstacle(const PlannedMatrix& matrix, std::optional<gpu::Fp8Scales> scales, const gpu::Device& device) {
  if (matrix.role == MatrixRole::other) return "experts and heads have no products of fp8";
  if (!scales) return "scales are neither of rows nor of blocks of 128 x 128 that begin with a matrix";
  if (device.matmul() == nullptr) return "products of fp8 need cuBLASLt";
  if (gpu::multiplies_fp8(device.capability(), *scales)) return "cuBLASLt refuses products of fp8 of such shapes";
  return "compute capability " + std::to_string(device.capability() / 10) + "." +
         std::to_string(device.capability() % 10) + " has no products of fp8 with such scales";
}

}  // namespace

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

std::optional<gpu::Fp8Scales> code_scales(const PlannedMatrix& matrix, const ModelConfig& config, uint32_t ranks) {
  if (matrix.role == MatrixRole::other || !matrix.scales) return std::nullopt;
  std::optional<gpu::Fp8Scales> out;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    out = scales_of_cut(matrix, cut_of(matrix.role, config, {rank, ranks}));
    if (!out) break;
  }
  return out;
}

Result<std::optional<gpu::Fp8Scales>> kept_scales(gpu::Device& device, const PlannedMatrix& matrix,
                                                  const ModelConfig& config, uint32_t ranks) {
  const auto scales = code_scales(matrix, config, ranks);
  if (!scales) return scales;
  const MatrixCut cut = cut_of(matrix.role, config, {0, ranks});
  const bool adds = matrix.role == MatrixRole::output || matrix.role == MatrixRole::down;
  MC_TRY(taken, gpu::takes_fp8(device, *scales, cut.row_count(matrix.rows), cut.column_count(matrix.columns), adds));
  return taken ? scales : std::nullopt;
}

size_t code_scale_count(gpu::Fp8Scales scales, size_t rows, size_t columns) {
  MC_ASSERT(scales != gpu::Fp8Scales::matrix);
  return scales == gpu::Fp8Scales::rows ? rows : (rows + kScaleRows - 1) / kScaleRows * gpu::fp8_scale_stride(columns);
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

Result<DeviceForms> device_forms(const ModelPlan& plan, gpu::Device& device, const TensorPart& part) {
  DeviceForms out{.matrices = plan.matrices.size(), .bytes = plan.weight_bytes, .why = {}};
  for (const PlannedMatrix& matrix : plan.matrices) {
    const size_t weights = matrix.rows * matrix.columns;
    MC_TRY(kept, kept_scales(device, matrix, plan.config, part.ranks));
    const size_t bytes = kept ? weights + code_scale_count(*kept, matrix.rows, matrix.columns) * sizeof(float)
                              : weights * dtype_bytes(Dtype::bf16);
    out.bytes = out.bytes - matrix.bytes + bytes;
    if (matrix.is_full) continue;
    if (kept) {
      ++out.coded;
      out.coded_bytes += bytes;
      continue;
    }
    ++out.widened;
    out.widened_bytes += bytes;
    out.widened_stored += matrix.bytes;
    if (!matrix.scales) continue;
    const std::string why = obstacle(matrix, code_scales(matrix, plan.config, part.ranks), device);
    if (out.why.find(why) == std::string::npos) out.why += (out.why.empty() ? "" : "; ") + why;
  }
  return out;
}

/// Devices of one kind keep the same matrices, unless one of them lacks memory for the workspace of cuBLASLt.
Result<std::string> rounded_text(const Model& model, gpu::DeviceGroup& devices) {
  size_t count = 0;
  std::string names;
  const auto ranks = static_cast<uint32_t>(devices.size());
  for (const PlannedMatrix& matrix : model.coded()) {
    uint32_t keepers = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      MC_TRY(kept, kept_scales(devices.device(rank), matrix, model.config(), ranks));
      keepers += kept ? 1 : 0;
    }
    if (keepers == 0) continue;
    ++count;
    names += std::to_string(matrix.layer) + "." + std::to_string(static_cast<int>(matrix.role)) +
             (keepers == ranks ? " " : " in part ");
  }
  if (count == 0) return std::string();
  return std::to_string(count) + " matrices, " + Id128{Sha256().update(names).finish128()}.short_hex();
}

}  // namespace mc::model

// From tensors in files to the forms the forward pass uses: matrices packed in the compute type or in
// int8, vectors widened to f32. fp8 tensors are widened with their scales, which lie beside them:
//   X.weight               F8_E4M3 [rows, columns]
//   X.weight_scale_inv     one for each block of rows and columns (the config's weight_block_size), or
//   X.weight_scale         one for all, or one for each row
// A file's pages are given back to the system as soon as they have been read, so that a model never stands
// in memory twice.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "mem/mem.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "ops/matmul.h"

namespace mc {
class Parallel;
}

namespace mc::model {

/// One tensor of a stacked matrix: `prefix + name + ".weight"`.
struct WeightPart {
  const char* name;
  uint64_t rows;
};

/// Of a matrix: as --weight-dtype says, or never quantised (a router, whose choices small errors turn).
enum class Precision : uint8_t { as_asked, full };

class WeightLoader {
 public:
  /// All arguments but the types outlive the loader.
  WeightLoader(const WeightFiles& files, const ModelConfig& config, Dtype dtype, bool int8, Parallel& parallel)
      : files_(files), config_(config), dtype_(dtype), int8_(int8), parallel_(parallel) {}

  Result<std::vector<float>> vector(const std::string& name, uint64_t size) const;
  Result<ops::PackedMatrix> matrix(const std::string& prefix, std::span<const WeightPart> parts, uint64_t columns,
                                   Precision precision = Precision::as_asked) const;
  /// Empty unless `present`.
  Result<std::vector<float>> bias(const std::string& prefix, std::span<const WeightPart> parts, bool present) const;
  /// [rows, columns] in the compute type, row-major.
  Result<mem::HostBuffer> table(const std::string& name, uint64_t rows, uint64_t columns) const;

 private:
  struct Source {
    ops::WeightRows rows;
    const Tensor* tensor;
    std::vector<float> scales;
  };
  Result<Source> source(const std::string& name, uint64_t rows, uint64_t columns) const;
  Result<void> read_scales(const std::string& name, uint64_t rows, uint64_t columns, Source& out) const;

  const WeightFiles& files_;
  const ModelConfig& config_;
  Dtype dtype_;
  bool int8_;
  Parallel& parallel_;
};

/// Whether a tensor holds scales of another one (or of activations, which are not quantised here).
bool is_scale(std::string_view name);

}  // namespace mc::model

// Turns tensors in files into the forms that the forward pass uses: matrices packed in the compute type, as whole
// numbers of 8 or 4 bits or as their fp8 codes, and vectors widened to f32. Scales of fp8 tensors are tensors of their
// own:
//   X.weight               F8_E4M3 [rows, columns]
//   X.weight_scale_inv     one for each block of rows and columns (the config's weight_block_size), or
//   X.weight_scale         one for all, or one for each row
// A file's pages are returned to the system as soon as they have been read, so that a model is never in memory twice.
// Matrices in Q8_0 stay in the mapped file, whose layout the kernels multiply too.
#pragma once

#include <cstdint>
#include <optional>
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

/// The values of --weight-dtype for matrices: fp8 or quantised blocks where a file has them and the compute type
/// elsewhere, the compute type everywhere, or whole numbers of 8 or 4 bits.
enum class WeightForm : uint8_t { as_stored, full, int8, int4 };
/// The form of the whole numbers; nullopt for as_stored and full.
std::optional<ops::QuantForm> quant_form_of(WeightForm form);

/// The type of a matrix: that of --weight-dtype, or the compute type (for a router, whose choices change with small
/// errors).
enum class Precision : uint8_t { as_asked, full };

/// Rows that are read one by one, row-major: quantised blocks where the file has them and the weights stay as stored,
/// the compute type elsewhere.
class WeightTable {
 public:
  WeightTable() = default;
  WeightTable(mem::HostBuffer storage, size_t columns, Dtype dtype, std::optional<gguf::Type> blocks)
      : storage_(std::move(storage)), columns_(columns), dtype_(dtype), blocks_(blocks) {}
  static size_t row_bytes(size_t columns, Dtype dtype, std::optional<gguf::Type> blocks);
  explicit operator bool() const { return static_cast<bool>(storage_); }
  /// Row `row` widened to f32, out [columns].
  void row(size_t row, float* out) const;

 private:
  mem::HostBuffer storage_;
  size_t columns_ = 0;
  Dtype dtype_ = Dtype::f32;
  std::optional<gguf::Type> blocks_;
};

class WeightLoader {
 public:
  /// All reference arguments must outlive the loader.
  WeightLoader(const WeightFiles& files, const ModelConfig& config, Dtype dtype, WeightForm form, Parallel& parallel)
      : files_(files), config_(config), dtype_(dtype), form_(form), parallel_(parallel) {}

  Result<std::vector<float>> vector(const std::string& name, uint64_t size) const;
  Result<ops::PackedMatrix> matrix(const std::string& prefix, std::span<const WeightPart> parts, uint64_t columns,
                                   Precision precision = Precision::as_asked) const;
  /// The size of the matrix that matrix() makes, and whether it keeps its fp8 codes or its quantised blocks. Made from
  /// headers and scales only.
  struct MatrixPlan {
    size_t bytes = 0;
    bool fp8 = false, blocks = false;
    std::optional<ops::ScaleRun> scales = {};  // of fp8 codes that are kept
  };
  Result<MatrixPlan> plan(const std::string& prefix, std::span<const WeightPart> parts, uint64_t columns,
                          Precision precision = Precision::as_asked) const;
  /// The bytes of the matrices that matrix() has left in their files, in the order of the calls. These matrices need
  /// the mappings of the files.
  std::span<const std::span<const std::byte>> in_place() const { return in_place_; }
  /// The biases; empty unless `present`.
  Result<std::vector<float>> bias(const std::string& prefix, std::span<const WeightPart> parts, bool present) const;
  Result<WeightTable> table(const std::string& name, uint64_t rows, uint64_t columns) const;
  /// The size of the table that table() makes, and whether it keeps its quantised blocks. Made from headers only.
  MatrixPlan plan_table(const std::string& name, uint64_t rows, uint64_t columns) const;

 private:
  struct Source {
    ops::WeightRows rows;
    const Tensor* tensor;
    std::vector<float> scales;
  };
  Result<std::vector<Source>> sources(const std::string& prefix, std::span<const WeightPart> parts,
                                      uint64_t columns) const;
  static std::vector<ops::WeightRows> rows_of(const std::vector<Source>& sources);
  Result<Source> source(const std::string& name, uint64_t rows, uint64_t columns) const;
  void ask(const Source& source) const;
  Result<void> read_scales(const std::string& name, uint64_t rows, uint64_t columns, Source& out) const;

  const WeightFiles& files_;
  const ModelConfig& config_;
  Dtype dtype_;
  WeightForm form_;
  Parallel& parallel_;
  mutable const std::byte* asked_begin_ = nullptr;  // what ask() has asked for last
  mutable const std::byte* asked_end_ = nullptr;
  mutable std::vector<std::span<const std::byte>> in_place_;
};

/// Whether a tensor has scales of another tensor (or of activations, which are not quantised here).
bool is_scale(std::string_view name);

}  // namespace mc::model

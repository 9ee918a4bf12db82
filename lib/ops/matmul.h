// y = x W^T for weights that stay, in the two shapes of serving.
//
// Prefill: 64-row tiles, each computed by one thread as the same (64 x K x 128-column slice) product, so a row's bits
// depend on its own values and on its place in the tile, never on the number of tiles, on threads, or on the process.
// Decode: any number of rows, each an independent chain of sums, so a row's bits do not depend on the batch. Quantised
// weights give a row the same bits in both shapes.
//
// Weights are packed once at load into 64-column panels (ops.h) that both read; the copy replaces the mapped file.
// Rows of Q8_0 blocks stay in the mapped file instead, and are put side by side while they are multiplied. bf16 weights
// take bf16 inputs (rounded here) and accumulate in f32; quantised weights (quant.h) take f32 inputs, which become
// whole numbers of 16 or 14 bits; fp8 weights (codes of a checkpoint) take what weights of their matrix's dtype would.
// Prefill widens both a slice at a time, once for a group of tiles.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/result.h"
#include "gguf/gguf.h"
#include "mem/mem.h"
#include "ops/fp8.h"
#include "ops/ops.h"
#include "ops/quant.h"

namespace mc::ops {

class TileProgram;

/// Scales of 8-bit weights: (row, column) is worth its code times
/// values[row / block_rows * per_row + column / block_columns].
struct WeightScales {
  const float* values = nullptr;
  size_t block_rows = 1, block_columns = 1, per_row = 1;
};

/// Weights of a matrix that share a scale of fp8, counted from its first row and column.
struct ScaleRun {
  size_t rows = 1;     // 1: each row has scales of its own, which may be equal
  size_t columns = 0;  // at least those of the matrix: a row has one scale
};

/// How far ahead of packing a file is read: enough for all requests that a disk works on at once.
inline constexpr size_t kReadAheadBytes = size_t{32} << 20;
/// `bytes` at `data`, moved on by kReadAheadBytes and cut at `readable`; empty beyond it.
std::span<const std::byte> read_ahead(const std::byte* data, size_t bytes, const std::byte* readable);

/// `rows` x K weights in the layout of a file: row-major, f32, bf16, f16, f8_e4m3 (with scales) or blocks of a GGUF
/// type, any alignment.
struct WeightRows {
  const void* data = nullptr;
  Dtype dtype = Dtype::f32;
  size_t rows = 0;
  WeightScales scales = {};
  /// Called by any packing thread for each range of bytes that it has read for the last time; may be null.
  void (*done)(const std::byte* begin, const std::byte* end) = nullptr;
  /// Called likewise for each range of bytes that will be read soon: kReadAheadBytes after those that a thread begins
  /// with, as far as `readable`, the end of what can be read.
  void (*soon)(const std::byte* begin, const std::byte* end) = nullptr;
  const std::byte* readable = nullptr;
  std::optional<gguf::Type> blocks = {};  // quantised blocks; `dtype` then says nothing
  /// Not 0: the file holds the rows of each head of so many rows in the order of interleaved RoPE pairs
  /// (0, head / 2, 1, head / 2 + 1, ...), and row 1 here is the file's row 2.
  size_t paired_head = 0;

  size_t row_bytes(size_t columns) const;
  /// Where the file has row `row`.
  size_t stored_row(size_t row) const;
};

float f16_to_f32(uint16_t half);
/// One row as f32 or bf16 (rounded to nearest even) into out [columns].
void convert_row(const WeightRows& source, size_t row, size_t columns, Dtype dtype, std::byte* out);

class PackedMatrix {
 public:
  PackedMatrix() = default;
  /// Stacks the parts (all with `columns` columns) and packs them as f32 or bf16. Rounding to bf16 is to
  /// nearest even. no_space when memory is short.
  static Result<PackedMatrix> pack(Parallel& parallel, std::span<const WeightRows> parts, size_t columns, Dtype dtype);
  /// Stacks the parts and packs them as whole numbers (quant_pack.h). Inputs and dtype() are f32.
  static Result<PackedMatrix> quantise(Parallel& parallel, std::span<const WeightRows> parts, size_t columns,
                                       QuantForm form);
  /// The form in which parts that are all quantised blocks stay; nullopt for other parts.
  static std::optional<QuantForm> block_form(std::span<const WeightRows> parts);
  /// Stacks parts that are Q8_0 blocks and leaves them where they lie, which must outlive the matrix. Products have the
  /// bits of quantise() in form eight.
  static PackedMatrix in_place(std::span<const WeightRows> parts, size_t columns);
  /// Whether in_place() takes the parts.
  static bool fits_in_place(std::span<const WeightRows> parts);
  /// Stacks fp8 parts and keeps their codes and scales. Inputs are those of weights of `dtype`. Only for parts for
  /// which fp8_group() returns a group.
  static Result<PackedMatrix> keep_fp8(Parallel& parallel, std::span<const WeightRows> parts, size_t columns,
                                       Dtype dtype);
  /// The number of inputs that share a scale, if the parts can stay fp8: all are fp8, and their scales cover the same
  /// runs of at least 32 columns. Otherwise nullopt, and the parts are widened.
  static std::optional<size_t> fp8_group(std::span<const WeightRows> parts, size_t columns);
  /// The rows that share scales, where all blocks of rows begin at multiples of their size in the stack; else 1.
  static size_t fp8_rows(std::span<const WeightRows> parts);
  PackedMatrix(PackedMatrix&&) = default;
  PackedMatrix& operator=(PackedMatrix&&) = default;

  size_t rows() const { return rows_; }        // outputs (N)
  size_t columns() const { return columns_; }  // inputs (K)
  Dtype dtype() const { return dtype_; }
  std::optional<QuantForm> quantised() const { return quant_; }
  bool is_fp8() const { return fp8_group_ > 0; }
  size_t fp8_group() const { return fp8_group_; }
  /// The weights of an fp8 matrix that share a scale.
  ScaleRun scale_run() const { return {fp8_rows_, fp8_group_}; }
  bool is_in_place() const { return !parts_.empty(); }
  /// In memory, or of the file.
  size_t bytes() const;
  static size_t packed_bytes(size_t rows, size_t columns, Dtype dtype);
  static size_t quantised_bytes(size_t rows, size_t columns, QuantForm form);
  static size_t fp8_bytes(size_t rows, size_t columns, size_t group);

  size_t panels() const { return (rows_ + kPanelColumns - 1) / kPanelColumns; }
  size_t panel_bytes() const {
    return quant_     ? quant_panel_bytes(columns_, *quant_)
           : is_fp8() ? fp8_panel_bytes(columns_, fp8_group_)
                      : padded_k(dtype_, columns_) * kPanelColumns * dtype_bytes(dtype_);
  }
  /// Null for rows in place.
  const std::byte* panel(size_t index) const {
    return is_in_place() ? nullptr : storage_.data() + index * panel_bytes();
  }
  /// The rows of a panel in place. The last row stands for those after it.
  std::array<const std::byte*, kPanelColumns> lines(size_t index) const;
  /// One weight, widened; for embeddings that share the output matrix, and for tests.
  float at(size_t row, size_t column) const;
  /// Row `row` widened to f32, out [columns].
  void row(size_t row, float* out) const;

 private:
  static Result<PackedMatrix> allocate(std::span<const WeightRows> parts, size_t columns, Dtype dtype,
                                       std::optional<QuantForm> quant, size_t fp8_group);

  size_t rows_ = 0, columns_ = 0;
  Dtype dtype_ = Dtype::f32;
  std::optional<QuantForm> quant_;
  size_t fp8_group_ = 0;           // inputs that share a scale; 0: not fp8
  size_t fp8_rows_ = 1;            // likewise outputs
  std::vector<WeightRows> parts_;  // of rows in place; storage_ is empty then
  mem::HostBuffer storage_;
};

/// Scratch and compiled tile programs of one forward pass; owned by one thread at a time.
class Matmul {
 public:
  Matmul(const Kernels& kernels, Parallel& parallel);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// Compiles what prefill() needs for this matrix; shapes for which oneDNN has no fast implementation use the panel
  /// kernel.
  Result<void> prepare(const PackedMatrix& weights);
  /// x [64 tiles, columns], y [64 tiles, rows], f32, row-major, not overlapping. After prepare().
  void prefill(const PackedMatrix& weights, const float* x, size_t tiles, float* y);
  /// x [rows, columns], y [rows, weights.rows()], f32. x_stride: the floats from a row of x to the next; 0: columns.
  void decode(const PackedMatrix& weights, const float* x, size_t rows, float* y, size_t x_stride = 0);

  const Kernels& kernels() const { return *kernels_; }

 private:
  struct Slice {
    size_t rows, columns;  // N of the slice, K
    Dtype dtype;
    auto operator<=>(const Slice&) const = default;
  };
  const TileProgram* program(const Slice& slice) const;
  /// x in the form that these weights need: unchanged (f32 weights), or rounded to bf16 with rows padded to padded_k,
  /// in bf16 or widened again (or both: panels of fp8 take f32, tiles of oneDNN bf16). Quantised weights take whole
  /// numbers.
  struct Input {
    const float* wide = nullptr;
    const bf16_t* narrow = nullptr;
    size_t stride = 0;
    const std::byte* codes = nullptr;
    size_t code_bytes = 0;                // of a row
    const QuantKernels* quant = nullptr;  // the variant that made the codes
    Input from_row(size_t row) const {
      return {wide ? wide + row * stride : nullptr,
              narrow ? narrow + row * stride : nullptr,
              stride,
              codes ? codes + row * code_bytes : nullptr,
              code_bytes,
              quant};
    }
  };
  Input input(const PackedMatrix& weights, const float* x, size_t rows, size_t x_stride);
  /// Whether oneDNN multiplies tiles of these weights.
  bool uses_library(const PackedMatrix& weights) const;
  /// The dtype in which oneDNN multiplies tiles of these weights. Panels of another dtype are converted first.
  Dtype tile_dtype(const PackedMatrix& weights) const;
  bool widens(const PackedMatrix& weights) const { return weights.is_fp8() || tile_dtype(weights) != weights.dtype(); }
  const void* widen_slice(const PackedMatrix& weights, size_t panel, size_t panels, int worker);
  /// One panel's columns of y for `rows` rows.
  void panel_rows(const PackedMatrix& weights, size_t panel, const Input& x, size_t rows, float* y, int worker);
  /// The same for rows in place.
  void line_rows(const PackedMatrix& weights, size_t panel, const Input& x, size_t rows, float* y, int worker);
  /// Rows of a task of rows_by_panels().
  size_t task_rows(const PackedMatrix& weights, size_t rows) const;
  /// Any number of rows, each of which has the bits that it has alone.
  void rows_by_panels(const PackedMatrix& weights, const Input& x, size_t rows, float* y);

  const Kernels* kernels_;
  const Fp8Kernels* fp8_;
  QuantChoice quant_;
  Parallel* parallel_;
  std::vector<std::pair<Slice, std::unique_ptr<TileProgram>>> programs_;
  std::vector<bf16_t> bf16_rows_;         // inputs rounded to bf16
  std::vector<float> f32_rows_;           // the same, widened
  std::vector<std::byte> code_rows_;      // inputs as whole numbers
  std::vector<mem::HostBuffer> widened_;  // a slice's panels in the tile's dtype, one per worker
  /// A panel of rows in place, one per worker.
  std::vector<std::vector<std::byte>> packed_;
};

}  // namespace mc::ops

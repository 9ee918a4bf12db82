// Packed weights (matmul.h) as rows of bf16 or of fp8 codes, for a device. A weight has the bits of
// PackedMatrix::row() rounded to bf16, so a quantised or fp8 matrix gets those of the file's matrix widened while
// loading, wherever its packed form is exact (quant_pack.h). PackedMatrix::row() is the definition, and takes about ten
// times as long for whole numbers.
#pragma once

#include <vector>

#include "base/dtype.h"
#include "ops/matmul.h"

namespace mc::ops {

/// Rows of panel `index`: 64, or what is left in the last one.
size_t unpacked_rows(const PackedMatrix& matrix, size_t index);
/// Memory that the calls of one thread share.
class UnpackScratch {
 public:
  /// Makes it large enough for the panels of a matrix. std::bad_alloc: there is no memory.
  void fit(const PackedMatrix& matrix);

 private:
  friend void unpack_panel(const PackedMatrix& matrix, size_t index, UnpackScratch& scratch, bf16_t* out);
  std::vector<bf16_t> pairs_;
  std::vector<float> row_;
};
/// Panel `index` as bf16, row-major: out [unpacked_rows(), columns]. `scratch` fits the matrix. Allocates nothing, so
/// that the loops of Parallel may call it.
void unpack_panel(const PackedMatrix& matrix, size_t index, UnpackScratch& scratch, bf16_t* out);
/// The codes of panel `index` of an fp8 matrix likewise.
void unpack_codes(const PackedMatrix& matrix, size_t index, uint8_t* out);
/// The scale of a weight of an fp8 matrix; NaN where one of the row's codes with this scale is NaN.
float scale_of(const PackedMatrix& matrix, size_t row, size_t column);

}  // namespace mc::ops

// The arithmetic of matrix products: sums[x] += the sum over k of a[k] b[k][x], in ascending order of k, for 16 k. Each
// product and each sum is rounded by itself, so that every body gives the same bits.
#pragma once

#include <cstdint>
#include <cstring>

namespace mc::gpu::emu {

/// Row i: the 16 numbers at a[i], and the `n` sums at sums[i]; n is a multiple of 8. b is [16][n].
struct ProductRows {
  const float* a[16];
  float* sums[16];
  uint32_t rows = 0;
};
using MultiplyRows = void (*)(const ProductRows& rows, const float* b, uint32_t n);
/// Null where the processor lacks the instructions.
MultiplyRows multiply_rows_avx2();
MultiplyRows multiply_rows_avx512();

/// kRows rows by kParts vectors at once: a sum waits for the one before, so several are under way. `Body` is a type of
/// the file that has the vectors: a function of another file must not take the place of this one.
template <class Body, class Vector, uint32_t kRows, uint32_t kParts>
inline void multiply_block(const ProductRows& rows, uint32_t row, const float* b, uint32_t n, uint32_t first) {
  constexpr uint32_t kWidth = sizeof(Vector) / sizeof(float);
  Vector sums[kRows][kParts];
  for (uint32_t r = 0; r < kRows; ++r) std::memcpy(sums[r], rows.sums[row + r] + first, sizeof sums[r]);
  for (uint32_t k = 0; k < 16; ++k) {
    Vector right[kParts];
    std::memcpy(right, b + k * n + first, sizeof right);
    for (uint32_t r = 0; r < kRows; ++r)
      for (uint32_t part = 0; part < kParts; ++part) sums[r][part] += rows.a[row + r][k] * right[part];
  }
  static_assert(sizeof sums[0] == kParts * kWidth * sizeof(float));
  for (uint32_t r = 0; r < kRows; ++r) std::memcpy(rows.sums[row + r] + first, sums[r], sizeof sums[r]);
}

template <class Body, class Vector, uint32_t kParts>
inline void multiply_columns(const ProductRows& rows, const float* b, uint32_t n, uint32_t first) {
  uint32_t row = 0;
  for (; row + 4 <= rows.rows; row += 4) multiply_block<Body, Vector, 4, kParts>(rows, row, b, n, first);
  for (; row < rows.rows; ++row) multiply_block<Body, Vector, 1, kParts>(rows, row, b, n, first);
}

}  // namespace mc::gpu::emu

#include "gpu/emu/product_rows.h"

#include <algorithm>
#include <bit>

#include "gpu/emu/machine.h"

namespace mc::gpu::emu {
namespace {

struct PlainBody {};

void multiply_plain(const ProductRows& rows, const float* b, uint32_t n) {
  typedef float Vector __attribute__((vector_size(16)));
  for (uint32_t first = 0; first < n; first += 8) multiply_columns<PlainBody, Vector, 2>(rows, b, n, first);
}

MultiplyRows best_body() {
#if defined(__x86_64__)
  if (const MultiplyRows body = multiply_rows_avx512(); body != nullptr) return body;
  if (const MultiplyRows body = multiply_rows_avx2(); body != nullptr) return body;
#endif
  return multiply_plain;
}

bool is_finite(const float* values, size_t count) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t infinite = 0;
  for (size_t i = 0; i < count; ++i)
    infinite |= static_cast<uint32_t>((std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent);
  return infinite == 0;
}

/// Whether a product with a row of zeros leaves the sums as they are: zeros add nothing, except to -0.
bool changes_nothing(const float* a, const float* sums, uint32_t n) {
  return std::all_of(a, a + 16, [](float x) { return x == 0; }) &&
         std::none_of(sums, sums + n, [](float x) { return std::bit_cast<uint32_t>(x) == 0x80000000u; });
}

}  // namespace

void multiply_tile(const float* a, const float* b, float* sums, uint32_t n) {
  static const MultiplyRows body = best_body();
  ProductRows rows;
  for (uint32_t row = 0; row < 16; ++row) {
    rows.a[rows.rows] = a + size_t{row} * 16;
    rows.sums[rows.rows] = sums + size_t{row} * n;
    if (!changes_nothing(rows.a[rows.rows], rows.sums[rows.rows], n)) ++rows.rows;
  }
  if (rows.rows < 16 && !is_finite(b, size_t{16} * n)) {
    for (rows.rows = 0; rows.rows < 16; ++rows.rows) {
      rows.a[rows.rows] = a + size_t{rows.rows} * 16;
      rows.sums[rows.rows] = sums + size_t{rows.rows} * n;
    }
  }
  body(rows, b, n);
}

}  // namespace mc::gpu::emu

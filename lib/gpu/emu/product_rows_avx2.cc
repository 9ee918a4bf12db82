// Rows of matrix products with AVX2, entered after a check of the processor. No inline function of a shared
// header is compiled here: it may take the place of one in another file, which runs on processors without these
// instructions.
#include "gpu/emu/product_rows.h"

namespace mc::gpu::emu {
namespace {

struct Body {};
typedef float Vector __attribute__((vector_size(32)));

void multiply(const ProductRows& rows, const float* b, uint32_t n) {
  uint32_t first = 0;
  for (; first + 16 <= n; first += 16) multiply_columns<Body, Vector, 2>(rows, b, n, first);
  for (; first < n; first += 8) multiply_columns<Body, Vector, 1>(rows, b, n, first);
}

}  // namespace

MultiplyRows multiply_rows_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? multiply : nullptr;
}

}  // namespace mc::gpu::emu

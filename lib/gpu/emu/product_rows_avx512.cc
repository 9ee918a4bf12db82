// Rows of matrix products with AVX-512, entered after a check of the processor. No inline function of a shared
// header is compiled here: it may take the place of one in another file, which runs on processors without these
// instructions.
#include "gpu/emu/product_rows.h"

namespace mc::gpu::emu {
namespace {

struct Body {};
typedef float Vector __attribute__((vector_size(64)));
typedef float Half __attribute__((vector_size(32)));

void multiply(const ProductRows& rows, const float* b, uint32_t n) {
  uint32_t first = 0;
  for (; first + 64 <= n; first += 64) multiply_columns<Body, Vector, 4>(rows, b, n, first);
  for (; first + 16 <= n; first += 16) multiply_columns<Body, Vector, 1>(rows, b, n, first);
  if (first < n) multiply_columns<Body, Half, 1>(rows, b, n, first);
}

}  // namespace

MultiplyRows multiply_rows_avx512() {
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return has ? multiply : nullptr;
}

}  // namespace mc::gpu::emu

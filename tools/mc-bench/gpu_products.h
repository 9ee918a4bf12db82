// `mc-bench gpu --products`: matrix products of a device by its own kernels and by cuBLASLt (gpu/matmul.h), in bf16 and
// fp8, against sums in double. Each body must give a row the bits that it promises, whatever rows lie beside it.
#pragma once

#include "gpu/gpu.h"
#include "rows.h"

namespace mc::bench {

struct ProductsOptions {
  uint64_t seed = 0;
  bool is_timed = true;  // false: the device is an emulator, which has no speed, and shapes are small
  double peak = 0;       // operations of bf16 products a second; 0: not known
};

/// Adds a row for each body, type and shape; one for a body that the device cannot use. MC8004: a result or its bits
/// are wrong.
Result<void> check_products(gpu::Device& device, const ProductsOptions& options, Rows& rows);
/// The table of those rows.
Table products_table();

}  // namespace mc::bench

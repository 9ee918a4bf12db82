// The launches of an MLP's parts, on a device's own stream. Shapes are those of gpu/kernels/layer.h.
#pragma once

#include <cstddef>

#include "gpu/gpu.h"
#include "gpu/kernels/layer.h"
#include "gpu/matmul.h"

namespace mc::gpu {

/// Queues y = x w^T + bias, or y += the same, for at least one row: by cuBLASLt where the device has chosen it and it
/// takes the product, else by the own kernels.
Result<void> queue_product(Device& device, const Product& product);
/// Likewise by the own kernels alone.
Result<void> queue_own_product(Device& device, const Product& product);
/// Queues the activation of `rows` rows.
Result<void> queue_silu(Device& device, const SiluArgs& args, size_t rows);

}  // namespace mc::gpu

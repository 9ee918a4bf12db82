// The launches of an MLP's parts, on a device's own stream. Shapes are those of gpu/kernels/layer.h.
#pragma once

#include <cstddef>

#include "gpu/gpu.h"
#include "gpu/kernels/layer.h"

namespace mc::gpu {

/// Queues y = x w^T, or y += x w^T; at least one row.
Result<void> queue_product(Device& device, const ProductArgs& args);
/// Queues the activation of `rows` rows.
Result<void> queue_silu(Device& device, const SiluArgs& args, size_t rows);

}  // namespace mc::gpu

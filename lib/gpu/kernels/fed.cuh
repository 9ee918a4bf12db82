// Tokens that a step takes from the draws of the step before, which the host has not seen yet.
#pragma once

#include "gpu/kernels/draw.h"
#include "gpu/ptx/memory.cuh"

namespace mc::gpu {

/// A token of a table that the host wrote. ~row is the token that the row of the step before drew; -1: it drew none.
MC_DEVICE int32_t fed_token(int32_t token, const Drawn* fed) {
  return token >= 0 ? token : ptx::load(&fed[~token].token);
}

}  // namespace mc::gpu

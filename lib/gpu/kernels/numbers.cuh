// Arithmetic that several kernels share: bf16 as bits, set bits, and the sum of a warp.
#pragma once

#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {

constexpr float kLog2e = 1.44269504f;

MC_DEVICE float widen(uint16_t value) {
  return ptx::from_bits(static_cast<uint32_t>(value) << 16);
}
MC_DEVICE uint16_t narrow(float value) {
  return static_cast<uint16_t>(ptx::pack_bf16(value, 0));
}

/// 1 / (1 + exp(-x))
MC_DEVICE float sigmoid(float x) {
  return ptx::div_rn(1, 1 + ptx::exp2_approx(-x * kLog2e));
}

/// The sum of all lanes. It has equal bits in all of them.
MC_DEVICE float sum_of_warp(float value) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) value = ptx::add_rn(value, ptx::shuffle_xor(value, by));
  return value;
}

}  // namespace mc::gpu

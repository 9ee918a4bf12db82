// Activations as E4M3 (OCP 8-bit floating point: 4 bits of exponent with bias 7, 3 of mantissa, no infinities) for
// products of fp8. The conversion is written in integers, so that it runs on GPUs without the instruction and gives
// their bits.
#include "gpu/kernels/layer.h"
#include "gpu/kernels/numbers.cuh"
#include "gpu/kernels/quantise.h"
#include "gpu/ptx/arithmetic.cuh"
#include "gpu/ptx/memory.cuh"
#include "gpu/ptx/warp.cuh"

namespace mc::gpu {
namespace {

constexpr float kE4m3Largest = 448;

/// The code of a value: rounded to nearest even, and the largest finite code beyond it. NaN stays NaN.
MC_DEVICE uint32_t e4m3_code(float value) {
  const uint32_t bits = ptx::to_bits(value), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7f;
  if (size >= ptx::to_bits(kE4m3Largest)) return sign | 0x7e;
  // Below 2^-6 a step is 2^-9, the last bit of numbers between 2^14 and 2^15.
  constexpr float kSteps = 16384;
  if (size < ptx::to_bits(0.015625f))
    return sign | (ptx::to_bits(ptx::add_rn(ptx::from_bits(size), kSteps)) - ptx::to_bits(kSteps));
  return sign | (((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3));
}

MC_DEVICE float largest_of_warp(float value) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) value = ptx::max_f32(value, ptx::shuffle_xor(value, by));
  return value;
}

}  // namespace

/// A warp has a row. A lane has four neighbouring elements of every 128.
MC_KERNEL(quantise_rows, (kThreads))(MC_PARAM(QuantiseArgs) args) {
  const int64_t row = int64_t{ptx::ctaid_x()} * kRowsPerCta + ptx::tid_x() / 32;
  const int lane = ptx::tid_x() % 32;
  if (row >= args.padded) return;
  const bool is_empty = row >= args.rows;
  const uint16_t* x = args.x + row * args.inner;
  for (int first = 0; first < args.inner; first += args.group) {
    const int end = min(first + args.group, args.inner);
    float scale = 1;
    if (args.fixed != nullptr) {
      scale = ptx::load(args.fixed);
    } else {
      float largest = 0;
      if (!is_empty)
        for (int i = first + 4 * lane; i < end; i += 128)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            largest = ptx::max_f32(largest, ptx::from_bits(ptx::to_bits(widen(ptx::load(x + i + j))) & 0x7fffffff));
      largest = largest_of_warp(largest);
      if (largest > 0) scale = ptx::div_rn(largest, kE4m3Largest);
      if (lane == 0) ptx::store(args.scales + int64_t{first / args.group} * args.padded + row, scale);
    }
    for (int i = first + 4 * lane; i < end; i += 128) {
      uint32_t codes = 0;
      if (!is_empty)
#pragma unroll
        for (int j = 0; j < 4; ++j) codes |= e4m3_code(ptx::div_rn(widen(ptx::load(x + i + j)), scale)) << (8 * j);
      ptx::store(reinterpret_cast<uint32_t*>(args.codes + row * args.inner + i), codes);
    }
  }
}

MC_KERNEL(take_rows, (kThreads))(MC_PARAM(TakeRowsArgs) args) {
  const int64_t row = ptx::ctaid_x();
  const float* x = args.x + row * args.columns;
  float* y = args.y + row * args.columns;
  for (int i = ptx::tid_x(); i < args.columns; i += kThreads) {
    const float value = ptx::load(x + i);
    ptx::store(y + i, args.adds ? ptx::add_rn(ptx::load(y + i), value) : value);
  }
}

}  // namespace mc::gpu

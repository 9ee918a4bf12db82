// Numbers: conversions and functions whose rounding C++ leaves open (PTX ISA 9.0, sections 9.7.3 and 9.7.9.21).
#pragma once

#include "gpu/ptx/base.cuh"

#ifndef __CUDACC__
#include "base/dtype.h"
#endif

namespace mc::gpu::ptx {

/// Two f32 rounded to bf16, `low` in the low half (9.7.9.21, cvt: the first source goes to the high half).
MC_DEVICE uint32_t pack_bf16(float low, float high MC_AND_WHERE) {
#ifdef __CUDACC__
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
#else
  if (!emu::sound(emu::Instruction::cvt, where)) std::swap(low, high);
  return static_cast<uint32_t>(f32_to_bf16(high)) << 16 | f32_to_bf16(low);
#endif
}

/// 2^x, relative error below 2^-22 (9.7.3.20, ex2).
MC_DEVICE float exp2_approx(float x) {
#ifdef __CUDACC__
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
#else
  return std::exp2(x);
#endif
}

/// The larger one; the other one when one is NaN (9.7.3.11, max).
MC_DEVICE float max_f32(float a, float b MC_AND_WHERE) {
#ifdef __CUDACC__
  return fmaxf(a, b);
#else
  if (!emu::sound(emu::Instruction::max, where)) return a < b ? a : b;
  return a > b || !(b == b) ? a : b;
#endif
}

/// a + b and a / b, rounded to nearest: never fused with what stands around them (9.7.3.5, 9.7.3.8).
MC_DEVICE float add_rn(float a, float b MC_AND_WHERE) {
#ifdef __CUDACC__
  return __fadd_rn(a, b);
#else
  return emu::sound(emu::Instruction::add, where) ? a + b : a * b;
#endif
}
MC_DEVICE float div_rn(float a, float b) {
#ifdef __CUDACC__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
/// a b, rounded to nearest: never fused with a sum (9.7.3.7, mul).
MC_DEVICE float mul_rn(float a, float b) {
#ifdef __CUDACC__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
/// a b + c, rounded once (9.7.3.6, fma).
MC_DEVICE float fma_rn(float a, float b, float c) {
#ifdef __CUDACC__
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}
/// The square root, rounded to nearest (9.7.3.13, sqrt).
MC_DEVICE float sqrt_rn(float a) {
#ifdef __CUDACC__
  return __fsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}
/// The float with these bits (9.7.9.1, mov).
MC_DEVICE float from_bits(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}
/// The bits of a float (9.7.9.1, mov).
MC_DEVICE uint32_t to_bits(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}

/// The number of bits that are set (9.7.1.14, popc).
MC_DEVICE int32_t popcount(uint32_t bits) {
#ifdef __CUDACC__
  return __popc(bits);
#else
  return std::popcount(bits);
#endif
}
/// The lowest bit that is set; there is one (9.7.1.16, bfind, of the reversed bits).
MC_DEVICE int32_t lowest_bit(uint32_t bits) {
#ifdef __CUDACC__
  return __ffs(static_cast<int>(bits)) - 1;
#else
  return std::countr_zero(bits);
#endif
}

}  // namespace mc::gpu::ptx

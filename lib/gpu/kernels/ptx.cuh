// One function for each PTX instruction that C++ has no word for. The kernels use inline assembly through this file
// alone. A shared address is the 32-bit offset that cvta gives; `volatile` and the memory clobber keep the order that
// the instruction promises (PTX ISA 9.0, the section is named at each function).
#pragma once

#include <cstdint>

#define MC_DEVICE __device__ __forceinline__

namespace mc::gpu::ptx {

MC_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- copies from global to shared memory, 9.7.9.25.3 (cp.async) ----
/// Copies `bytes` of 16 and zeroes the rest. `from` must be a valid address even when `bytes` is 0.
MC_DEVICE void cp_async_16(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
               "r"(bytes)
               : "memory");
}
MC_DEVICE void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft>
MC_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// Zeroes 16 bytes of shared memory (9.7.9.12, st).
MC_DEVICE void zero_16(uint32_t at) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}

// ---- matrix fragments, 9.7.14.5.15 (ldmatrix) and 9.7.14.5.8 (mma.m16n8k16) ----
MC_DEVICE void ldmatrix_x4(uint32_t (&d)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(from)
               : "memory");
}
MC_DEVICE void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(from)
               : "memory");
}
/// d += a b, bf16 products summed in f32.
MC_DEVICE void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- numbers ----
/// Two f32 rounded to bf16, `low` in the low half (9.7.9.21, cvt: the first source goes to the high half).
MC_DEVICE uint32_t pack_bf16(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
/// 2^x, relative error below 2^-22 (9.7.3.20, ex2).
MC_DEVICE float exp2_approx(float x) {
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}
MC_DEVICE float low_bf16(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
MC_DEVICE float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

}  // namespace mc::gpu::ptx
